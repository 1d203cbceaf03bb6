"""Create and update the Prefect deployments that prefect.yaml lists.

What the server has already is not applied again, so each change can be reported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect._vendor.croniter import croniter
from prefect.automations import AutomationCore
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import ConcurrencyLimitConfig, StateType, WorkerStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.runner.storage import LocalStorage
from prefect.schedules import Cron
from prefect.states import Cancelled
from prefect.workers.process import ProcessWorker
from pydantic import BaseModel

from data_contracts.errors import UsageError
from tasks.tracking.identity import earlier_places

FILE = files("flows") / "prefect.yaml"
POOLS = {"cpu": "Runs on processors alone", "gpu": "Runs that want a GPU"}
SILENCE = timedelta(seconds=75)    # without a heartbeat, which a run sends every 30 s
TRAINS = "retrain"
WATCH = "crash runs that fell silent"


def prepare_server() -> list[str]:
    """Create the work pools and the automation that marks killed runs as crashed; return what was missing."""
    with get_client(sync_client=True) as client:
        made = [f"pool {name}" for name in POOLS if _make_pool(client, name)]
        if not client.read_automations_by_name(WATCH):
            client.create_automation(_watch())
            made.append(f"automation {WATCH!r}")
    return made


def follow_home(home: Path) -> list[str]:
    """Point the deployments of a moved home, and their scheduled runs, to its new path; return the names changed.

    For the home's own server only: on a shared one, the earlier folder may be another home by now.
    """
    earlier, changed = set(earlier_places(home)), list[str]()
    if not earlier:
        return changed
    with get_client(sync_client=True) as client:
        for deployment in _all(client.read_deployments):
            if (parameters := _moved(deployment.parameters, earlier, home)) is not None:
                client.update_deployment(deployment.id, DeploymentUpdate(
                    parameters=parameters, pull_steps=[LocalStorage(str(home)).to_pull_step()]))
                changed.append(deployment.name)
        scheduled = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.SCHEDULED]}}})
        for run in _all(partial(client.read_flow_runs, flow_run_filter=scheduled)):
            if (parameters := _moved(run.parameters, earlier, home)) is not None:
                client.update_flow_run(run.id, parameters=parameters)
    return changed


def _all(read: Callable[..., list[Any]]) -> list[Any]:
    """Return everything that a client reads page by page."""
    items, page = list[Any](), read(offset=0)
    while page:
        items += page
        page = read(offset=len(items))
    return items


def _moved(parameters: Mapping[str, Any], earlier: set[str], home: Path) -> dict[str, Any] | None:
    """Return a deployment's parameters with the home's new path; None where they name no earlier folder."""
    form = parameters.get("config")
    if not isinstance(form, Mapping) or form.get("home") not in earlier:
        return None
    return {**parameters, "config": {**form, "home": str(home)}}


def skip_missed() -> int:
    """Cancel runs that were due while no server was up, except the last of each deployment; return how many.

    A server schedules three runs ahead, or those of an hour, and a worker would run every late one.
    """
    due = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.SCHEDULED]}},
                                        "next_scheduled_start_time": {"before_": datetime.now(UTC)}})
    with get_client(sync_client=True) as client:
        late = [run for run in _all(partial(client.read_flow_runs, flow_run_filter=due,
                                            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC)) if run.auto_scheduled]
        latest = {run.deployment_id: run.id for run in late}
        missed = [run.id for run in late if latest[run.deployment_id] != run.id]
        for run_id in missed:
            client.set_flow_run_state(run_id, Cancelled(message="was due while the servers were down"), force=True)
        return len(missed)


@dataclass(frozen=True)
class Change:
    """A change that `apply` makes to one deployment, and the deployment after it."""

    deployment: str                   # "retrain/wordnet"
    change: str                       # "created", "nothing", or what differs: "schedule, parameters"
    schedule: str
    pool: str
    parameters: Mapping[str, Any]


def plan(model: str, forms: Mapping[str, BaseModel], tags: Sequence[str], schedules: Mapping[str, str],
         pool: str) -> list[RunnerDeployment]:
    """Return the deployments of prefect.yaml for one model, their forms filled in.

    forms: name in prefect.yaml -> the form. schedules: name -> a cron line instead of the file's, or "off".
    pool: where training happens, which the file leaves on processors.
    """
    entries = {entry["name"]: entry for entry in yaml.safe_load(FILE.read_text())["deployments"]}
    entries[TRAINS]["work_pool"] = {"name": pool}
    return [_deployment(model, entry, forms[name], tags, schedules.get(name)) for name, entry in entries.items()]


def apply(wanted: Sequence[RunnerDeployment], *, dry_run: bool, tell: Callable[[Change], None]) -> list[Change]:
    """Create or update deployments on the server; return the changes, or those it would make, each passed to `tell`."""
    changes = []
    with get_client(sync_client=True) as client:
        for deployment in wanted:
            change = _difference(client, deployment)
            if change != "nothing" and not dry_run:
                deployment.apply()
            (schedule,) = deployment.schedules or []
            changes.append(Change(deployment.full_name, change, _schedule_text(schedule),
                                  str(deployment.work_pool_name), deployment.parameters or {}))
            tell(changes[-1])
    return changes


def has_worker(pool: str) -> bool:
    """Return whether a worker of the pool has told the server lately that it is there."""
    with get_client(sync_client=True) as client:
        return any(worker.status == WorkerStatus.ONLINE for worker in client.read_workers_for_work_pool(pool))


def start(deployment: str) -> UUID:
    """Have a worker run a deployment now; return the id of the flow run."""
    with get_client(sync_client=True) as client:
        return client.create_flow_run_from_deployment(client.read_deployment_by_name(deployment).id).id


def _deployment(model: str, entry: Mapping[str, Any], form: BaseModel, tags: Sequence[str],
                schedule: str | None) -> RunnerDeployment:
    (default,) = entry["schedules"]
    line = default["cron"] if schedule in (None, "off") else str(schedule)
    hint = f'--schedule {entry["name"]}="0 3 * * 0", or {entry["name"]}=off'
    if len(line.split()) != 5 and not line.startswith("@"):    # the last of six would be seconds, each of them a run
        raise UsageError(f"{line!r} is not a cron line of five fields: minute, hour, day, month, weekday", hint=hint)
    try:
        cron = Cron(line, timezone=default["timezone"], active=schedule != "off")
        croniter(line).get_next()    # raises ValueError where that is never
    except ValueError as error:
        raise UsageError(f"{line!r} is not a cron line that ever comes: {error}", hint=hint) from error
    deployment = RunnerDeployment.from_entrypoint(
        entry["entrypoint"], model, schedules=[cron], description=entry["description"], tags=list(tags),
        parameters={"config": form.model_dump(mode="json")}, work_pool_name=entry["work_pool"]["name"],
        concurrency_limit=ConcurrencyLimitConfig(**entry["concurrency_limit"]))
    # The code is installed where the worker runs. Without a storage folder, a worker would copy the one that
    # `xc deploy` was called in for each run, with its environment and home.
    deployment.storage = LocalStorage(form.home)  # type: ignore[attr-defined]
    return deployment


def _difference(client: SyncPrefectClient, wanted: RunnerDeployment) -> str:
    """Return in what the server's deployment differs from the wanted one, "created" where the server has none."""
    try:
        present = client.read_deployment_by_name(wanted.full_name)
    except ObjectNotFound:
        return "created"
    limit = present.global_concurrency_limit
    pairs = {
        "schedule": ([*map(_schedule_text, present.schedules)], [*map(_schedule_text, wanted.schedules or [])]),
        "pause": (present.paused, False),    # by a person, in Prefect's page; then no schedule counts
        "parameters": (present.parameters, wanted.parameters),
        "form": (present.parameter_openapi_schema, wanted._parameter_openapi_schema.model_dump(exclude_unset=True)),
        "description": (present.description, wanted.description), "tags": (present.tags, wanted.tags),
        "pool": (present.work_pool_name, wanted.work_pool_name), "code": (present.entrypoint, wanted.entrypoint),
        "limit": (limit and limit.limit, wanted.concurrency_limit),
        "folder": (present.pull_steps, wanted.storage and [wanted.storage.to_pull_step()])}
    return ", ".join(name for name, (old, new) in pairs.items() if old != new) or "nothing"


def _schedule_text(schedule: Any) -> str:
    """Return a schedule for people: its cron line and time zone, or "off"."""
    cron = schedule.schedule
    return f"{cron.cron} {cron.timezone}" if schedule.active else "off"


def _make_pool(client: SyncPrefectClient, name: str) -> bool:
    """Create a work pool of processes; return whether there was none."""
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(
            name=name, type="process", description=POOLS[name],
            base_job_template=ProcessWorker.get_default_base_job_template()))
        return True
    return False


def _watch() -> AutomationCore:
    """Return the automation that ends a run whose process was killed, which a server cannot see otherwise."""
    ended = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}
    return AutomationCore(
        name=WATCH, description="A run says every 30 s that it lives. One that has not for 75 s was killed.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"}, after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ended}, posture=Posture.Proactive, threshold=1, within=SILENCE),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", force=False,
                                    message="its process was killed; the same command resumes")])
