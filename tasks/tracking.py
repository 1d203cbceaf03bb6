"""MLflow as an index of what the store holds: runs, their stages, metrics, files.

Nothing here decides a result, and nothing is kept here alone. Each step's result is sent once, under the digest of its
artifact; what cannot be sent waits, and training goes on. A run is found again by its key, so a killed process, a
server that was away and a deleted database all end the same: run the command again, and everything is there.
"""

import getpass
import hashlib
import json
import logging
import math
import os
import re
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.artifacts import file_digest

MAX_KEYS = 60           # names of metrics, of a run and its stages together
RETRY_SECONDS = 30.0    # between attempts at a server that does not answer
PROBE_SECONDS = 3.0
_BATCH = 90             # MLflow takes 100 tags or params a request, and 1000 metrics
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "CRITICAL",
                "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
                "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
                "MLFLOW_UV_AUTO_DETECT": "false"}    # else a uv.lock in the current folder goes into each model
_log = logging.getLogger(__name__)
Client = Any            # mlflow.MlflowClient; importing it takes seconds, so only those who track do


@dataclass(frozen=True)
class Entry:
    """What one step has to show.

    metrics: one dict, or one an epoch with its "epoch" in it; the numbers are named `<prefix>/<key>`, and go to the
    nested run of `stage` where there is one. tables: name -> rows, shown as `<name>.json`. seconds: what the step took,
    added up as `time/<group>`.
    """

    step: str
    digest: str
    metrics: Mapping[str, float] | Sequence[Mapping[str, float]] = ()
    stage: str | None = None
    prefix: str = ""    # "" means train for a stage, else test
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float | None = None
    group: str = "other"


@dataclass(frozen=True)
class _Spec:
    key: str
    experiment: str
    name: str
    params: Mapping[str, str]
    data: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, str]


@dataclass
class _Run:
    """What MLflow is known to hold of the run."""

    id: str
    experiment: str
    began: int
    status: str
    tags: dict[str, str]
    stages: dict[str, str]
    keys: set[str]


