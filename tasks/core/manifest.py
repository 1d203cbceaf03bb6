"""Manifests of stored objects (the sha256 of each file): written, read and verified."""

import errno
import hashlib
import json
import os
import uuid
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from data_contracts.errors import DamagedArtifact, ProjectError
from tasks.core.files import file_digest, fsync, remove

VERSION = 1
MANIFEST = "MANIFEST.json"
REMOVED = "SPENT"    # a file that marks an object of which some files were removed, as nothing reads them any more
_Fact = namedtuple("_Fact", "path mode device inode size modified_ns changed_ns")  # unchanged while nobody writes


def sealed(folder: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Flush and hash every file; return the manifest's list of files, and the folders that are to be flushed."""
    facts, folders = scan(folder)
    files = []
    for fact in facts:
        path = folder / fact.path
        if not S_ISREG(fact.mode):
            raise ProjectError(f"{path} is not a regular file, so it cannot be published", hint="write a copy of it")
        fsync(path)
        files.append({"path": fact.path, "size": fact.size, "sha256": file_digest(path)})
    return files, folders[::-1]


def share(folder: Path, files: Iterable[Mapping[str, Any]], sources: Iterable[Path]) -> None:
    """Replace files that are also in one of the objects `sources` by hard links: no published file is ever changed."""
    known: dict[tuple[int, str], Path] = {}
    for source in sources:
        with suppress(OSError, ProjectError):
            known |= {content: source / path for path, content in read_manifest(source)[1].items()}
    for file in files:
        original, link = known.get((file["size"], file["sha256"])), folder / f"{uuid.uuid4().hex}.link"
        if original is not None:
            with suppress(OSError):    # it was removed, or the disk has no links
                os.link(original, link)
                os.replace(link, folder / file["path"])
            remove(link)    # a rename to another name of the same file leaves both


def read_manifest(folder: Path, digest: str = "") -> tuple[dict[str, Any], dict[str, tuple[int, str]]]:
    """Return the manifest of an object, and {path: (size, sha256)} of the files that it lists.

    digest: sha256 of the manifest, by default the folder's name.
    """
    path = folder / MANIFEST
    if not S_ISREG(path.lstat().st_mode):
        raise damaged(path, "is not a regular file")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != (digest or folder.name):
        raise damaged(path, "is not the one that was published")
    try:
        manifest = json.loads(data)
        if manifest["version"] > VERSION:
            raise newer(path)
        return manifest, {file["path"]: (file["size"], file["sha256"]) for file in manifest["files"]}
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(path, "is not a manifest") from error


@lru_cache(maxsize=1024)
def verify(folder: Path, facts: tuple[_Fact, ...], *, whole: bool = True, digest: str = "") -> None:
    """Compare every file with the manifest; a success is cached until one of the facts changes, a failure is not.

    whole: files that were removed may not be missing either. digest: as for `read_manifest`.
    """
    for fact in facts:
        if not S_ISREG(fact.mode):
            raise damaged(folder / fact.path, "is not a regular file")
    _, listed = read_manifest(folder, digest)
    sizes = {fact.path: fact.size for fact in facts if fact.path != MANIFEST}
    some_removed = sizes.pop(REMOVED, None) is not None
    for path in sorted(listed.keys() | sizes.keys()):
        if path not in sizes and some_removed and not whole:
            continue
        if path not in sizes:
            raise damaged(folder / path, "was removed, as nothing was to read it" if some_removed else "is missing")
        if path not in listed:
            raise damaged(folder / path, "is not in the manifest")
        if sizes[path] != listed[path][0]:
            raise damaged(folder / path, f"has {sizes[path]} bytes, {listed[path][0]} were published")
    for path in sizes:
        if file_digest(folder / path) != listed[path][1]:
            raise damaged(folder / path, "does not have the sha256 that was published")


def scan(folder: Path) -> tuple[tuple[_Fact, ...], list[Path]]:
    """Return the facts of all files below `folder`, links not followed, and all folders, each after its parent."""
    facts, folders = [], [folder]
    for parent in folders:
        with os.scandir(parent) as content:
            for entry in content:
                stat = entry.stat(follow_symlinks=False)
                if S_ISDIR(stat.st_mode):
                    folders.append(Path(entry.path))
                    continue
                path = Path(entry.path).relative_to(folder).as_posix()
                facts.append(_Fact(path, stat.st_mode, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns,
                                   stat.st_ctime_ns))
    return tuple(sorted(facts)), folders


def canonical(value: Any) -> bytes:
    """Return a JSON value as bytes: equal for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def damaged(path: Path | str, what: str) -> DamagedArtifact:
    """Return the error that says which file is damaged and how."""
    return DamagedArtifact(f"{path} {what}", hint="run the same command again: it is not used, but built anew")


def newer(path: Path | str) -> ProjectError:
    """Return the error for a file of a later format than this program knows."""
    return ProjectError(f"{path} was made by a newer version of xcflow",
                        hint="update the checkout that xcflow is installed from, then: make check")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise DamagedArtifact where a file is missing or unreadable; pass on other errors (descriptors, permissions)."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        raise damaged(error.filename or name, f"cannot be read: {error.strerror}") from error
