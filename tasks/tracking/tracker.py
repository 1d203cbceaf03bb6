"""MLflow as an index of what the store holds: runs, their stages, metrics, files.

Nothing here decides a result, and nothing is kept here alone. Each step's result is sent once, under the digest of its
artifact; what cannot be sent waits, and training goes on. A run is found again by its key, so a killed process, a
server that was away and a deleted database all end the same: run the command again, and everything is there.
"""

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.core.files import full_disk
from tasks.tracking.identity import identity
from tasks.tracking.mlflow_client import Client, first_line, make_database, probe, quiet_mlflow, without_passwords
from tasks.tracking.mlflow_run import (
    Run,
    dataset_inputs,
    finish_run,
    group_seconds,
    metric_name,
    safe_name,
    send_batches,
    send_file,
    send_table,
    send_text,
    stage_run,
    user_name,
    with_room,
)
from tasks.tracking.relocation import relocate

VALIDATION = "validation/"    # what keys begin with that an epoch of training has of the validation split
RETRY_SECONDS = 30.0    # between attempts at a server that does not answer
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What one step has to show.

    metrics: one dict, or one an epoch with its "epoch" in it; the numbers are named `<prefix>/<key>`, but those of the
    validation split, and go to the
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
        quiet_mlflow()
        self._client: Client = None
        self._spec: _Spec | None = None
        self._run: Run | None = None
        self._entries: dict[str, Entry] = {}
        self._all: dict[str, Callable[[Client, Run], None]] = {}     # what was asked for, by name
        self._todo: dict[str, Callable[[Client, Run], None]] = {}    # and is not done
        self._retry_at, self._told = 0.0, set[str]()

    @property
    def run_id(self) -> str | None:
        """The run in MLflow; None while MLflow has not answered."""
        return self._run.id if self._run else None

    @property
    def address(self) -> str:
        """Where MLflow is, without a password."""
        return self.uri if self.embedded else without_passwords(self.uri)

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
        self._entries |= {safe_name(entry.step): entry for entry in entries}
        self._do("metrics", self._send_entries)

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Show a file with the run, in `folder` where one is named."""
        self._do(f"{folder}/{path.name}" if folder else path.name, partial(send_file, path, folder))

    def log_text(self, text: str, name: str) -> None:
        """Show a text as the file `name` with the run."""
        self._do(name, partial(send_text, text, name))

    def finish(self, status: str, description: str) -> None:
        """End the run: FINISHED, FAILED, KILLED, or SCHEDULED where it is left to go on; one that is FINISHED stays so.

        The description is the verdict and the command.
        """
        self._do("the end of the run", partial(finish_run, status, description))

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
        except (MlflowException, SQLAlchemyError, CommandError, sqlite3.Error, OSError) as error:
            if self.embedded and (full := full_disk(error, self.home)) is not None:
                raise full from error
            remedy = "see the server's log"
            if self.embedded:
                remedy = f"where it is damaged, move it away; the next run rebuilds it: {self.home}/mlflow.db"
            elif "error code 401" in str(error):
                remedy = "sign in by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise ServerError(f"MLflow at {self.address} failed: {first_line(error)}", hint=remedy) from error

    def _do(self, what: str, action: Callable[[Client, Run], None]) -> None:
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
        if (line := first_line(error)) not in self._told:
            self._told.add(line)
            _log.warning("MLflow: %s; the run goes on, and MLflow gets %s later", line, what)

    def _connected(self) -> Client:
        """Return the client, once MLflow answers; a database that is not there is made."""
        if not self.embedded:
            probe(self.address)
        elif not (self.home / "mlflow.db").exists():
            make_database(self.home)
            if self._run is not None:
                self._run, self._todo = None, dict(self._all)
        if self._client is None:
            from mlflow import MlflowClient

            if self.embedded:
                relocate(self.home)
            else:
                identity(self.home)    # by which the home knows its runs and versions there, once it was moved
            quiet_mlflow()
            self._client = MlflowClient(self.uri, self.uri)
        return self._client

    def _open(self, client: Client, spec: _Spec) -> Run:
        experiment = self.experiment(client, spec.experiment)
        found = client.search_runs([experiment], f"tags.`xc.key` = '{spec.key}'", order_by=["start_time ASC"])
        run = found[0] if found else client.create_run(experiment, run_name=spec.name, tags={
            "xc.key": spec.key, "mlflow.user": user_name(), "mlflow.source.name": "xc"})
        if run.info.status in ("FAILED", "KILLED", "SCHEDULED"):
            client.update_run(run.info.run_id, "RUNNING")
        nested = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
        tags = dict(spec.tags) | {f"xc.data.{safe_name(name)}": each["digest"] for name, each in spec.data.items()}
        send_batches(client, run.info.run_id,
                     tags={key: value for key, value in tags.items() if run.data.tags.get(key) != value},
                     params={key: value for key, value in spec.params.items() if key not in run.data.params})
        client.log_inputs(run.info.run_id, datasets=dataset_inputs(spec.data))
        return Run(run.info.run_id, experiment, run.info.start_time, run.info.status, dict(run.data.tags),
                   {each.data.tags["xc.stage"]: each.info.run_id for each in nested},
                   {key for each in (run, *nested) for key in each.data.metrics})

    def experiment(self, client: Client, name: str) -> str:
        """Return the id of the experiment, made or restored where it has to be."""
        if (found := client.get_experiment_by_name(name)) is None:
            place = str(self.home / "mlartifacts" / safe_name(name)) if self.embedded else None
            return str(client.create_experiment(name, artifact_location=place))
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _send_entries(self, client: Client, run: Run) -> None:
        """Send metrics first and the tags that remember them last; sent twice, a metric is one and the same point."""
        fresh = {slug: entry for slug, entry in self._entries.items()
                 if run.tags.get(f"xc.logged.{slug}", "")[:12] != entry.digest[:12]}
        tags: dict[str, str] = {}
        for slug, entry in fresh.items():
            owner = run.id if entry.stage is None else stage_run(client, run, entry.stage)
            send_batches(client, owner, metrics=with_room(run, self._points(run, entry)))
            for name, rows in entry.tables.items():
                send_table(client, run, owner, name, rows)
            spent = "" if entry.seconds is None else f" {safe_name(entry.group)} {entry.seconds:.1f}"
            tags[f"xc.logged.{slug}"] = entry.digest[:12] + spent
        sent, now = group_seconds(run.tags), int(time.time() * 1000)
        times = [(key, value, now, 0) for key, value in group_seconds(run.tags | tags).items()
                 if sent.get(key) != value]
        send_batches(client, run.id, metrics=with_room(run, times), tags=tags)
        run.tags |= tags

    def _points(self, run: Run, entry: Entry) -> list[tuple[str, float, int, int]]:
        """Return (name, value, time, step) of an entry's metrics."""
        rows = [entry.metrics] if isinstance(entry.metrics, Mapping) else entry.metrics
        prefix, stamp = entry.prefix or ("train" if entry.stage else "test"), self._stamp(run, entry.digest)
        return [(metric_name(key if key.startswith(VALIDATION) else f"{prefix}/{key}"), float(value), stamp,
                 int(row.get("epoch", 0)))
                for row in rows for key, value in row.items() if key != "epoch" and isinstance(value, int | float)]

    def _stamp(self, run: Run, digest: str) -> int:
        """Return when an artifact was made, in ms: a fact that does not change when it is sent again."""
        with suppress(OSError):
            return int((self.home / "objects" / digest / "MANIFEST.json").stat().st_mtime * 1000)
        return run.began