class Tracker:
    """One run in MLflow: a database in HOME, or a server.

    What cannot be sent is a warning and waits for the next call; `close` says what is still missing at the end.
    """

    def __init__(self, home: Path, uri: str | None = None) -> None:
        self.home, self.embedded = Path(home).absolute(), uri is None
        if uri is None and set("?#%") & set(str(self.home)):
            raise UsageError(f"MLflow cannot use a database in {self.home}", hint="choose a HOME without ?, # and %")
        if uri is not None and not re.match(r"https?://[^/]", uri):
            raise UsageError(f"{uri!r} is not the address of an MLflow server",
                             hint="give http://HOST:PORT, or no address for a database in HOME")
        self.uri = f"sqlite:///{self.home}/mlflow.db" if uri is None else uri.rstrip("/")
        _quiet()
        self._client: Client = None
        self._spec: _Spec | None = None
        self._run: _Run | None = None
        self._entries: dict[str, Entry] = {}
        self._all: dict[str, Callable[[Client, _Run], None]] = {}     # what was asked for, by name
        self._todo: dict[str, Callable[[Client, _Run], None]] = {}    # and is not done
        self._retry_at, self._told = 0.0, set[str]()

    @property
    def run_id(self) -> str | None:
        """The run in MLflow; None while MLflow has not answered."""
        return self._run.id if self._run else None

    @property
    def address(self) -> str:
        """Where MLflow is, without a password."""
        parts = urlsplit(self.uri)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if not self.embedded else self.uri

    def link(self) -> str | None:
        """Return the address of the run's page; None without a server."""
        if self.embedded or self._run is None:
            return None
        return f"{self.address}/#/experiments/{self._run.experiment}/runs/{self._run.id}"

    def start(self, key: str, *, experiment: str, name: str, params: Mapping[str, str], config_yaml: str,
              data: Mapping[str, Mapping[str, str]], tags: Mapping[str, str]) -> str | None:
        """Continue the run of this key in `experiment`, or create it; -> its id, None while MLflow does not answer.

        key: a digest of everything that decides the run. data: name -> {"path": ..., "digest": ...}.
        """
        self._spec, self._run = _Spec(key, experiment, name, params, data, tags), None
        self._entries, self._all, self._todo = {}, {}, {}
        self.log_text(config_yaml, "config.yaml")
        return self.run_id

    def sync(self, entries: Iterable[Entry]) -> None:
        """Send each entry that MLflow does not have yet; it is meant to be called with all of them, at any time."""
        self._entries |= {_slug(entry.step): entry for entry in entries}
        self._do("metrics", self._send_entries)

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Show a file with the run, in `folder` where one is named."""
        self._do(f"{folder}/{path.name}" if folder else path.name, partial(_send_file, path, folder))

    def log_text(self, text: str, name: str) -> None:
        """Show a text as the file `name` with the run."""
        self._do(name, partial(_send_text, text, name))

    def finish(self, status: str, description: str) -> None:
        """End the run: FINISHED, FAILED or KILLED; the description is the verdict and the command."""
        self._do("the end of the run", partial(_finish, status, description))

    def close(self) -> list[str]:
        """Try once more to send what waits; -> what MLflow does not have. The next run of the same key sends it."""
        self._retry_at = 0.0
        if self._todo:
            self._flush()
        return list(self._todo)

    @contextmanager
    def required(self) -> Iterator[Client]:
        """Yield the client to somebody who cannot do without; ServerError where MLflow fails."""
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield self._connected()
        except ProjectError:
            raise
        except (MlflowException, SQLAlchemyError, CommandError, OSError) as error:
            remedy = f"where it is damaged, move it away; the next run rebuilds it: {self.home}/mlflow.db"
            raise ServerError(f"MLflow at {self.address} failed: {_first_line(error)}",
                              hint=remedy if self.embedded else "see the server's log") from error

    def _do(self, what: str, action: Callable[[Client, _Run], None]) -> None:
        self._all[what] = self._todo[what] = action
        self._flush()

    def _flush(self) -> None:
        """Do everything that waits, in order, for as long as MLflow answers."""
        if self._spec is None:
            raise RuntimeError("start a run first")
        if time.monotonic() < self._retry_at:
            return
        what = "what is missing"
        try:
            client = self._connected()
            run = self._run = self._run or self._open(client, self._spec)
            for what, action in list(self._todo.items()):
                try:
                    action(client, run)
                    del self._todo[what]
                except Exception as error:
                    self._tell(what, error)
                    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":    # the database is locked
                        raise
                    self._connected()
        except Exception as error:    # whatever it is: an index must not stop a training
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._tell(what, error)

    def _tell(self, what: str, error: Exception) -> None:
        """Warn of a failure, once a cause."""
        if (line := _first_line(error)) not in self._told:
            self._told.add(line)
            _log.warning("MLflow: %s; the run goes on, and MLflow gets %s later", line, what)

    def _connected(self) -> Client:
        """Return the client, once MLflow answers; a database that is not there is made."""
        if not self.embedded:
            _probe(self.address)
        elif not (self.home / "mlflow.db").exists():
            make_database(self.home)
            if self._run is not None:
                self._run, self._todo = None, dict(self._all)
        if self._client is None:
            from mlflow import MlflowClient

            _quiet()
            self._client = MlflowClient(self.uri, self.uri)
        return self._client

    def _open(self, client: Client, spec: _Spec) -> _Run:
        experiment = self.experiment(client, spec.experiment)
        found = client.search_runs([experiment], f"tags.`xc.key` = '{spec.key}'", order_by=["start_time ASC"])
        run = found[0] if found else client.create_run(experiment, run_name=spec.name, tags={
            "xc.key": spec.key, "mlflow.user": user_name(), "mlflow.source.name": "xc"})
        if run.info.status in ("FAILED", "KILLED"):
            client.update_run(run.info.run_id, "RUNNING")
        nested = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
        tags = dict(spec.tags) | {f"xc.data.{_slug(name)}": each["digest"] for name, each in spec.data.items()}
        _send(client, run.info.run_id, tags={key: value for key, value in tags.items() if key not in run.data.tags},
              params={key: value for key, value in spec.params.items() if key not in run.data.params})
        client.log_inputs(run.info.run_id, datasets=_datasets(spec.data))
        return _Run(run.info.run_id, experiment, run.info.start_time, run.info.status, dict(run.data.tags),
                    {each.data.tags["xc.stage"]: each.info.run_id for each in nested},
                    {key for each in (run, *nested) for key in each.data.metrics})

    def experiment(self, client: Client, name: str) -> str:
        """Return the id of the experiment, made or restored where it has to be."""
        if (found := client.get_experiment_by_name(name)) is None:
            place = str(self.home / "mlartifacts" / _slug(name)) if self.embedded else None
            return str(client.create_experiment(name, artifact_location=place))
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _send_entries(self, client: Client, run: _Run) -> None:
        """Send metrics first and the tags that remember them last; sent twice, a metric is one and the same point."""
        fresh = {slug: entry for slug, entry in self._entries.items()
                 if run.tags.get(f"xc.logged.{slug}", "")[:12] != entry.digest[:12]}
        tags: dict[str, str] = {}
        for slug, entry in fresh.items():
            owner = run.id if entry.stage is None else _stage(client, run, entry.stage)
            _send(client, owner, metrics=_kept(run, self._points(run, entry)))
            for name, rows in entry.tables.items():
                _send_table(client, run, owner, name, rows)
            spent = "" if entry.seconds is None else f" {_slug(entry.group)} {entry.seconds:.1f}"
            tags[f"xc.logged.{slug}"] = entry.digest[:12] + spent
        sent, now = _times(run.tags), int(time.time() * 1000)
        times = [(key, value, now, 0) for key, value in _times(run.tags | tags).items() if sent.get(key) != value]
        _send(client, run.id, metrics=_kept(run, times), tags=tags)
        run.tags |= tags

    def _points(self, run: _Run, entry: Entry) -> list[tuple[str, float, int, int]]:
        """Return (name, value, time, step) of an entry's metrics."""
        rows = [entry.metrics] if isinstance(entry.metrics, Mapping) else entry.metrics
        prefix, stamp = entry.prefix or ("train" if entry.stage else "test"), self._stamp(run, entry.digest)
        return [(_metric(f"{prefix}/{key}"), float(value), stamp, int(row.get("epoch", 0)))
                for row in rows for key, value in row.items() if key != "epoch" and isinstance(value, int | float)]

    def _stamp(self, run: _Run, digest: str) -> int:
        """Return when an artifact was made, in ms: a fact that does not change when it is sent again."""
        with suppress(OSError):
            return int((self.home / "objects" / digest / "MANIFEST.json").stat().st_mtime * 1000)
        return run.began


