"""Preview of a run: its steps and the reason for each, the expected time and memory."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.memory import MemoryUse
from tasks.core.step import Forecast, forecast
from tasks.core.store import Store
from tasks.core.wording import data_size, duration, plural
from tasks.plan import Pipeline


@dataclass(frozen=True)
class Preview:
    """What is known of a run before it starts."""

    pipeline: Pipeline
    steps: list[Forecast]

    @property
    def todo(self) -> list[Forecast]:
        """The steps that are not reused."""
        return [step for step in self.steps if not step.reuse]

    @property
    def seconds(self) -> float | None:
        """Seconds that the steps to run took the last time; None where one of them never ran here."""
        known = [step.seconds for step in self.todo if step.seconds is not None]
        return sum(known) if len(known) == len(self.todo) else None

    @property
    def memory(self) -> MemoryUse | None:
        """What the run's processes held together at most when they last ran the steps to run, or all where none is.

        None where that is not known of one of them.
        """
        known = [step.peak_memory for step in self.todo or self.steps]
        return max((peak for peak in known if peak), key=lambda peak: peak.bytes) if known and all(known) else None

    @property
    def size(self) -> int:
        """The bytes of the raw files."""
        return sum(path.stat().st_size for path in set(self.pipeline.data.files.values()))

    def lines(self) -> list[str]:
        """Return the preview for people: how many steps are reused, and each other step with its first reason."""
        data, todo = self.pipeline.data, self.todo
        changed = "".join(f", {key}={value}" for key, value in self.pipeline.changed().items())
        out = [f"{data.name}: {data.format.name}, {data_size(self.size)}, digest {self.pipeline.data_digest[:12]}",
               f"{self.pipeline.method_name}, preset {self.pipeline.preset}{changed}"]
        if feedback := self.pipeline.feedback:
            out.append(f"with feedback on {plural(len(feedback), 'text')}, {feedback.journal}")
        if not todo:
            return [*out, f"{len(self.steps)} steps, all reused: nothing they depend on has changed"]
        memory = "" if self.memory is None else f" and {self.memory.bytes / 1e9:,.1f} GB of memory"
        estimate = "no estimate yet: some steps never ran here" if self.seconds is None else \
            f"about {duration(self.seconds)}{memory}, by the last run here"
        out.append(f"{len(self.steps)} steps: {len(self.steps) - len(todo)} reused, {len(todo)} to run, {estimate}")
        out += [f"    {step.step}: {step.reason}" for step in todo if not step.reason.startswith("after ")]
        following = sum(step.reason.startswith("after ") for step in todo)
        return [*out, f"    and {following} steps that come after"] if following else out

    def to_json(self) -> dict[str, Any]:
        """Return the preview as plain data; times in seconds, sizes in bytes."""
        data = self.pipeline.data
        return {"data": {"name": data.name, "folder": self.pipeline.source, "format": data.format.name,
                         "bytes": self.size, "digest": self.pipeline.data_digest},
                "steps": [{"step": step.step, "reuse": step.reuse, "reason": step.reason, "seconds": step.seconds,
                           "held": step.peak_memory and asdict(step.peak_memory)} for step in self.steps],
                "seconds": self.seconds,
                "memory": self.memory and self.memory.bytes, "memory of files": self.memory and self.memory.files}


def preview(pipeline: Pipeline, store: Store, until: int = 2) -> Preview:
    """Return what a run would do in `store`: 0, prepare; 1, train, too; 2, evaluate, too."""
    groups = [pipeline.prepare, pipeline.train, [pipeline.evaluate]]
    return Preview(pipeline, forecast([step for group in groups[:until + 1] for step in group], store))


def server_addresses(home: Path, mlflow: str) -> Mapping[str, str]:
    """Return the addresses, without passwords, where a run of `home` would be shown, by server name."""
    from flows.services.definitions import use_running_prefect
    from tasks.tracking.tracker import Tracker

    use_running_prefect(home)
    prefect = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return {"Prefect": prefect or "a server of its own, which ends with the run",
            "MLflow": Tracker(home, mlflow or None).address}
