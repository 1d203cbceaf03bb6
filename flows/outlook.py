"""What a run would do, before it does it: on what data, which steps and why, how long and in how much memory, where."""

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.artifacts import Store
from tasks.plan import Pipeline, job_of
from tasks.report_text import span
from tasks.steps import Forecast, forecast, slug

UNIT = 1 if sys.platform == "darwin" else 1024    # bytes, of what the kernel calls the most that a process held


@dataclass(frozen=True)
class Outlook:
    """What is known of a run beforehand; memory: bytes that its processes held together the last time."""

    pipeline: Pipeline
    steps: list[Forecast]
    memory: int | None

    @property
    def todo(self) -> list[Forecast]:
        """The steps that are not reused."""
        return [each for each in self.steps if not each.reuse]

    @property
    def seconds(self) -> float | None:
        """How long the steps to run took the last time; None where one of them never ran here."""
        known = [each.seconds for each in self.todo if each.seconds is not None]
        return sum(known) if len(known) == len(self.todo) else None

    @property
    def size(self) -> int:
        """The bytes of the raw files."""
        return sum(path.stat().st_size for path in set(self.pipeline.data.files.values()))

    def lines(self) -> list[str]:
        """Return it for people: what is reused in one number, what is not with the first reason of each."""
        data, todo = self.pipeline.data, self.todo
        changed = "".join(f", {key}={value}" for key, value in self.pipeline.changed().items())
        out = [f"{data.name}: {data.format}, {self.size / 1e6:,.1f} MB, digest {self.pipeline.data_digest[:12]}",
               f"{self.pipeline.method_name}, preset {self.pipeline.preset}{changed}"]
        if not todo:
            return [*out, f"{len(self.steps)} steps, all reused: nothing they depend on has changed"]
        memory = "" if self.memory is None else f" and {self.memory / 1e9:,.1f} GB of memory"
        estimate = "no estimate yet: some steps never ran here" if self.seconds is None else \
            f"about {span(self.seconds)}{memory}, by the last run here"
        out.append(f"{len(self.steps)} steps: {len(self.steps) - len(todo)} reused, {len(todo)} to run, {estimate}")
        out += [f"    {each.step}: {each.reason}" for each in todo if not each.reason.startswith("after ")]
        following = sum(each.reason.startswith("after ") for each in todo)
        return [*out, f"    and {following} steps that come after"] if following else out

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; times in seconds, sizes in bytes."""
        data = self.pipeline.data
        return {"data": {"name": data.name, "folder": str(data.folder), "format": data.format, "bytes": self.size,
                         "digest": self.pipeline.data_digest},
                "steps": [asdict(each) for each in self.steps], "seconds": self.seconds, "memory": self.memory}


def look(pipeline: Pipeline, store: Store, until: int = 2) -> Outlook:
    """Return what a run would do in `store`: 0, prepare; 1, train, too; 2, evaluate, too."""
    groups = [pipeline.prepare, pipeline.train, [pipeline.evaluate]]
    held = store.get_ref("memory", slug(job_of(pipeline.data.name, pipeline.method_name, pipeline.preset))) or {}
    return Outlook(pipeline, forecast([step for group in groups[:until + 1] for step in group], store),
                   held.get("bytes"))


def note_memory(store: Store, method: str, preset: str, data: str, workers: int) -> None:
    """Keep the most that this process and its workers held, for the estimate of the next run of this kind."""
    own, child = (resource.getrusage(who).ru_maxrss * UNIT for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    name = slug(job_of(data, method, preset))
    before = (store.get_ref("memory", name) or {}).get("bytes", 0)
    store.set_ref("memory", name, {"bytes": max(before, own + workers * child)})


def places(home: Path, mlflow: str) -> Mapping[str, str]:
    """Return where a run of `home` would be seen, by the name of the server; no password is in it."""
    from flows.services import join
    from tasks.tracking import Tracker

    join(home)
    prefect = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return {"Prefect": prefect or "a server of its own, which ends with the run",
            "MLflow": Tracker(home, mlflow or None).address}
