"""`xc plan`: what `xc run` would do."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.commands.options import TRACKED, Job, Json, Tracked, environment, settled
from flows.given import GIVEN


def plan(*, job: Job, tracked: Tracked = TRACKED, as_json: Json = False) -> None:
    """Say what `xc run` with the same options would do and why, and where each value comes from; nothing is done."""
    changed = settled(job)
    environment(job.home)
    from flows.outlook import look, places
    from flows.services import mlflow_of
    from tasks.mlflow_client import without_passwords
    from tasks.plan import pipeline
    from tasks.report_text import span
    from xcmodels.presets import flat

    laid_out = pipeline(job.data, job.method, job.preset, changed)
    with _store(job.home) as store:
        outlook = look(laid_out, store)
    where = places(job.home, mlflow_of(job.home, tracked.mlflow))
    asked = {**vars(job), **vars(tracked)}
    options = {name: {"value": without_passwords(str(asked[name])), "source": GIVEN.sources.get(name, "default")}
               for name in asked if name != "settings"}
    settings = {key: {"value": value, "source": GIVEN.settings.get(key, "preset")}
                for key, value in flat(laid_out.settings).items()}
    if as_json:
        print(json.dumps({**outlook.to_json(), **{name.lower(): address for name, address in where.items()},
                          "options": options, "settings": settings}))
        return
    steps = [(each.step, "reuse" if each.reuse else "run", span(each.seconds) if each.seconds is not None else "?",
              each.reason) for each in outlook.steps]
    print("\n".join([*outlook.lines(), *(f"{name:<10} {address}" for name, address in where.items())]))
    print("\n".join(["", *_columns(steps)]))
    for told in (options, settings):
        print("\n".join(["", *_columns([(name, each["value"], each["source"]) for name, each in told.items()])]))


def _columns(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the rows of a table as lines."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@contextmanager
def _store(home: Path) -> Iterator[Any]:
    """Yield the store of HOME, an empty one where there is none: a plan makes no home."""
    from tasks.artifacts import Store

    if (home / "FORMAT").exists():
        yield Store(home, create=False)
        return
    with tempfile.TemporaryDirectory(prefix="xc-plan-") as folder:
        yield Store(Path(folder))
