"""Garbage collection of HOME: removes what no run has used lately and nothing needs."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from stat import S_ISDIR

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import held, remove
from tasks.core.home import LOCK_SECONDS
from tasks.core.step import METRICS_FILE, Step
from tasks.core.store import Artifact, Store
from tasks.registry.tags import registered_digests
from tasks.tracking.tracker import Tracker

DAY = 86_400.0


@dataclass(frozen=True)
class Freed:
    """What was removed, or would be in a dry run: how many items and how many bytes of each kind."""

    counts: Counter[str]
    sizes: Counter[str]


def remove_checkpoints(store: Store, training: Sequence[Step], done: Mapping[str, Artifact]) -> None:
    """Remove the checkpoints that only rounds of training read, once the retriever, the last of `training`, is done.

    Metrics stay, and so does the last checkpoint of each stage: the retriever is built from those, and so are later
    stages of runs with other settings. A run that has to read a removed checkpoint makes it again.
    """
    needed = set(training[-1].needs.values())
    for step in training:
        if step.kind == "checkpoint" and step.name not in needed:
            store.remove_files_except(done[step.name], METRICS_FILE)


def collect(store: Store, tracker: Tracker, days: float, *, dry_run: bool = False,
            patience: float = LOCK_SECONDS) -> Freed:
    """Remove what no run has used for `days`: results of steps, checkpoints of abandoned runs, damaged objects.

    Registered versions, what other refs name and what a process holds stay. Raises UsageError where a run is active for
    longer than `patience` seconds, or the versions are at a server that was not given; ServerError where the registry
    cannot be read.
    """
    if tracker.is_empty and (server := registered_at(store)):
        raise UsageError(f"versions of {store.home} are registered at {server}, and what they hold is not known here",
                         hint=f"xc gc --mlflow {server}")
    keep, since = set() if tracker.is_empty else registered_digests(tracker), time.time() - days * DAY
    sizes = {name: _kind_and_size(store, name) for name in store.collect(keep, unused_since=since, dry_run=True)}
    if dry_run:
        return _total([*sizes.values(), *((kind, _size(path)) for kind, path in _strays(store.home, keep, since))])
    with store.run_lock(patience):
        removed = [sizes.get(name, ("other", 0)) for name in store.collect(keep, unused_since=since)]
        for kind, path in _strays(store.home, keep, since):
            removed.append((kind, _size(path)))
            remove(path)
    return _total(removed)


def note_server(store: Store, tracker: Tracker) -> None:
    """Keep the address of the MLflow server that has versions of HOME: where none is given, `collect` asks for it."""
    if not tracker.embedded:
        store.set_ref("registry", "server", {"address": tracker.address})


def registered_at(store: Store) -> str:
    """Return the address that `note_server` kept last; "" where there is none, or where it cannot be read."""
    with suppress(DamagedArtifact):
        return str((store.get_ref("registry", "server") or {}).get("address", ""))
    return ""


def _kind_and_size(store: Store, digest: str) -> tuple[str, int]:
    artifact = Artifact.of(digest)
    try:
        kind = str(store.manifest(artifact)["kind"])
    except DamagedArtifact:
        kind = "damaged"
    return kind, _size(store.home / artifact.path)


def _strays(home: Path, keep: set[str], since: float) -> Iterator[tuple[str, Path]]:
    """Yield (kind, path) of old folders outside `objects`; a run that needs one makes it again."""
    for kind, folder in (("unfinished", "scratch"), ("damaged", "quarantine"), ("download", "downloads"),
                         ("data", "cache/data")):
        for path in (home / folder).glob("*"):
            if path.name not in keep and _last_change(path) < since and not held(path):
                yield kind, path


def _last_change(path: Path) -> float:
    """Return when anything below a folder last changed, or the folder was moved, in seconds since 1970."""
    return max((max(stat.st_mtime, stat.st_ctime) for stat in _stats(path)), default=inf)


def _size(path: Path) -> int:
    """Return the bytes that removing a folder frees: files with another hard link free none."""
    return sum(stat.st_size for stat in _stats(path) if stat.st_nlink == 1 and not S_ISDIR(stat.st_mode))


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a folder and of all that is below it, without what a run removes meanwhile."""
    below = (os.path.join(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    for place in (str(path), *below):
        with suppress(FileNotFoundError):
            yield os.lstat(place)


def _total(removed: list[tuple[str, int]]) -> Freed:
    sizes: Counter[str] = Counter()
    for kind, size in removed:
        sizes[kind] += size
    return Freed(Counter(kind for kind, _ in removed), sizes)
