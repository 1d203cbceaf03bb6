"""Deployments: what prefect.yaml lists, applied to a Prefect server with a user's parameters and schedules.

Nothing is applied that is there already, so it can be said what changed.
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
from prefect.automations import AutomationCore
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import ConcurrencyLimitConfig, StateType
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
from tasks.registry.tags import did_you_mean
from tasks.tracking.identity import earlier_places

FILE = files("flows") / "prefect.yaml"
POOLS = {"cpu": "Runs on processors alone", "gpu": "Runs that want a GPU"}
SILENCE = timedelta(seconds=75)    # of a run that says every 30 s that it lives
TRAINS = "retrain"
WATCH = "crash runs that fell silent"


def prepare_server() -> list[str]:
    """Give the Prefect server its pools, and have it mark runs as crashed that were killed; -> what was missing."""
    with get_client(sync_client=True) as client:
        made = [f"pool {name}" for name in POOLS if _make_pool(client, name)]
        if not client.read_automations_by_name(WATCH):
            client.create_automation(_watch())
            made.append(f"automation {WATCH!r}")
    return made


def follow_home(home: Path) -> list[str]:
    """Have the deployments of a home that was moved, and their runs to come, name it where it is; -> those changed.

    For the home's own server: on a shared one, an earlier folder may be a home of its own by now.
    """
    earlier, made = set(earlier_places(home)), list[str]()
    if not earlier:
        return made
    with get_client(sync_client=True) as client:
        for each in _all(client.read_deployments):
            if (parameters := _moved(each.parameters, earlier, home)) is not None:
                client.update_deployment(each.id, DeploymentUpdate(
                    parameters=parameters, pull_steps=[LocalStorage(str(home)).to_pull_step()]))
                made.append(each.name)
        waiting = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.SCHEDULED]}}})
        for run in _all(partial(client.read_flow_runs, flow_run_filter=waiting)):
            if (parameters := _moved(run.parameters, earlier, home)) is not None:
                client.update_flow_run(run.id, parameters=parameters)
    return made


def _all(read: Callable[..., list[Any]]) -> list[Any]:
    """Return everything that a client reads page by page."""
    found, page = list[Any](), read(offset=0)
    while page:
        found += page
        page = read(offset=len(found))
    return found


def _moved(parameters: Mapping[str, Any], earlier: set[str], home: Path) -> dict[str, Any] | None:
    """Return a deployment's parameters with the home where it is now; None where they name no earlier folder."""
    form = parameters.get("config")
    if not isinstance(form, Mapping) or form.get("home") not in earlier:
        return None
    return {**parameters, "config": {**form, "home": str(home)}}


def skip_missed() -> int:
    """Cancel what was due while no server was up, but for the last run of each deployment; -> how many.

    A server schedules a hundred runs ahead, and a worker would do every one that is late.
    """
    due = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.SCHEDULED]}},
                                        "next_scheduled_start_time": {"before_": datetime.now(UTC)}})
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(limit=200, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC, flow_run_filter=due)
        late = [each for each in found if each.auto_scheduled]
        latest = {each.deployment_id: each.id for each in late}
        missed = [each.id for each in late if latest[each.deployment_id] != each.id]
        for run in missed:
            client.set_flow_run_state(run, Cancelled(message="was due while the servers were down"), force=True)
        return len(missed)


@dataclass(frozen=True)
class Change:
    """What `apply` does to one deployment, and what it then is."""

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
    listed = {each["name"]: each for each in yaml.safe_load(FILE.read_text())["deployments"]}
    for name in schedules:
        if name not in listed:
            raise UsageError(f"no deployment {name!r}{did_you_mean(name, list(listed))}")
    listed[TRAINS]["work_pool"] = {"name": pool}
    return [_deployment(model, each, forms[name], tags, schedules.get(name, "")) for name, each in listed.items()]


