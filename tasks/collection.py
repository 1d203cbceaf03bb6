"""Making room in HOME: what no run has asked for lately goes, unless a registered version or a process needs it."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import DamagedArtifact
from tasks.core.files import held, remove
from tasks.core.home import LOCK_SECONDS
from tasks.core.step import Step
from tasks.core.store import Artifact, Store
from tasks.registry.tags import registered_digests
from tasks.tracking.tracker import Tracker

DAY = 86_400.0
METRICS = "metrics.json"    # of an artifact, what was measured as it was made


@dataclass(frozen=True)
class Freed:
    """What was removed, or would be: how many things of a kind, and the bytes of each kind."""

    counts: Counter[str]
    sizes: Counter[str]


def spend_checkpoints(store: Store, training: Sequence[Step], done: Mapping[str, Artifact]) -> None:
    """Remove the checkpoints that only rounds of training read, once the last of `training`, the retriever, stands.

    What was measured stays, and so does the last checkpoint of each stage: the retriever is built from those, and so
    are later stages of runs with other settings. A run that has to read a removed one makes it again.
    """
    read = set(training[-1].needs.values())
    for step in training:
        if step.kind == "checkpoint" and step.name not in read:
            store.spend(done[step.name], METRICS)


def collect(store: Store, tracker: Tracker, days: float, *, dry_run: bool = False,
            patience: float = LOCK_SECONDS) -> Freed:
    """Remove what no run has asked for in `days`: results of steps, checkpoints of given-up runs, damaged objects.

    What other refs name, versions of the registry and what a process holds stays. Raises UsageError where a run is at
    work for longer than `patience` seconds, and ServerError where the registry cannot be asked.
    """
    keep, since = registered_digests(tracker) if _registry(tracker) else set(), time.time() - days * DAY
    found = {name: _about(store, name) for name in store.collect(keep, unused_since=since, dry_run=True)}
    removed: list[tuple[str, int]] = []
    if dry_run:
        return _summed([*found.values(), *((kind, _size(path)) for kind, path in _strays(store.home, keep, since))])
    with store.run_lock(patience):
        for name in store.collect(keep, unused_since=since):
            removed.append(found.get(name, ("other", 0)))
        for kind, path in _strays(store.home, keep, since):
            removed.append((kind, _size(path)))
            remove(path)
    return _summed(removed)


def _registry(tracker: Tracker) -> bool:
    """Whether there may be a registry: looking must not make a database."""
    return not tracker.embedded or (tracker.home / "mlflow.db").exists()


def _about(store: Store, digest: str) -> tuple[str, int]:
    """Return the kind and size of an object."""
    artifact = Artifact.of(digest)
    try:
        kind = str(store.manifest(artifact)["kind"])
    except DamagedArtifact:
        kind = "damaged"
    return kind, _size(store.home / artifact.path)


def _strays(home: Path, keep: set[str], since: float) -> Iterator[tuple[str, Path]]:
    """Yield (kind, path) of what is beside the objects and old: it is made again where it is asked for."""
    for kind, folder in (("unfinished", "scratch"), ("damaged", "quarantine"), ("download", "downloads")):
        for path in (home / folder).glob("*"):
            if path.name not in keep and _last_change(path) < since and not held(path):
                yield kind, path


def _last_change(path: Path) -> float:
    """Return when anything below a folder changed, or it was moved, in seconds since 1970."""
    stats = [each.lstat() for each in (path, *path.rglob("*"))]
    return max(max(stat.st_mtime, stat.st_ctime) for stat in stats)


def _size(path: Path) -> int:
    """Return the bytes that removing a folder frees: a file that has another name stays."""
    return sum(stat.st_size for folder, _, files in os.walk(path)
               for stat in (os.lstat(os.path.join(folder, file)) for file in files) if stat.st_nlink == 1)


def _summed(removed: list[tuple[str, int]]) -> Freed:
    sizes: Counter[str] = Counter()
    for kind, size in removed:
        sizes[kind] += size
    return Freed(Counter(kind for kind, _ in removed), sizes)
