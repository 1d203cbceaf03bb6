"""The artifact store: atomic, content-addressed publishing of the results of steps."""

import errno
import fcntl
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import count
from math import inf
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import explained, fsync, held, link, locked, remove, write_file
from tasks.core.home import DIGEST, Home, checked
from tasks.core.manifest import (
    MANIFEST,
    REMOVED,
    VERSION,
    canonical,
    damaged,
    read_manifest,
    reading,
    scan,
    sealed,
    share,
    verify,
)

GC_SECONDS = 10.0
CLOCKS_APART = 60.0    # seconds that the clock of a network disk may be ahead of this machine's
UNFETCHED = b"its files are at an address"    # content of REMOVED where files have not been fetched
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """A reference to a published object, which tasks exchange instead of its content; asdict(artifact) is its JSON."""

    path: str  # "objects/<digest>", relative to HOME
    digest: str

    @classmethod
    def of(cls, digest: str) -> "Artifact":
        return cls(f"objects/{digest}", digest)


class Store(Home):
    """The objects and refs of one HOME; holds nothing but its path, so threads share it and processes exchange it."""

    def find(self, key: str) -> Artifact | None:
        """Return the verified artifact of step `key`, whole or not; None where the step has to be run (again).

        Updates the time of refs/steps/<key>, by which `collect` knows when it was last used.
        """
        artifact = self._step(key)
        if artifact is None or not self._usable(artifact, whole=False) or self._unfetched(artifact):
            return None
        with suppress(OSError):    # a read-only HOME is not collected
            os.utime(self._ref("steps", key))
        return artifact

    def publish(self, key: str, kind: str, inputs: Mapping[str, str], write: Callable[[Path], None],
                about: Mapping[str, Any] | None = None) -> Artifact:
        """Run `write` on an empty folder and publish what it leaves there as the result of step `key`.

        about: JSON facts that follow from the inputs: no times, no host names. A file that is also in an input becomes
        a hard link to it, and takes no room. Where another process has published `key` meanwhile, its artifact is
        returned. After an exception nothing is published.
        """
        head = {"version": VERSION, "kind": checked(kind), "key": checked(key, DIGEST), "inputs": dict(inputs)}
        folder = self.home / "tmp" / uuid.uuid4().hex
        with self._gc_lock(f"publish {kind}"):
            try:
                os.mkdir(folder, 0o700)
                write(folder)
                files, folders = sealed(folder)
                share(folder, files, [self.home / "objects" / name for name in inputs.values()])
                manifest = canonical({**head, "about": dict(about or {}), "files": files})
                write_file(folder / MANIFEST, manifest)
                for subfolder in folders:
                    fsync(subfolder)
                artifact = Artifact.of(hashlib.sha256(manifest).hexdigest())
                self._commit(folder, artifact)
            finally:
                remove(folder)
            return self._name_step(key, artifact)

    def open(self, artifact: Artifact, *, whole: bool = True) -> Path:
        """Return the folder of an artifact, after checking every file against its sha256.

        A process hashes a file once, and again when its device, inode, size or times change. With `whole` false,
        files that were removed may be missing.
        Raises DamagedArtifact, or ProjectError where a newer version of this program wrote it.
        """
        with reading(artifact.path):
            folder = self._folder(artifact)
            verify(folder, scan(folder)[0], whole=whole)
            return folder

    def remove_files_except(self, artifact: Artifact, *keep: str) -> None:
        """Remove the files of an artifact, all but `keep`; its key stays published."""
        with self._gc_lock("make room"), reading(artifact.path):
            folder = self._folder(artifact)
            if not self.lacks_files(artifact):    # marked first, so that a kill leaves no object that looks damaged
                self._place(b"", folder / REMOVED, os.replace)
            for path in read_manifest(folder)[1].keys() - set(keep):
                with suppress(FileNotFoundError):
                    os.unlink(folder / path)

    def find_unfetched(self, key: str) -> Artifact | None:
        """Return what `find` would, as far as that is known without fetching files."""
        return self.find(key)

    def lacks_files(self, artifact: Artifact) -> bool:
        """Return whether files of an artifact are not here: they were removed, or never fetched."""
        return os.path.lexists(self.home / artifact.path / REMOVED)

    def lost(self, artifact: Artifact) -> bool:
        """Return whether a step that reads an artifact has to make it again, as files of it are gone."""
        return self.lacks_files(artifact)

    def restore(self, artifact: Artifact) -> bool:
        """Return whether all files of an artifact are here; a store that shares fetches them."""
        return not self.lacks_files(artifact)

    def forget(self, key: str) -> None:
        """Remove the result of step `key`, so that it is made again."""
        artifact, dead = self._step(key), self.home / "tmp" / uuid.uuid4().hex
        with self._gc_lock("make room"):
            with suppress(FileNotFoundError):
                os.unlink(self._ref("steps", key))
                fsync(self.home / "refs" / "steps")
            if artifact is not None:
                with suppress(FileNotFoundError):
                    os.rename(self.home / artifact.path, dead)
                    fsync(self.home / "objects")
                remove(dead)

    def manifest(self, artifact: Artifact) -> dict[str, Any]:
        """Return the manifest of an artifact; it is verified, the files that it lists are not."""
        with reading(artifact.path):
            return read_manifest(self._folder(artifact))[0]

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (key, manifest) of every published step, the last used last; missing and damaged ones are left out.

        Those used in the future, as the clock was ahead, come first: how long ago that was is not known.
        """
        refs = [ref for ref in (self.home / "refs" / "steps").iterdir() if DIGEST.fullmatch(ref.name)]
        used, latest = {ref: ref.stat().st_mtime for ref in refs}, time.time() + CLOCKS_APART
        for ref in sorted(refs, key=lambda ref: (used[ref] <= latest, used[ref], ref.name)):
            if artifact := self._step(ref.name):
                with suppress(DamagedArtifact):
                    yield ref.name, self.manifest(artifact)

    def collect(self, keep: Collection[str] = (), *, unused_since: float = -inf, dry_run: bool = False) -> list[str]:
        """Remove every object that nothing needs, and what killed writers left; return the digests of the objects.

        Needed is what a ref or `keep` names, or a process holds (`held`). The ref of a step last used before
        `unused_since`, in seconds since 1970, does not count, and is removed with its object. Nobody writes while
        gc.lock is held exclusively, so all of tmp/ is dead then. An object does not keep its inputs.
        """
        objects, tmp = self.home / "objects", self.home / "tmp"
        with nullcontext(True) if dry_run else self._gc_lock("collect", fcntl.LOCK_EX, GC_SECONDS) as acquired:
            if not acquired:
                raise UsageError(f"a step is being published in {self.home}", hint="collect again when it is done")
            refs, unused = dict[Path, set[str]](), set[Path]()
            for ref in (self.home / "refs").glob("*/*"):
                with suppress(FileNotFoundError):    # removed meanwhile: a dry run holds no lock
                    refs[ref] = set(DIGEST.findall(ref.read_text(errors="replace")))
                    if ref.parent.name == "steps" and ref.stat().st_mtime < unused_since:
                        unused.add(ref)
            live = set(keep).union(*(digests for ref, digests in refs.items() if ref not in unused))
            for digest in keep:
                checked(digest, DIGEST)
            removed = sorted(path.name for path in objects.iterdir() if DIGEST.fullmatch(path.name)
                             and path.name not in live and not held(path))
            if dry_run:
                return removed
            dead = list(tmp.iterdir())
            for name in removed:  # renamed first, so that a kill leaves no half-removed object under its name
                dead.append(tmp / uuid.uuid4().hex)
                os.rename(objects / name, dead[-1])
            fsync(objects)
            for ref in unused:
                if not any((objects / digest).exists() for digest in refs[ref]):
                    os.unlink(ref)
        for path in dead:
            remove(path)
        return removed

    def _folder(self, artifact: Artifact) -> Path:
        if not DIGEST.fullmatch(artifact.digest) or artifact.path != f"objects/{artifact.digest}":
            raise DamagedArtifact(f"{artifact.path!r} is not the name of an artifact", hint="give objects/<sha256>")
        folder = self.home / artifact.path
        if not S_ISDIR(folder.lstat().st_mode):
            raise damaged(folder, "is not a folder")
        return folder

    def _step(self, key: str) -> Artifact | None:
        checked(key, DIGEST)
        try:
            value = self.get_ref("steps", key)
            return None if value is None else Artifact.of(checked(value["digest"], DIGEST))
        except (DamagedArtifact, KeyError, TypeError, UsageError) as error:
            _log.warning("refs/steps/%s names no artifact, so the step is run again: %s", key, error)
            return None

    def _usable(self, artifact: Artifact, *, whole: bool = True) -> bool:
        """Return whether the object verifies; move a damaged one to quarantine, so that it is built again."""
        with suppress(DamagedArtifact):
            return self.open(artifact, whole=whole).is_dir()
        # Checked again under a lock: another process may have moved and rebuilt it meanwhile.
        with explained("set a damaged object aside", self.home), locked(self.home / "objects", fcntl.LOCK_EX):
            try:
                return self.open(artifact, whole=whole).is_dir()
            except DamagedArtifact as error:
                if os.path.lexists(self.home / artifact.path):
                    places = (self.home / "quarantine" / f"{artifact.digest}-{n}" for n in count(1))
                    place = next(place for place in places if not os.path.lexists(place))
                    os.rename(self.home / artifact.path, place)
                    fsync(self.home / "objects")
                    _log.warning("%s; moved to %s", error.what, place)
                return False

    def _unfetched(self, artifact: Artifact) -> bool:
        return self.lacks_files(artifact) and (self.home / artifact.path / REMOVED).read_bytes() == UNFETCHED

    def _commit(self, folder: Path, artifact: Artifact) -> None:
        """Rename a sealed folder to its digest, which is never created beforehand: the rename is the commit."""
        while True:
            try:
                os.rename(folder, self.home / artifact.path)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if self._usable(artifact):
                break
        fsync(self.home / "objects")

    def _name_step(self, key: str, artifact: Artifact) -> Artifact:
        """Point refs/steps/<key> to the artifact; return it, or the one that another process has published before."""
        data, target = canonical(asdict(artifact)), self._ref("steps", key)
        if not self._place(data, target, link):
            if winner := self.find(key):
                return winner
            self._place(data, target, os.replace)
        return artifact


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(canonical(value)).hexdigest()