def apply(wanted: Sequence[RunnerDeployment], *, dry_run: bool = False,
          tell: Callable[[Change], None] = lambda change: None) -> list[Change]:
    """Have the server hold the deployments as they are wanted; -> what that changes, or would, told one by one."""
    changes = []
    with get_client(sync_client=True) as client:
        for each in wanted:
            change = _difference(client, each)
            if change != "nothing" and not dry_run:
                each.apply()
            (schedule,) = each.schedules or []
            changes.append(Change(each.full_name, change, _said(schedule), str(each.work_pool_name),
                                  each.parameters or {}))
            tell(changes[-1])
    return changes


def start(deployment: str) -> UUID:
    """Have a worker run a deployment now; -> the id of the flow run."""
    with get_client(sync_client=True) as client:
        return client.create_flow_run_from_deployment(client.read_deployment_by_name(deployment).id).id


def _deployment(model: str, listed: Mapping[str, Any], form: BaseModel, tags: Sequence[str],
                schedule: str) -> RunnerDeployment:
    (given,) = listed["schedules"]
    try:
        cron = Cron(given["cron"] if schedule in ("", "off") else schedule, timezone=given["timezone"],
                    active=schedule != "off")
    except ValueError as error:
        raise UsageError(f"{schedule!r} is not a cron line", hint=f'--schedule {listed["name"]}="0 3 * * 0"') from error
    made = RunnerDeployment.from_entrypoint(
        listed["entrypoint"], model, schedules=[cron], description=listed["description"], tags=list(tags),
        parameters={"config": form.model_dump(mode="json")}, work_pool_name=listed["work_pool"]["name"],
        concurrency_limit=ConcurrencyLimitConfig(**listed["concurrency_limit"]))
    # The code is installed where the worker runs. Without a folder to go to, a worker copies the one that `xc deploy`
    # was called in for each run, environment and home and all.
    made.storage = LocalStorage(form.home)  # type: ignore[attr-defined]
    return made


def _difference(client: SyncPrefectClient, wanted: RunnerDeployment) -> str:
    """Return in what the server's deployment differs from the one that is wanted: "created" where it has none."""
    try:
        found = client.read_deployment_by_name(wanted.full_name)
    except ObjectNotFound:
        return "created"
    limit = found.global_concurrency_limit
    pairs = {
        "schedule": ([_said(each) for each in found.schedules], [_said(each) for each in wanted.schedules or []]),
        "parameters": (found.parameters, wanted.parameters),
        "form": (found.parameter_openapi_schema, wanted._parameter_openapi_schema.model_dump(exclude_unset=True)),
        "description": (found.description, wanted.description), "tags": (found.tags, wanted.tags),
        "pool": (found.work_pool_name, wanted.work_pool_name), "code": (found.entrypoint, wanted.entrypoint),
        "limit": (limit and limit.limit, wanted.concurrency_limit),
        "folder": (found.pull_steps, wanted.storage and [wanted.storage.to_pull_step()])}
    return ", ".join(name for name, (old, new) in pairs.items() if old != new) or "nothing"


def _said(schedule: Any) -> str:
    """Return a schedule as a person reads it."""
    cron = schedule.schedule
    return f"{cron.cron} {cron.timezone}" if schedule.active else "off"


def _make_pool(client: SyncPrefectClient, name: str) -> bool:
    """Make a pool of processes; -> whether there was none."""
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(
            name=name, type="process", description=POOLS[name],
            base_job_template=ProcessWorker.get_default_base_job_template()))
        return True
    return False


def _watch() -> AutomationCore:
    """Return the automation that ends a run whose process was killed: a server cannot see it otherwise."""
    ended = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}
    return AutomationCore(
        name=WATCH, description="A run says every 30 s that it lives. One that has not for 75 s was killed.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"}, after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ended}, posture=Posture.Proactive, threshold=1, within=SILENCE),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", force=False,
                                    message="its process was killed; the same command resumes")])
