"""Writing into an MLflow run: metrics, params, tags, files, tables and stage runs."""

import getpass
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.files import file_digest
from tasks.tracking.mlflow_client import Client

MAX_KEYS = 100          # metric names of a run and its stages together
_BATCH = 90             # MLflow accepts 100 tags or params per request, and 1000 metrics
_log = logging.getLogger(__name__)


@dataclass
class Run:
    """The state of the run in MLflow, as far as it is known."""

    id: str
    experiment: str
    began: int
    status: str
    tags: dict[str, str]
    stages: dict[str, str]
    metric_names: set[str]


def stage_run(client: Client, run: Run, stage: str) -> str:
    """Return the id of the nested run of a stage, created if it does not exist."""
    if stage not in run.stages:
        tags = {"mlflow.parentRunId": run.id, "xc.stage": stage, "mlflow.user": user_name()}
        run.stages[stage] = client.create_run(run.experiment, run_name=stage, tags=tags).info.run_id
    return run.stages[stage]


def finish_run(status: str, description: str, client: Client, run: Run) -> None:
    """End the run and its stages; client and run come last, for `partial`."""
    if run.status == "FINISHED" and status == "SCHEDULED":
        return
    send_batches(client, run.id, tags={"mlflow.note.content": description})
    if run.status == status == "FINISHED":
        return    # it was finished before: it keeps its end time
    for run_id in (*run.stages.values(), run.id):
        client.set_terminated(run_id, status)
    run.status = status


def send_file(path: Path, folder: str | None, client: Client, run: Run) -> None:
    """Log a file to the run, unless it was logged with the same content."""
    name = f"{folder}/{path.name}" if folder else path.name
    _send_once(client, run, name, file_digest(path), lambda: client.log_artifact(run.id, str(path), folder))


def send_text(text: str, name: str, client: Client, run: Run) -> None:
    """Log a text as a file of the run, unless the same text was logged."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    _send_once(client, run, name, digest, lambda: client.log_text(run.id, text, name))


def send_table(client: Client, owner: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table like MLflow's `log_table`, which would append to an existing one."""
    columns = list(rows[0]) if rows else []
    table = {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
    client.log_text(owner, json.dumps(table), f"{name}.json")
    known = json.loads(client.get_run(owner).data.tags.get("mlflow.loggedArtifacts", "[]"))
    entry = {"path": f"{name}.json", "type": "table"}
    if entry not in known:
        client.set_tag(owner, "mlflow.loggedArtifacts", json.dumps([*known, entry]))


def _send_once(client: Client, run: Run, name: str, digest: str, send: Callable[[], None]) -> None:
    tag = f"xc.logged.{safe_name(name)}"
    if run.tags.get(tag) != digest[:12]:
        send()
        client.set_tag(run.id, tag, digest[:12])
        run.tags[tag] = digest[:12]


def send_batches(client: Client, run_id: str, *, metrics: Sequence[tuple[str, float, int, int]] = (),
                 params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
    """Send metrics, then params, then tags, in batches that MLflow accepts."""
    from mlflow.entities import Metric, Param, RunTag

    kinds: dict[str, list[Any]] = {
        "metrics": [Metric(*point) for point in metrics],
        "params": [Param(key, str(value)) for key, value in (params or {}).items()],
        "tags": [RunTag(key, str(value)) for key, value in (tags or {}).items()]}
    for kind, values in kinds.items():
        for start in range(0, len(values), _BATCH):
            client.log_batch(run_id, **{kind: values[start:start + _BATCH]})


def within_limit(run: Run, points: Sequence[tuple[str, float, int, int]]) -> list[tuple[str, float, int, int]]:
    """Return the points of at most MAX_KEYS metric names; a page with hundreds of charts would show nothing."""
    kept = []
    for point in points:
        if point[0] in run.metric_names or len(run.metric_names) < MAX_KEYS:
            run.metric_names.add(point[0])
            kept.append(point)
    if left_out := sorted({point[0] for point in points} - run.metric_names):
        _log.warning("MLflow shows %d metrics; left out, but in the artifacts: %s", MAX_KEYS, ", ".join(left_out[:5]))
    return kept


def group_seconds(tags: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of each group of steps, from the tags that hold them."""
    totals: dict[str, list[float]] = {}
    for key, value in tags.items():
        match value.split(" ") if key.startswith("xc.logged.") else []:
            case [_, group, seconds]:
                totals.setdefault(f"time/{group}", []).append(float(seconds))
    return {key: round(math.fsum(values), 1) for key, values in totals.items()}


def dataset_inputs(data: Mapping[str, Mapping[str, str]]) -> list[Any]:
    """Return data sets as MLflow's dataset inputs of a run."""
    from mlflow.entities import Dataset, DatasetInput

    return [DatasetInput(Dataset(name, facts["digest"][:36], "local", json.dumps({"uri": facts["path"]})))
            for name, facts in data.items()]


def user_name() -> str:
    """Return the name of the current user, as MLflow shows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):    # a container whose user has no name
        return str(os.getuid())


def metric_name(name: str) -> str:
    """Return a metric's name as MLflow accepts it: P@1 is P/1."""
    return re.sub(r"[^\w\-./: ]", "_", name.replace("@", "/"))


def safe_name(name: str) -> str:
    """Return a name that is valid as a tag's key and as a folder."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
