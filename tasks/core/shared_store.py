"""A store that shares its results at an address (s3://, ...): published there too, and looked up before a step runs.

    ADDRESS/FORMAT                     version of this layout, that of HOME
    ADDRESS/objects/<sha256>/<path>    the files of a result; MANIFEST.json, by whose sha256 it is named, comes last
    ADDRESS/refs/steps/<step key>      which result a step has; written after the manifest

An object store has no rename, but an object of it is there as a whole or not at all. So a result without its manifest
or its ref is not there yet, and what is read is compared with the sha256 that its name and its manifest give. HOME
stays the place of work: what is fetched becomes an object of it.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from data_contracts.errors import DamagedArtifact, ProjectError, ServerError
from tasks.core.files import file_digest, fsync, make_folder, remove, write_file
from tasks.core.home import DIGEST
from tasks.core.manifest import MANIFEST, REMOVED, VERSION, canonical, damaged, newer, read_manifest
from tasks.core.remote import Remote
from tasks.core.store import UNFETCHED, Artifact, Store
from tasks.core.wording import plural

# What later steps alone read: its files are fetched when one does, until then an object has few.
ON_DEMAND = ("tables", "tokens", "walks", "states", "checkpoint", "mined", "vectors")
AT_ONCE = ("metrics.json", "feedback.json", "held_out.jsonl")    # what the run itself reads of those
TOGETHER = 16    # files that are fetched before they are compared and kept


class SharedStore(Store):
    """The store of a HOME, and what it shares at an address.

    If the address fails during a run, `say` reports it and the run continues with HOME alone, or, where it can be read
    and not written to, publishes no more; the next run publishes what is missing. A result that differs from what was
    published is reported, its ref is removed from the address, and the step runs again.
    """

    def __init__(self, home: Path, address: str, say: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(home)
        self.remote, self.say = Remote(address), say
        self.unusable = False            # this process sends the address no more requests
        self.unwritable = False          # it publishes nothing more there
        self.refused = set[str]()        # digests of results that were not as published
        self.sent = set[str]()           # keys whose result is at the address, as far as this process knows
        form = self.remote.read("FORMAT")
        if not form:    # none, or one that another process is writing
            self.remote.write("FORMAT", f"{VERSION}\n".encode())
            say(f"{self.remote.address} becomes a shared store: results of steps go there from now on")
        elif not form.strip().isdigit() or int(form) > VERSION:
            raise newer(f"{self.remote.address}/FORMAT")

    def find_unfetched(self, key: str) -> Artifact | None:
        """Return the artifact of step `key`, which HOME or the address has; files of it may not be here."""
        return super().find(key) or self._adopt(key)

    def find(self, key: str) -> Artifact | None:
        """Return the verified artifact of step `key`, fetched where it is only at the address; None to run the step."""
        artifact = self.find_unfetched(key)
        if artifact is not None and not self.lacks_files(artifact):
            self._send(key, artifact)
        elif artifact is not None and self.manifest(artifact)["kind"] not in ON_DEMAND and not self.restore(artifact):
            self.forget(key)
            return None
        return artifact

    def publish(self, key: str, kind: str, inputs: Mapping[str, str], write: Callable[[Path], None],
                about: Mapping[str, Any] | None = None) -> Artifact:
        """Publish a step's result in HOME, as `Store` does, then at the address, where the first one is kept."""
        artifact = super().publish(key, kind, inputs, write, about)
        self._send(key, artifact)
        return artifact

    def open(self, artifact: Artifact, *, whole: bool = True) -> Path:
        if whole:
            self.restore(artifact)
        return super().open(artifact, whole=whole)

    def lost(self, artifact: Artifact) -> bool:
        """Return whether files of an artifact were removed, and the address does not have them either."""
        return self.lacks_files(artifact) and not self._offered(artifact)

    def restore(self, artifact: Artifact) -> bool:
        """Fetch the files that an artifact lacks; return whether it lacks none."""
        if not self.lacks_files(artifact):
            return True
        if not self._offered(artifact):
            return False
        with self._without_address_on_failure(), self._gc_lock("fetch a result"):
            try:
                self._fetch(artifact)
                return True
            except (DamagedArtifact, FileNotFoundError) as error:
                self._refuse(self.manifest(artifact)["key"], artifact.digest, error)
        return False

    def _offered(self, artifact: Artifact) -> bool:
        if artifact.digest in self.refused:
            return False
        return self._named(self.manifest(artifact)["key"]) == artifact.digest

    def _named(self, key: str) -> str | None:
        """Return the digest that the address gives for a step; None where it gives none, or cannot be used."""
        if self.unusable:
            return None
        with self._without_address_on_failure(), suppress(KeyError, RecursionError, TypeError, ValueError):
            digest = json.loads(self.remote.read(f"refs/steps/{key}") or b"null")["digest"]
            return digest if DIGEST.fullmatch(digest) else None
        return None

    def _adopt(self, key: str) -> Artifact | None:
        """Make an object with the manifest of a result at the address, and few files; None where there is none."""
        digest = self._named(key)
        if digest is None or digest in self.refused:
            return None
        artifact, part = Artifact.of(digest), self.home / "tmp" / uuid.uuid4().hex
        folder = part / digest
        with self._without_address_on_failure(), self._gc_lock("fetch a result"):
            try:
                if not os.path.lexists(self.home / artifact.path):
                    folder.mkdir(0o700, parents=True)
                    data = self.remote.read(f"{artifact.path}/{MANIFEST}")
                    if data is None or hashlib.sha256(data).hexdigest() != digest:
                        raise damaged(f"{self.remote.address}/{artifact.path}/{MANIFEST}",
                                      "is missing" if data is None else "is not the one that was published")
                    write_file(folder / MANIFEST, data)
                    manifest, files = read_manifest(folder)
                    write_file(folder / REMOVED, b"" if manifest["kind"] in ON_DEMAND else UNFETCHED)
                    if manifest["key"] != key or not all(map(_safe, files)):
                        raise damaged(f"{self.remote.address}/{artifact.path}/{MANIFEST}", "is that of another step")
                    if early := {path: files[path] for path in AT_ONCE if path in files}:
                        self._download(artifact, early, folder)
                    fsync(folder)
                    self._commit(folder, artifact)
                self._place(canonical(asdict(artifact)), self._ref("steps", key), os.replace)
                return artifact
            except (DamagedArtifact, FileNotFoundError) as error:
                self._refuse(key, digest, error)
            finally:
                remove(part)
        return None

    def _fetch(self, artifact: Artifact) -> None:
        """Fetch the files that an object lacks, each renamed to its place once it is verified; then unmark the object.

        Raises DamagedArtifact or FileNotFoundError where one at the address is not as it was published.
        """
        folder = self._folder(artifact)
        manifest, files = read_manifest(folder)
        missing = {path: fact for path, fact in files.items() if not os.path.lexists(folder / path)}
        size = sum(size for size, _ in missing.values())
        self.say(f"    fetches {manifest['kind']}: {plural(len(missing), 'file')}, {size / 1e6:,.1f} MB")
        names = sorted(missing)
        for start in range(0, len(names), TOGETHER):
            self._download(artifact, {path: missing[path] for path in names[start:start + TOGETHER]}, folder)
        with suppress(FileNotFoundError):
            os.unlink(folder / REMOVED)
        fsync(folder)

    def _download(self, artifact: Artifact, files: Mapping[str, tuple[int, str]], folder: Path) -> None:
        """Fetch files, {path: (size, sha256)}, and rename each to its place in `folder` once it is verified."""
        part = self.home / "tmp" / uuid.uuid4().hex
        part.mkdir(0o700)
        try:
            here = {path: part / str(number) for number, path in enumerate(files)}
            self.remote.download({f"{artifact.path}/{path}": place for path, place in here.items()})
            for path, place in here.items():
                if (place.stat().st_size, file_digest(place)) != files[path]:
                    raise damaged(f"{self.remote.address}/{artifact.path}/{path}", "is not what was published")
                fsync(place)
                for parent in reversed(PurePosixPath(path).parents[:-1]):
                    make_folder(folder / parent)
                os.replace(place, folder / path)
                fsync((folder / path).parent)
        finally:
            remove(part)

    def _send(self, key: str, artifact: Artifact) -> None:
        """Publish an artifact at the address, unless the step has one there: its files, its manifest, the ref."""
        if key in self.sent or self.unwritable or self._named(key) is not None or self.unusable:
            self.sent.add(key)
            return
        try:
            if not self.remote.read("FORMAT"):    # a folder would be made anew, where a disk was mounted, say
                raise ServerError(f"{self.remote.address} is no longer what it was: its file FORMAT is gone")
            folder = self._folder(artifact)
            manifest, (_, files) = (folder / MANIFEST).read_bytes(), read_manifest(folder)
            self.remote.upload(folder, artifact.path, sorted(files))
            # Of two that publish the same, both write the same bytes, so nothing is lost where a store cannot refuse.
            if not self.remote.write(f"{artifact.path}/{MANIFEST}", manifest, replace=False) \
                    and self.remote.read(f"{artifact.path}/{MANIFEST}") != manifest:
                self.remote.write(f"{artifact.path}/{MANIFEST}", manifest)
            ref = canonical(asdict(artifact))
            if not self.remote.write(f"refs/steps/{key}", ref, replace=False) and self._named(key) is None:
                self.remote.write(f"refs/steps/{key}", ref)    # one that is no ref
        except ServerError as error:    # it may only be read with these credentials, or does not answer at all
            self.unwritable = True
            self._named(key)
            if not self.unusable:
                self.say(f"    {error.what}; this run publishes no more there, the next one publishes what is missing")
        self.sent.add(key)

    def _refuse(self, key: str, digest: str, error: Exception) -> None:
        """Remove the ref of a result that is not as it was published, so that the step is run, here or elsewhere."""
        self.refused.add(digest)
        what = error.what if isinstance(error, ProjectError) else f"a file of {self.remote.address}/objects/{digest} " \
                                                                  "is missing"
        self.say(f"    {what}: it is not used, and made again")
        self.sent.discard(key)
        if self._named(key) == digest:
            with suppress(ServerError):    # it may only be read with these credentials
                self.remote.delete(f"refs/steps/{key}")

    @contextmanager
    def _without_address_on_failure(self) -> Iterator[None]:
        """Report it where the address cannot be used, and use HOME alone from then on."""
        try:
            yield
        except ServerError as error:
            self.unusable = True
            self.say(f"    {error.what}; this run goes on without it, the next one publishes what is missing")


def _safe(path: str) -> bool:
    """Return whether a manifest's path stays in its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and path not in (MANIFEST, REMOVED)


def open_store(home: Path, address: str, say: Callable[[str], None] = lambda line: None) -> Store:
    """Return the store of a HOME, which shares its results at `address` unless that is empty."""
    return SharedStore(home, address, say) if address else Store(home)
