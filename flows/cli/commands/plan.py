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
from flows.cli.options import Budget, Json, aligned, checked_config, environment, local_data
from flows.config import RunConfig, shared
from tasks.core.remote import Source, without_passwords
from tasks.core.wording import duration


@dataclass
class PlanOptions(RunConfig):
    """What to do on which data, or at which size."""

    data: Annotated[Source, shared("data", "Folder of the raw data set, or its address; or none, and --labels.")] = ""
    labels: Annotated[int, Parameter(help="Labels of data that is not here: what would it take?")] = 0
    points: Annotated[int, Parameter(help="Its training points.")] = 0
    dim: Annotated[int | None, Parameter(help="How long its vectors would be; as the preset's by default.")] = None
    gpus: Annotated[int, Parameter(help="GPUs of a machine that would train on it; the CPU by default.")] = 0
    gpu_memory: Annotated[float, Parameter(help="Memory of a GPU, GB.")] = 80.0
    positives: Annotated[float, Parameter(help="Labels of a point.")] = 5.0
    tokens: Annotated[float, Parameter(help="Tokens of a text.")] = 14.0
    budget: Budget = ""


NO_OPTIONS = PlanOptions()


def plan(*, options: PlanOptions = NO_OPTIONS, as_json: Json = False) -> None:
    """Say what `xc run` with the same options would do and why, and where each value comes from; nothing is trained.

    With --labels and --points in place of --data: what data of that size would take, and what gives way first.
    """
    if options.labels or options.points:
        if options.budget:
            size = "labels" if options.labels else "points"
            raise UsageError(f"--budget chooses for data that is here, but --{size} is given",
                             hint="leave one of them out")
        _size(options, as_json)
        return
    if not options.data:
        raise UsageError("xc plan needs a data set, or a size", hint="--data DIR, or --labels N --points N")
    from flows.rendezvous import rendezvous_of

    rendezvous_of(options)
    checked_config(options, options.budget, "")
    environment(options.home)
    from flows.preview import preview, server_addresses
    from flows.services.definitions import mlflow_of
    from tasks.data.feedback.decisions import NO_FEEDBACK
    from tasks.data.sources import describe
    from tasks.plan import feedback_on, pipeline
    from xcmodels.methods.presets import flat

    data = local_data(options)
    feedback = feedback_on(options.home, options.name or describe(data).name, options.recipe) \
        if options.feedback == "use" else NO_FEEDBACK
    laid_out = pipeline(data, options.method, options.preset, options.settings, feedback, source=options.data)
    with _store(options.home, options.store) as store:
        planned = preview(laid_out, store)
    addresses = server_addresses(options.home, mlflow_of(options.home, options.mlflow))
    given = {name: {"value": without_passwords(str(getattr(options, name))),
                    "source": GIVEN.sources.get(name.replace("_", "-"), "default")}
             for name in (field.name for field in fields(RunConfig)) if name not in ("overrides", "command")}
    settings = {key: {"value": value, "source": GIVEN.settings.get(key, "preset")}
                for key, value in flat(laid_out.settings).items()}
    if as_json:
        print(json.dumps({**planned.to_json(), **{name.lower(): address for name, address in addresses.items()},
                          "options": given, "settings": settings}))
        return
    steps = [(step.step, "reuse" if step.reuse else "run", duration(step.seconds) if step.seconds is not None else "?",
              step.reason) for step in planned.steps]
    print("\n".join([*planned.lines(), *(f"{name:<10} {address}" for name, address in addresses.items())]))
    print("\n".join(["", *aligned(steps)]))
    for table in (given, settings):
        print("\n".join(["", *aligned([(name, row["value"], row["source"]) for name, row in table.items()])]))


def _size(options: PlanOptions, as_json: bool) -> None:
    environment(options.home)
    from flows.size_plan import sizing
    from xcmodels.resources import Size

    size = Size(options.labels, options.points, options.positives, options.tokens, gpus=options.gpus,
                machines=max(1, options.nodes))
    estimate = sizing(options.method, options.preset, options.settings, size, width=options.dim, home=options.home,
                      gpu_memory=options.gpu_memory)
    print(json.dumps(estimate.to_json()) if as_json else "\n".join(estimate.lines()))


@contextmanager
def _store(home: Path, address: str) -> Iterator[Any]:
    """Yield the store of HOME, or an empty temporary one: a plan creates no home."""
    from tasks.core.shared_store import open_store

    if (home / "FORMAT").exists():
        yield open_store(home, address)
        return
    with tempfile.TemporaryDirectory(prefix="xc-plan-") as folder:
        yield open_store(Path(folder), address)
