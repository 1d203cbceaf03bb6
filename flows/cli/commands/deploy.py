"""`xc deploy`: schedule the flows of prefect.yaml for a data set."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import HOME, Home, Json, Subject, environment, filled, pairs, resolved_settings, say


@Parameter(name="*")
@dataclass
class Scheduled(Subject):
    """What the deployments work on."""

    name: Annotated[str, Parameter(help="Name of the registered model; the data set's name by default.")] = ""
    workers: Annotated[int, Parameter(help="Embedded Dask workers.")] = 2
    keep_days: Annotated[float, Parameter(help="What no run has asked for in so many days is removed after each "
                                               "retraining, unless it is registered or served.")] = 14.0


def deploy(*, job: Scheduled, home: Home = HOME,
           mlflow: Annotated[str, Parameter(env_var="XC_MLFLOW", help="Address of an MLflow server; the home's own "
                                                                       "by default.")] = "",
           dask: Annotated[str, Parameter(env_var="XC_DASK", help="Address of a Dask scheduler.")] = "",
           schedules: Annotated[list[str], Parameter(
               name="--schedule", help='When a deployment runs, NAME="MINUTE HOUR DAY MONTH WEEKDAY" or NAME=off; '
                                       'repeatable.')] = [],  # noqa: B006
           pool: Annotated[Literal["cpu", "gpu"], Parameter(help="Pool that trains.")] = "cpu",
           now: Annotated[str, Parameter(help="A deployment to run now too, such as retrain.")] = "",
           dry_run: Annotated[bool, Parameter(help="Say what would change, and change nothing.")] = False,
           as_json: Json = False) -> None:
    """Schedule the jobs of prefect.yaml for a data set on the Prefect server: what is the same already stays."""
    settings = resolved_settings(job)
    environment(home)
    from flows.services.catalogue import require_prefect

    address = require_prefect(home).removesuffix("/api")
    say(f"{'Prefect':<10} {address}; what the deployments run is loaded, up to a minute the first time")
    from flows.config import EvaluateForm, PrepareForm, RefreshForm, RetrainForm
    from flows.deploy import Change, apply, plan, prepare_server, start
    from tasks.registry.tags import did_you_mean

    common = {"data": str(job.data.resolve()), "method": job.method, "preset": job.preset, "settings": settings,
              "home": str(home.absolute()), "dask": dask, "workers": job.workers}
    tracked = {**common, "name": job.name, "mlflow": mlflow}
    model = job.name or job.data.resolve().name
    forms = {"prepare": filled(PrepareForm, common), "evaluate": filled(EvaluateForm, tracked),
             "retrain": filled(RetrainForm, {**tracked, "keep_days": job.keep_days}),
             "refresh": filled(RefreshForm, {"name": model, "home": common["home"], "mlflow": mlflow})}
    if now and now not in forms:
        raise UsageError(f"no deployment {now!r}{did_you_mean(now, list(forms))}")
    planned = plan(model, forms, [f"method:{job.method}", f"data:{job.data.resolve().name}", f"preset:{job.preset}"],
                   pairs("--schedule", schedules, 'retrain="0 3 * * 0"'), pool)
    if not dry_run:
        for created in prepare_server():
            say(f"{created}: created")

    def tell(change: Change) -> None:
        what = {"created": "created", "nothing": "as it was"}.get(change.change, f"changed: {change.change}")
        say(f"{change.deployment:<24} {'would be ' if dry_run else ''}{what}; {change.schedule}, pool {change.pool}")

    changes = apply(planned, dry_run=dry_run, tell=tell)
    if as_json:
        print(json.dumps([asdict(change) for change in changes]))
    if now and not dry_run:
        say(f"{now}/{model} begins: {address}/runs/flow-run/{start(f'{now}/{model}')}")
    say(f"see, and run one by hand: {address}/deployments")
