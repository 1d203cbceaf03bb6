"""What a run tells Prefect of itself: its tags, how far it is, and how one ended that was killed."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Crashed

from tasks.plan import Pipeline

KILLED = "its process was killed; the same command resumes"


class Progress:
    """How many steps of a run are done, as an artifact that the UI shows as a bar."""

    def __init__(self, total: int) -> None:
        self.total, self.done = max(total, 1), 0
        self.artifact: Any = create_progress_artifact(0.0, key="progress", description=f"steps done, of {total}")

    def advance(self) -> None:
        """Count one step more."""
        self.done += 1
        update_progress_artifact(self.artifact, 100.0 * self.done / self.total)


def tag_this_run(of: Pipeline) -> None:
    """Give the present flow run the tags of what it does: method, data and preset.

    Not by `prefect.tags`, which would give them to tasks too. A task with a tag asks the server for a slot of it; where
    another part of the server writes to SQLite just then, that is refused, and asked again after 2 s.
    """
    tags = {f"method:{of.method_name}", f"data:{of.data.name}", f"preset:{of.preset}"}
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(flow_run.id))
        kept = {tag for tag in found.tags if tag.partition(":")[0] not in {each.partition(":")[0] for each in tags}}
        client.update_flow_run(found.id, tags=kept | tags)


def page_of_this_run() -> str:
    """Return where the run that a worker made this process for can be seen and cancelled; "" for one by hand."""
    run, api = os.environ.get("PREFECT__FLOW_RUN_ID"), os.environ.get("PREFECT_API_URL", "")
    return f"{api.removesuffix('/api')}/runs/flow-run/{run}" if run else ""


def unwatched() -> AbstractContextManager[Any]:
    """Run flows without heartbeats: for a server that ends with them. The end of each waits up to 1 s for its pulse."""
    return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})


@contextmanager
def seen_to_its_end(home: Path) -> Iterator[None]:
    """Note the present flow run while the block lasts, after ending the one whose block was never left.

    Only one run at a time uses a home, so a note that is there is of a run that was killed. Where a server watches
    heartbeats, it has ended the flow run by now, though not its tasks; a server that lasts for a run never does.
    """
    note = home / "run" / "flow-run"
    note.parent.mkdir(0o700, exist_ok=True)
    with suppress(FileNotFoundError, ValueError, KeyError):
        before = json.loads(note.read_text())
        # A copy of the home has the note too, and the other home's run may be at work.
        with get_client(sync_client=True) as client, suppress(ObjectNotFound):
            if before.get("home", str(home)) == str(home):
                _crash(client, UUID(before["id"]))
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"id": str(flow_run.id), "home": str(home)}))
    os.replace(part, note)
    try:
        yield
    except Exception:
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)    # not after a signal, which may have come to the server too


def _crash(client: SyncPrefectClient, run: UUID) -> None:
    """Mark a flow run, what it ran and their tasks as crashed, as far as they have not ended."""
    state = client.read_flow_run(run).state
    if state is not None and state.is_final() and not state.is_crashed():
        return
    below = client.read_flow_runs(flow_run_filter=FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run])))
    runs = [run, *(each.id for each in below)]
    for task in client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=runs))):
        if task.state is None or not task.state.is_final():
            client.set_task_run_state(task.id, Crashed(message=KILLED), force=True)
    for each in client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=runs))):
        if each.state is None or not each.state.is_final():
            client.set_flow_run_state(each.id, Crashed(message=KILLED), force=True)
