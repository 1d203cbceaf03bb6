"""`xc gc`: remove old results of steps from a home."""

import json
from typing import Annotated

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import HOME, DryRun, Home, Json, Mlflow, open_tracker, say
from tasks.core.wording import data_size


def gc(*, days: Annotated[float, Parameter(help="What a run has asked for in the last so many days stays.")] = 14.0,
       dry_run: DryRun = False, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """Remove the results of steps that no run has asked for lately; what is registered or served stays."""
    if not 0 <= days <= 36_500:
        raise UsageError(f"--days must be from 0 to 36500, got {days:g}")
    from tasks.core.store import Store

    store = Store(home, create=False)
    tracker = open_tracker(home, mlflow)
    from tasks.home_gc import collect

    freed = collect(store, tracker, days, dry_run=dry_run)
    for kind, count in sorted(freed.counts.items()):
        say(f"{count:>6,}  {kind:<12} {data_size(freed.sizes[kind]):>14}")
    total = freed.sizes.total()
    say(f"{'would free' if dry_run else 'freed'} {data_size(total)} that no run has asked for in {days:g} days")
    if as_json:
        print(json.dumps({"freed": not dry_run, "bytes": total, "counts": freed.counts, "sizes": freed.sizes}))