def _quiet() -> None:
    """Have MLflow say nothing, report nothing and wait for seconds, not minutes; what a user has set stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def make_database(home: Path) -> None:
    """Make HOME/mlflow.db whole or not at all; MLflow itself leaves half a schema behind when it is killed."""
    _quiet()
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Tracking
    from sqlalchemy import event

    new, final = home / "tmp" / uuid.uuid4().hex, home / "mlflow.db"
    new.parent.mkdir(parents=True, exist_ok=True)
    engine = create_sqlalchemy_engine(f"sqlite:///{new}")
    # 50 migrations sync the disk after each statement; one sync at the end is enough, since nobody knows the file yet
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    try:
        _initialize_tables(engine)
        engine.dispose()
        with new.open("rb") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, final)
    finally:
        new.unlink(missing_ok=True)
    for store in (Tracking, Registry):    # a database deleted under this process is still open in their pools
        if (pool := store._engine_map.get(f"sqlite:///{final}")) is not None:
            pool.dispose()


def _probe(address: str) -> None:
    """Raise ServerError unless something at the address answers within seconds; MLflow's own waits add up."""
    try:
        urllib.request.urlopen(f"{address}/health", timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        pass    # it answers; whether it lets us in, the next request shows
    except (OSError, HTTPException, ValueError) as error:
        raise ServerError(f"no MLflow server answers at {address}: {_first_line(error)}",
                          hint="start it, or give no address to use a database in HOME") from error


def _stage(client: Client, run: _Run, stage: str) -> str:
    """Return the nested run of a stage."""
    if stage not in run.stages:
        tags = {"mlflow.parentRunId": run.id, "xc.stage": stage, "mlflow.user": user_name()}
        run.stages[stage] = client.create_run(run.experiment, run_name=stage, tags=tags).info.run_id
    return run.stages[stage]


def _finish(status: str, description: str, client: Client, run: _Run) -> None:
    _send(client, run.id, tags={"mlflow.note.content": description})
    if run.status == status == "FINISHED":
        return    # it was finished before, and nothing was left to do: it keeps its time
    for each in (*run.stages.values(), run.id):
        client.set_terminated(each, status)
    run.status = status


def _send_file(path: Path, folder: str | None, client: Client, run: _Run) -> None:
    name = f"{folder}/{path.name}" if folder else path.name
    _once(client, run, name, file_digest(path), lambda: client.log_artifact(run.id, str(path), folder))


def _send_text(text: str, name: str, client: Client, run: _Run) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    _once(client, run, name, digest, lambda: client.log_text(run.id, text, name))


def _send_table(client: Client, run: _Run, owner: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table as `log_table` does, which would append it a second time."""
    columns = list(rows[0]) if rows else []
    table = {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
    client.log_text(owner, json.dumps(table), f"{name}.json")
    known = json.loads(client.get_run(owner).data.tags.get("mlflow.loggedArtifacts", "[]"))
    entry = {"path": f"{name}.json", "type": "table"}
    if entry not in known:
        client.set_tag(owner, "mlflow.loggedArtifacts", json.dumps([*known, entry]))


def _once(client: Client, run: _Run, name: str, digest: str, send: Callable[[], None]) -> None:
    tag = f"xc.logged.{_slug(name)}"
    if run.tags.get(tag) != digest[:12]:
        send()
        client.set_tag(run.id, tag, digest[:12])
        run.tags[tag] = digest[:12]


def _send(client: Client, run_id: str, *, metrics: Sequence[tuple[str, float, int, int]] = (),
          params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
    """Send in batches that MLflow takes: metrics, then params, then tags."""
    from mlflow.entities import Metric, Param, RunTag

    kinds: dict[str, list[Any]] = {
        "metrics": [Metric(*point) for point in metrics],
        "params": [Param(key, str(value)) for key, value in (params or {}).items()],
        "tags": [RunTag(key, str(value)) for key, value in (tags or {}).items()]}
    for kind, values in kinds.items():
        for start in range(0, len(values), _BATCH):
            client.log_batch(run_id, **{kind: values[start:start + _BATCH]})


def _kept(run: _Run, points: Sequence[tuple[str, float, int, int]]) -> list[tuple[str, float, int, int]]:
    """Return the points whose names there is room for; a page with hundreds of charts shows nothing."""
    kept = []
    for point in points:
        if point[0] in run.keys or len(run.keys) < MAX_KEYS:
            run.keys.add(point[0])
            kept.append(point)
    if left := sorted({point[0] for point in points} - run.keys):
        _log.warning("MLflow shows %d metrics; left out, but in the artifacts: %s", MAX_KEYS, ", ".join(left[:5]))
    return kept


def _times(tags: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of each group of steps, from the tags that remember them."""
    totals: dict[str, list[float]] = {}
    for key, value in tags.items():
        match value.split(" ") if key.startswith("xc.logged.") else []:
            case [_, group, seconds]:
                totals.setdefault(f"time/{group}", []).append(float(seconds))
    return {key: round(math.fsum(values), 1) for key, values in totals.items()}


def _datasets(data: Mapping[str, Mapping[str, str]]) -> list[Any]:
    from mlflow.entities import Dataset, DatasetInput

    return [DatasetInput(Dataset(name, each["digest"][:36], "local", json.dumps({"uri": each["path"]})))
            for name, each in data.items()]


def user_name() -> str:
    """Return who runs this, as MLflow shows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):    # a container whose user has no name
        return str(os.getuid())


def _metric(name: str) -> str:
    """Return a metric's name as MLflow takes it: P@1 is P/1."""
    return re.sub(r"[^\w\-./: ]", "_", name.replace("@", "/"))


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)


def _first_line(error: Exception) -> str:
    text = error.what if isinstance(error, ProjectError) else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0][:300]
