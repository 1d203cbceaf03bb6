"""`xc runs`: what was run in a home, and how each run ended."""

import json

from flows.cli.options import HOME, Home, Json, Mlflow, open_tracker, require_home

# What its command does, by how a run ended: after a failure it may fail again, until the cause is mended.
AGAIN = {"trained": "goes on by", "interrupted": "resumes by", "failed": "again by"}


def runs(*, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List the runs of a home, the latest first: how each ended, and the command to type where it did not."""
    require_home(home)
    tracker = open_tracker(home, mlflow)
    from flows.services.stack import Stack
    from tasks.runs import past_runs

    own = Stack(home).records().get("mlflow")
    found = past_runs(tracker, shared=not tracker.embedded and (own is None or own.address != tracker.address))
    if as_json:
        print(json.dumps([each.to_json() for each in found]))
        return
    for each in found:
        what = " · ".join(filter(None, (each.method, each.data, each.preset))) or each.name
        changed = "".join(f", {key}={value}" for key, value in each.changed.items())
        ended = {"registered": f"registered as {', '.join(each.versions)}{', the champion' if each.champion else ''}",
                 "trained": "trained, not evaluated", "failed": f"failed at {each.step or 'a step'}: {each.why}",
                 "interrupted": f"interrupted at {each.step or 'a step'}",
                 "running": f"running now, at {each.step}"}.get(each.state, each.state)
        print(f"{each.began[:16].replace('T', ' ')}  {what or each.why}{changed}  {ended.splitlines()[0]}")
        if (again := AGAIN.get(each.state)) and each.command:
            print(f"{'':<18}{again}  {each.command}")
