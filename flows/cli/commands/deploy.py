"""`xc deploy`: schedule the flows of prefect.yaml for a data set."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import DryRun, Json, environment, filled, home_flag, resolved_settings, say
from flows.config import DeployOptions, pairs, shared
from tasks.core.remote import is_address, name_of


def deploy(*, options: DeployOptions,
           schedules: Annotated[list[str], Parameter(
               name="--schedule", help='When a deployment runs, NAME="MINUTE HOUR DAY MONTH WEEKDAY" or NAME=off; '
                                       'repeatable.')] = [],  # noqa: B006
           pool: Annotated[Literal["cpu", "gpu"], shared("pool", "Pool that trains.", variable=False)] = "cpu",
           now: Annotated[str, Parameter(help="A deployment to run now too, such as retrain.")] = "",
           dry_run: DryRun = False, as_json: Json = False) -> None:
    """Schedule the jobs of prefect.yaml for a data set on the Prefect server: what is the same already stays."""
    settings = resolved_settings(options)
    times = _times(schedules)
    _require_no_user(options.mlflow)
    from flows.forms import ApplyLabelsForm, EvaluateForm, PrepareForm, RetrainForm
    from tasks.data.fetch import outline
    from tasks.data.sources import describe
    from tasks.registry.tags import did_you_mean

    data = options.data if is_address(options.data) else Path(options.data).resolve()
    home = options.home.parent.resolve() / options.home.name    # a link by this name may be led elsewhere
    values = {**vars(options), "settings": settings, "data": str(data), "home": str(home)}
    with outline(options.data) as folder:
        model = options.name or describe(folder).name    # as runs register it
    _require_deployable(model)
    forms = {"prepare": filled(PrepareForm, values), "evaluate": filled(EvaluateForm, values),
             "retrain": filled(RetrainForm, values),
             "apply-labels": filled(ApplyLabelsForm, {**values, "name": model})}
    for name in (*times, *([now] if now else [])):
        if name not in forms:
            raise UsageError(f"no deployment {name!r}{did_you_mean(name, list(forms))}")
    environment(options.home)
    from flows.services.definitions import require_prefect

    address = require_prefect(options.home).removesuffix("/api")
    say(f"{'Prefect':<10} {address}; what the deployments run is loaded, up to a minute the first time")
    from flows.deploy import Change, apply, has_worker, plan, prepare_server, start

    planned = plan(model, forms, [f"method:{options.method}", f"data:{name_of(data)}", f"preset:{options.preset}"],
                   times, pool)
    if not dry_run:
        for created in prepare_server():
            say(f"{created}: created")

    def tell(change: Change) -> None:
        if change.change == "nothing":
            what = "stays as it is" if dry_run else "as it was"
        else:
            done = "created" if change.change == "created" else f"changed: {change.change}"
            what = f"would be {done}" if dry_run else done
        say(f"{change.deployment:<24} {what}; {change.schedule}, pool {change.pool}")

    changes = apply(planned, dry_run=dry_run, tell=tell)
    if as_json:
        print(json.dumps([asdict(change) for change in changes]))
    idle = [] if dry_run else [each for each in sorted({change.pool for change in changes}) if not has_worker(each)]
    for each in idle:
        say(f"warning: no worker of the pool {each} is there, so its runs wait for one; xc up{home_flag(options.home)} "
            f"starts {'one where torch sees a GPU' if each == 'gpu' else 'it'}")
    if now and not dry_run:
        name = f"{now}/{model}"
        waits = any(change.deployment == name and change.pool in idle for change in changes)
        say(f"{name} {'waits' if waits else 'begins'}: {address}/runs/flow-run/{start(name)}")
    say(f"see, and run one by hand: {address}/deployments")


def _require_no_user(mlflow: str) -> None:
    """Raise UsageError for an address that may have a password in it, without repeating it."""
    if "@" in mlflow:
        raise UsageError("the address of MLflow has a user in it, and Prefect shows a deployment's parameters",
                         hint="--mlflow '' leaves it to the worker, which has XC_MLFLOW by xc up; or give it without, "
                              "and the worker MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")


def _require_deployable(model: str) -> None:
    """Raise UsageError for the name of a model that Prefect refuses, or takes for another.

    Its client writes a name into a path as it is: after "C#", `--now` would start what is deployed for "C".
    """
    wrong = sorted(set("#%&<>?") & set(model))
    wrong += [".py"] if model.endswith(".py") else [model] if model in (".", "..") else []
    if wrong:
        raise UsageError(f"Prefect has no deployment of a model {model!r}, for the {' '.join(wrong)} in its name",
                         hint="--name NAME, for this and for xc run")


def _times(schedules: list[str]) -> dict[str, str]:
    """Return the schedule of each deployment that has one; raise UsageError where it has two."""
    times = pairs("--schedule", schedules, 'retrain="0 3 * * 0"')
    if len(times) < len(schedules):
        raise UsageError("--schedule names a deployment twice", hint="leave one of them out")
    return times
