"""`xc plan`: preview of `xc run`, or an estimate for data of a given size."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.config_file import GIVEN
from flows.cli.options import Json, columns, environment, resolved_settings
from flows.config import RunConfig, shared


@dataclass
class PlanJob(RunConfig):
    """What to do on which data, or at which size."""

    data: Annotated[Path, shared("data", "Folder of the raw data set; or none, and --labels.")] = Path()
    labels: Annotated[int, Parameter(help="Labels of data that is not here: what would it take?")] = 0
    points: Annotated[int, Parameter(help="Its training points.")] = 0
    dim: Annotated[int | None, Parameter(help="How long its vectors would be; as the preset's by default.")] = None
    gpus: Annotated[int, Parameter(help="GPUs that would train on it; 0 = the CPU.")] = 0
    gpu_memory: Annotated[float, Parameter(help="Memory of a GPU, GB.")] = 80.0
    positives: Annotated[float, Parameter(help="Labels of a point.")] = 5.0
    tokens: Annotated[float, Parameter(help="Tokens of a text.")] = 14.0


DEFAULT_JOB = PlanJob()


def plan(*, job: PlanJob = DEFAULT_JOB, as_json: Json = False) -> None:
    """Say what `xc run` with the same options would do and why, and where each value comes from; nothing is done.

    With --labels and --points in place of --data: what data of that size would take, and what gives way first.
    """
    if job.labels or job.points:
        _size(job, as_json)
        return
    if job.data == Path():
        raise UsageError("xc plan needs a data set, or a size", hint="--data DIR, or --labels N --points N")
    changed = resolved_settings(job)
    environment(job.home)
    from flows.preview import look, places
    from flows.services.catalogue import mlflow_of
    from tasks.core.wording import span
    from tasks.plan import pipeline
    from tasks.tracking.mlflow_client import without_passwords
    from xcmodels.methods.presets import flat

    laid_out = pipeline(job.data, job.method, job.preset, changed)
    with _store(job.home) as store:
        outlook = look(laid_out, store)
    addresses = places(job.home, mlflow_of(job.home, job.mlflow))
    options = {name: {"value": without_passwords(str(getattr(job, name))), "source": GIVEN.sources.get(name, "default")}
               for name in (field.name for field in fields(RunConfig)) if name not in ("overrides", "command")}
    settings = {key: {"value": value, "source": GIVEN.settings.get(key, "preset")}
                for key, value in flat(laid_out.settings).items()}
    if as_json:
        print(json.dumps({**outlook.to_json(), **{name.lower(): address for name, address in addresses.items()},
                          "options": options, "settings": settings}))
        return
    steps = [(step.step, "reuse" if step.reuse else "run", span(step.seconds) if step.seconds is not None else "?",
              step.reason) for step in outlook.steps]
    print("\n".join([*outlook.lines(), *(f"{name:<10} {address}" for name, address in addresses.items())]))
    print("\n".join(["", *columns(steps)]))
    for table in (options, settings):
        print("\n".join(["", *columns([(name, row["value"], row["source"]) for name, row in table.items()])]))


def _size(job: PlanJob, as_json: bool) -> None:
    """Print what a method would need for data of a size."""
    environment(job.home)
    from flows.size_plan import sizing
    from xcmodels.resources import Size

    size = Size(job.labels, job.points, job.positives, job.tokens, gpus=job.gpus)
    estimate = sizing(job.method, job.preset, job.settings, size, width=job.dim, home=job.home,
                      gpu_memory=job.gpu_memory)
    print(json.dumps(estimate.to_json()) if as_json else "\n".join(estimate.lines()))


@contextmanager
def _store(home: Path) -> Iterator[Any]:
    """Yield the store of HOME, or an empty temporary one: a plan creates no home."""
    from tasks.core.store import Store

    if (home / "FORMAT").exists():
        yield Store(home, create=False)
        return
    with tempfile.TemporaryDirectory(prefix="xc-plan-") as folder:
        yield Store(Path(folder))
