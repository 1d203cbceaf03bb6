"""Tracking of runs in MLflow: stages, metrics and files, sent when MLflow answers.

MLflow decides no result and is no result's only copy. Each step's result is sent once, under the digest of its
artifact; what cannot be sent waits, and training continues. A run is found again by its key, so after a killed process,
an unreachable server or a deleted database, the same command sends everything that is missing.
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
from tasks.core.remote import without_passwords
from tasks.tracking import mlflow_run
from tasks.tracking.identity import identity, relocate
from tasks.tracking.mlflow_client import Client, first_line, make_database, probe, quiet_mlflow
from tasks.tracking.mlflow_run import Run, safe_name

VALIDATION = "validation/"    # prefix of an epoch's metrics on the validation split
RETRY_SECONDS = 30.0    # between attempts at a server that does not answer
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepMetrics:
    """What is sent to MLflow of the result of one step.

    metrics: one dict, or one per epoch with its "epoch"; named `<prefix>/<key>`, except those of the validation split,
    and sent to the nested run of `stage` if there is one. tables: name -> rows, sent as `<name>.json`. seconds: the
    step's duration, added up as `time/<group>`.
    """

    name: str
    digest: str
    metrics: Mapping[str, float] | Sequence[Mapping[str, float]] = ()
    stage: str | None = None
    prefix: str = ""    # "" means train for a stage, else test
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float | None = None
    group: str = "other"


class Tracker:
    """One run in MLflow: a database in HOME, or a server.

    What cannot be sent is logged as a warning and waits for the next call; `close` returns what is still missing.
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
        self._find_run: Callable[[Client], Run] | None = None    # finds or creates the run
        self._run: Run | None = None
        self._steps: dict[str, StepMetrics] = {}
        self._all: dict[str, Callable[[Client, Run], None]] = {}     # everything to send, by name
        self._todo: dict[str, Callable[[Client, Run], None]] = {}    # not sent yet
        self._retry_at, self._warned = 0.0, set[str]()

    @property
    def run_id(self) -> str | None:
        """The run's id in MLflow; None while MLflow has not answered."""
        return self._run.id if self._run else None

    @property
    def address(self) -> str:
        """The address of MLflow, without a password."""
        return self.uri if self.embedded else without_passwords(self.uri)

    @property
    def is_empty(self) -> bool:
        """Whether there is no database yet, whose creation would take seconds."""
        return self.embedded and not (self.home / "mlflow.db").exists()

    def link(self) -> str | None:
        """Return the address of the run's page; None without a server."""
        if self.embedded or self._run is None:
            return None
        return f"{self.address}/#/experiments/{self._run.experiment}/runs/{self._run.id}"

    def start(self, key: str, *, experiment: str, name: str, params: Mapping[str, str], config_yaml: str,
              data: Mapping[str, Mapping[str, str]], tags: Mapping[str, str]) -> str | None:
        """Continue the run with this key in `experiment`, or create it; return its id, None until MLflow answers.

        key: a digest of everything that decides the run. data: name -> {"path": ..., "digest": ...}.
        """
        self._find_run, self._run = partial(self._find_or_create_run, key=key, experiment=experiment, name=name,
                                            params=params, data=data, tags=tags), None
        self._steps, self._all, self._todo = {}, {}, {}
        self.log_text(config_yaml, "config.yaml")
        return self.run_id

    def sync(self, steps: Iterable[StepMetrics]) -> None:
        """Send the steps that MLflow does not have yet; call it with all of them, at any time."""
        self._steps |= {safe_name(step.name): step for step in steps}
        self._do("metrics", self._send_metrics)

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Log a file to the run, in `folder` if given."""
        self._do(f"{folder}/{path.name}" if folder else path.name, partial(mlflow_run.send_file, path, folder))

    def log_text(self, text: str, name: str) -> None:
        """Log a text as the file `name` of the run."""
        self._do(name, partial(mlflow_run.send_text, text, name))

    def finish(self, status: str, description: str) -> None:
        """End the run: FINISHED, FAILED, KILLED, or SCHEDULED where it is to be continued; a FINISHED run stays so.

        description: the verdict and the command.
        """
        self._do("the end of the run", partial(mlflow_run.finish_run, status, description))

    def close(self) -> list[str]:
        """Try once more to send what waits; return what is still missing. The next run with the same key sends it."""
        self._retry_at = 0.0
        if self._todo:
            self._flush()
        return list(self._todo)

    @contextmanager
    def required(self) -> Iterator[Client]:
        """Yield the client for work that needs MLflow. Raises ServerError where MLflow fails."""
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
            cause = error if self.address == self.uri else None    # logs show it, and MLflow's words repeat a password
            raise ServerError(f"MLflow at {self.address} failed: {first_line(error)}", hint=remedy) from cause

    def _do(self, what: str, action: Callable[[Client, Run], None]) -> None:
        self._all[what] = self._todo[what] = action
        self._flush()

    def _flush(self) -> None:
        """Send everything that waits, in order, for as long as MLflow answers."""
        if self._find_run is None:
            raise RuntimeError("start a run first")
        if time.monotonic() < self._retry_at:
            return
        what = "what is missing"
        try:
            client = self._connected()
            run = self._run = self._run or self._find_run(client)
            for what, action in list(self._todo.items()):
                try:
                    action(client, run)
                    del self._todo[what]
                except Exception as error:
                    self._warn(what, error)
                    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":    # the database is locked
                        raise
                    self._connected()
        except Exception as error:    # any error: tracking must not stop a training
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._warn(what, error)

    def _warn(self, what: str, error: Exception) -> None:
        """Log a warning of a failure, once per message."""
        if (line := first_line(error)) not in self._warned:
            self._warned.add(line)
            _log.warning("MLflow: %s; the run goes on, and MLflow gets %s later", line, what)

    def _connected(self) -> Client:
        """Return the client, once MLflow answers; creates a missing database."""
        if not self.embedded:
            probe(self.address)
        elif self.is_empty:
            make_database(self.home)
            if self._run is not None:
                self._run, self._todo = None, dict(self._all)
        if self._client is None:
            from mlflow import MlflowClient

            if self.embedded:
                relocate(self.home)
            else:
                identity(self.home)    # by which a moved home finds its runs and versions on the server
            quiet_mlflow()
            self._client = MlflowClient(self.uri, self.uri)
        return self._client

    def _find_or_create_run(self, client: Client, *, key: str, experiment: str, name: str, params: Mapping[str, str],
                            data: Mapping[str, Mapping[str, str]], tags: Mapping[str, str]) -> Run:
        experiment_id = self.experiment(client, experiment)
        runs = client.search_runs([experiment_id], f"tags.`xc.key` = '{key}'", order_by=["start_time ASC"])
        run = runs[0] if runs else client.create_run(experiment_id, run_name=name, tags={
            "xc.key": key, "mlflow.user": mlflow_run.user_name(), "mlflow.source.name": "xc"})
        if run.info.status in ("FAILED", "KILLED", "SCHEDULED"):
            client.update_run(run.info.run_id, "RUNNING")
        nested = client.search_runs([experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
        tags = {**tags, **{f"xc.data.{safe_name(name)}": facts["digest"] for name, facts in data.items()}}
        mlflow_run.send_batches(
            client, run.info.run_id,
            tags={key: value for key, value in tags.items() if run.data.tags.get(key) != value},
            params={key: value for key, value in params.items() if key not in run.data.params})
        client.log_inputs(run.info.run_id, datasets=mlflow_run.dataset_inputs(data))
        return Run(run.info.run_id, experiment_id, run.info.start_time, run.info.status, dict(run.data.tags),
                   {stage.data.tags["xc.stage"]: stage.info.run_id for stage in nested},
                   {key for tracked in (run, *nested) for key in tracked.data.metrics})

    def experiment(self, client: Client, name: str) -> str:
        """Return the id of the experiment, created or restored if necessary."""
        if (known := client.get_experiment_by_name(name)) is None:
            place = str(self.home / "mlartifacts" / safe_name(name)) if self.embedded else None
            return str(client.create_experiment(name, artifact_location=place))
        if known.lifecycle_stage == "deleted":
            client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def _send_metrics(self, client: Client, run: Run) -> None:
        """Send metrics first and the tags that record them last; a metric that is sent twice is the same point."""
        fresh = {slug: step for slug, step in self._steps.items()
                 if run.tags.get(f"xc.logged.{slug}", "")[:12] != step.digest[:12]}
        tags: dict[str, str] = {}
        for slug, step in fresh.items():
            target = run.id if step.stage is None else mlflow_run.stage_run(client, run, step.stage)
            mlflow_run.send_batches(client, target, metrics=mlflow_run.within_limit(run, self._points(run, step)))
            for name, rows in step.tables.items():
                mlflow_run.send_table(client, target, name, rows)
            timing = "" if step.seconds is None else f" {safe_name(step.group)} {step.seconds:.1f}"
            tags[f"xc.logged.{slug}"] = step.digest[:12] + timing
        sent, now = mlflow_run.group_seconds(run.tags), int(time.time() * 1000)
        times = [(key, value, now, 0) for key, value in mlflow_run.group_seconds(run.tags | tags).items()
                 if sent.get(key) != value]
        mlflow_run.send_batches(client, run.id, metrics=mlflow_run.within_limit(run, times), tags=tags)
        run.tags |= tags

    def _points(self, run: Run, step: StepMetrics) -> list[tuple[str, float, int, int]]:
        """Return (name, value, time, step) of a step's metrics."""
        rows = [step.metrics] if isinstance(step.metrics, Mapping) else step.metrics
        prefix, stamp = step.prefix or ("train" if step.stage else "test"), self._stamp(run, step.digest)
        return [(mlflow_run.metric_name(key if key.startswith(VALIDATION) else f"{prefix}/{key}"), float(value), stamp,
                 int(row.get("epoch", 0)))
                for row in rows for key, value in row.items() if key != "epoch" and isinstance(value, int | float)]

    def _stamp(self, run: Run, digest: str) -> int:
        """Return when an artifact was made, in ms, so that sending it again gives the same point."""
        with suppress(OSError):
            return int((self.home / "objects" / digest / "MANIFEST.json").stat().st_mtime * 1000)
        return run.began
