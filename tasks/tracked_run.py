"""A run as MLflow shows it: started with its settings, sent the result of each step, ended with its outcome."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tasks.core.processes import process_name
from tasks.core.step import METRICS_FILE, Step, StepResult
from tasks.core.store import Store
from tasks.plan import Pipeline
from tasks.registry.register import check_owner
from tasks.registry.tags import RUN_HOME
from tasks.runs import CHANGED, COMMAND, PROCESS
from tasks.tracking.tracker import StepMetrics, Tracker


class TrackedRun:
    """A run, and the tracker that sends it to MLflow."""

    def __init__(self, config: Any, pipeline: Pipeline, store: Store, say: Callable[[str], None]) -> None:
        self.config, self.pipeline, self.store, self.say = config, pipeline, store, say
        self.name = config.name or pipeline.data.name
        self.tracker = Tracker(store.home, config.mlflow or None)
        self.step_metrics: dict[str, StepMetrics] = {}
        self.finished = False

    def __enter__(self) -> "TrackedRun":
        pipeline = self.pipeline
        about = pipeline.about()
        self.tracker.start(
            pipeline.key, experiment=pipeline.data.name, name=f"{pipeline.method_name} · {pipeline.data.name}",
            params={"method": pipeline.method_name, "preset": pipeline.preset,
                    **({"texts with feedback": str(len(pipeline.feedback))} if pipeline.feedback else {}),
                    **{key: str(value) for key, value in about["settings"].items()}},
            config_yaml=yaml.safe_dump({key: about[key] for key in ("method", "preset", "settings")}, sort_keys=True),
            data={pipeline.data.name: {"path": pipeline.source, "digest": pipeline.data_digest}},
            tags={"xc.method": pipeline.method_name, "xc.data": pipeline.data.name, "xc.preset": pipeline.preset,
                  CHANGED: json.dumps({key: str(value) for key, value in about["changed"].items()}),
                  COMMAND: self.config.command, RUN_HOME: str(self.store.home), PROCESS: process_name(os.getpid())})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            interrupted = getattr(error, "exit_code", 1) == 130 or isinstance(error, KeyboardInterrupt)
            self.tracker.finish("KILLED" if interrupted else "FAILED", f"{error}\n\n    {self.config.command}")
        elif not self.finished:
            self.tracker.finish("SCHEDULED", f"trained, not evaluated\n\n    {self.config.command}")
        self.tracker.close()

    def check_owner(self) -> None:
        """Raise UsageError where the default model name belongs to another home with other data."""
        if not self.config.name:
            check_owner(self.tracker, self.name, self.pipeline.data_digest)

    def note(self, step: Step, done: StepResult) -> None:
        """Send a finished step to MLflow; what cannot be sent now is sent with the next step."""
        folder = self.store.open(done.artifact, whole=False)
        metrics = read_json(folder / METRICS_FILE) or []
        self.step_metrics[step.name] = StepMetrics(
            step.name, done.artifact.digest, metrics, stage=step.name.partition(" ")[0]
            if step.kind == "checkpoint" else None, prefix=_PREFIXES.get(step.kind, ""),
            tables={"decile": table} if (table := read_json(folder / "deciles.json")) else {},
            seconds=None if done.reused else done.seconds, group=_GROUPS.get(step.kind, "prepare"))
        self.tracker.sync(self.step_metrics.values())


_PREFIXES = {"retriever": "fusion", "mined": "mined"}
_GROUPS = {"states": "train", "checkpoint": "train", "mined": "refresh", "vectors": "refresh", "retriever": "retriever",
           "evaluation": "evaluate"}


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds, None where there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None
