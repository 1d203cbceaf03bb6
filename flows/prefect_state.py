"""A run's state in Prefect: its tags, its page, and marking killed runs as crashed."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Crashed

from tasks.plan import Pipeline

KILLED = "its process was killed; the same command resumes"


def tag_this_run(pipeline: Pipeline) -> None:
    """Tag the present flow run with its method, data and preset.

    Not by `prefect.tags`, which would tag tasks too. A task with a tag requests a slot of that tag from the server,
    which refuses while another part of it writes to SQLite; the task then waits 2 s.
    """
    tags = {f"method:{pipeline.method_name}", f"data:{pipeline.data.name}", f"preset:{pipeline.preset}"}
    with get_client(sync_client=True) as client:
        run, kinds = client.read_flow_run(UUID(flow_run.id)), {tag.partition(":")[0] for tag in tags}
        others = {tag for tag in run.tags if tag.partition(":")[0] not in kinds}
        client.update_flow_run(run.id, tags=others | tags)


def page_of_this_run() -> str:
    """Return the address of the flow run that a worker started this process for; "" for a run started by hand."""
    run, api = os.environ.get("PREFECT__FLOW_RUN_ID"), os.environ.get("PREFECT_API_URL", "")
    return f"{api.removesuffix('/api')}/runs/flow-run/{run}" if run else ""


def without_heartbeats() -> AbstractContextManager[Any]:
    """Run flows without heartbeats, for a server that ends with them: each flow's end would wait up to 1 s for one."""
    return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})


@contextmanager
def noted_until_it_ends(home: Path) -> Iterator[None]:
    """Note the present flow run in HOME/run until the block is done; first mark a run noted earlier as crashed.

    Only one run at a time uses a home, so an earlier note is of a run that was killed or failed. A server that watches
    heartbeats has ended that flow run by now, though not its tasks; a server that lasts for one run never does.
    """
    note = home / "run" / "flow-run"
    note.parent.mkdir(0o700, exist_ok=True)
    with suppress(FileNotFoundError, ValueError, KeyError):
        earlier = json.loads(note.read_text())
        # A copy of the home has the note too, and the other home's run may still be running.
        with get_client(sync_client=True) as client, suppress(ObjectNotFound):
            # A failed one that is run again in Prefect's page is the present one.
            if earlier.get("home", str(home)) == str(home) and earlier["id"] != str(flow_run.id):
                _mark_crashed(client, UUID(earlier["id"]))
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"id": str(flow_run.id), "home": str(home)}))
    os.replace(part, note)
    yield
    note.unlink(missing_ok=True)    # not after an error or a signal: the server may be gone, and not know how it ended


def _mark_crashed(client: SyncPrefectClient, run: UUID) -> None:
    """Mark a flow run, its subflows and their tasks as crashed, except those that have ended."""
    state = client.read_flow_run(run).state
    if state is not None and state.is_final() and not state.is_crashed():
        return
    subflows = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(
        {"parent_flow_run_id": {"any_": [run]}}))
    runs = [run, *(subflow.id for subflow in subflows)]
    unfinished = {"type": {"any_": [kind for kind in StateType if kind not in TERMINAL_STATES]}}    # few; a page is 200
    of_runs = {"flow_run_id": {"any_": runs}, "state": unfinished}
    for task in client.read_task_runs(task_run_filter=TaskRunFilter.model_validate(of_runs)):
        client.set_task_run_state(task.id, Crashed(message=KILLED), force=True)
    flows = {"id": {"any_": runs}, "state": unfinished}
    for flow in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(flows)):
        client.set_flow_run_state(flow.id, Crashed(message=KILLED), force=True)
