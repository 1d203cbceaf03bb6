"""`xc runs`: the past runs in a home, and how each ended."""

import json
from dataclasses import asdict

from flows.cli.options import HOME, Home, Json, Mlflow, home_flag, open_tracker, say

# What a run's command would do, by how the run ended; after a failure it fails again until the cause is corrected.
AGAIN = {"trained": "goes on by", "interrupted": "resumes by", "failed": "again by"}


def runs(*, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List the runs of a home, the latest first: how each ended, and the command that continues an unfinished one."""
    tracker = open_tracker(home, mlflow)
    from flows.services.stack import Stack
    from tasks.runs import past_runs

    server = Stack(home).records().get("mlflow")
    past = past_runs(tracker, shared=not tracker.embedded and (server is None or server.address != tracker.address))
    if as_json:
        print(json.dumps([asdict(run) for run in past]))
        return
    if not past:
        say(f"there is no run yet; next: xc run --data DIR{home_flag(home)}")
    for run in past:
        what = " · ".join(filter(None, (run.method, run.data, run.preset))) or run.name
        changed = "".join(f", {key}={value}" for key, value in run.changed.items())
        ended = {"registered": f"registered as {', '.join(run.versions)}{', the champion' if run.champion else ''}",
                 "trained": "trained, not evaluated", "failed": f"failed at {run.step or 'a step'}: {run.why}",
                 "interrupted": f"interrupted at {run.step or 'a step'}",
                 "running": f"running now, at {run.step}"}.get(run.state, run.state)
        print(f"{run.began[:16].replace('T', ' ')}  {what or run.why}{changed}  {ended.splitlines()[0]}")
        if (again := AGAIN.get(run.state)) and run.command:
            print(f"{'':<18}{again}  {run.command}")
