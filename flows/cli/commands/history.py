"""`xc runs` and `xc gc`: the past runs in a home, and the removal of old results of steps."""

import json
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import HOME, DryRun, Home, Json, Mlflow, open_tracker, say

# What a run's command would do, by how the run ended; after a failure it fails again until the cause is corrected.
AGAIN = {"trained": "goes on by", "interrupted": "resumes by", "failed": "again by"}


def runs(*, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List the runs of a home, the latest first: how run ended, and the command to type where it did not."""
    tracker = open_tracker(home, mlflow)
    from flows.services.stack import Stack
    from tasks.runs import past_runs

    server = Stack(home).records().get("mlflow")
    past = past_runs(tracker, shared=not tracker.embedded and (server is None or server.address != tracker.address))
    if as_json:
        print(json.dumps([asdict(run) for run in past]))
        return
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


def gc(*, days: Annotated[float, Parameter(help="What a run has asked for in the last so many days stays.")] = 14.0,
       dry_run: DryRun = False, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """Remove the results of steps that no run has asked for lately; what is registered or served stays."""
    if not 0 <= days <= 36_500:
        raise UsageError(f"--days must be from 0 to 36500, got {days:g}")
    from tasks.core.store import Store

    store = Store(home, create=False)
    tracker = open_tracker(home, mlflow)
    from tasks.collection import collect

    freed = collect(store, tracker, days, dry_run=dry_run)
    for kind, count in sorted(freed.counts.items()):
        say(f"{count:>6,}  {kind:<12} {freed.sizes[kind] / 1e6:>11,.1f} MB")
    total = freed.sizes.total()
    say(f"{'would free' if dry_run else 'freed'} {total / 1e6:,.1f} MB that no run has asked for in {days:g} days")
    if as_json:
        print(json.dumps({"freed": not dry_run, "bytes": total, "counts": freed.counts, "sizes": freed.sizes}))
