"""Raw data sets at addresses (s3://, gs://, ...): fetched into HOME/cache/data, hashed, and reused while unchanged."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.core.files import explained, file_digest, fsync, locked, make_folder, remove, write_file
from tasks.core.manifest import canonical
from tasks.core.remote import FileVersion, Remote, Source, local_path, name_of
from tasks.core.store import digest_of
from tasks.core.wording import plural
from tasks.data.sources import describe
from tasks.data.sources.raw import ABOUT

CACHE = Path("cache", "data")    # in HOME, a folder for each version of a data set
RECORD = "FETCHED.json"          # beside its files: the sha256 of each, as it was received
BLOCK = 1 << 23                  # bytes that are asked for at a time


@contextmanager
def outline(source: Source) -> Iterator[Path]:
    """Yield a folder in which `describe` finds the data set: of an address, the names of its files and dataset.json.

    An error of the block names the address, not that folder.
    """
    if (path := local_path(source)) is not None:
        yield path
        return
    remote = Remote(str(source))
    with _outlined(remote, remote.files()) as folder:
        yield folder


def fetched(source: Source, home: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder of a raw data set: its own, or for an address the copy in HOME, which is fetched where needed.

    What is fetched are the files that `describe` finds, as they are at one moment. A fetch that was cut off goes on.
    Raises ProjectError where the files change meanwhile, ServerError where the address cannot be used.
    """
    if (path := local_path(source)) is not None:
        return path
    remote = Remote(str(source))
    files = _needed(remote)
    key = digest_of({"address": remote.address, "files": {name: [file.size, file.version]
                                                          for name, file in files.items()}})
    place, part = home / CACHE / key, home / CACHE / f"{key}.part"
    with explained("fetch the data", home):
        for folder in (home / CACHE.parent, home / CACHE):
            make_folder(folder)
        with locked(home / CACHE, fcntl.LOCK_EX):    # another process may fetch the same
            if not _whole(place, files):
                remove(place)
                make_folder(part)
                _fetch(remote, files, part, say)
                os.rename(part, place)
                fsync(place.parent)
        os.utime(place)    # by which `xc gc` knows when it was last used
    return place / name_of(remote.address)


def _fetch(remote: Remote, files: dict[str, FileVersion], part: Path, say: Callable[[str], None]) -> None:
    """Fetch every file into `part`, then the record of their digests; what is there already stays."""
    folder = part / name_of(remote.address)
    make_folder(folder)
    size, here = sum(file.size for file in files.values()), sum(path.stat().st_size for path in folder.iterdir())
    say(f"fetching {plural(len(files), 'file')}, {size / 1e6:,.1f} MB, from {remote.address}"
        + (f"; {here / 1e6:,.1f} MB are here" if here else ""))
    try:
        digests = {name: _fetch_file(remote, name, folder / name, file.size) for name, file in files.items()}
        changed = _needed(remote) != files
    except ServerError:
        if remote.files().items() >= files.items():
            raise
        changed = True
    if changed:
        remove(part)
        raise ProjectError(f"{remote.address} has changed while it was fetched",
                           hint="run the same command again when nothing writes to it any more")
    (part / RECORD).unlink(missing_ok=True)
    write_file(part / RECORD, canonical({"address": remote.address, "files": digests}))
    for made in (folder, part):
        fsync(made)


def _fetch_file(remote: Remote, name: str, path: Path, size: int) -> str:
    """Fetch what is missing of a file; return the sha256 of the whole. ServerError where it has another size."""
    digest = hashlib.sha256()
    with open(path, "a+b") as file:
        file.seek(0)
        while block := file.read(BLOCK):
            digest.update(block)
        if file.tell() < size:
            for block in remote.blocks(name, file.tell(), BLOCK):
                file.write(block)
                digest.update(block)
        file.flush()
        os.fsync(file.fileno())
        if file.tell() != size:
            got = file.tell()
            file.truncate(0)
            raise ServerError(f"{remote.address}/{name} has {got:,} bytes, and {size:,} were listed",
                              hint="the same command fetches it again")
    return digest.hexdigest()


def _needed(remote: Remote) -> dict[str, FileVersion]:
    """Return the versions of the files that make up the data set, by name; ServerError where one has none."""
    files = remote.files()
    with _outlined(remote, files) as folder:
        names = {path.name for path in describe(folder).files.values()} | ({ABOUT} & files.keys())
    if unknown := min((name for name in names if not files[name].version), default=""):
        raise ServerError(f"{remote.address} does not tell when {unknown} was changed",
                          hint="copy the folder to this machine, or to a store that tells when files change")
    return {name: files[name] for name in sorted(names)}


@contextmanager
def _outlined(remote: Remote, files: dict[str, FileVersion]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xc-names-") as parent:
        folder = Path(parent, name_of(remote.address))
        folder.mkdir()
        for name in files:
            with suppress(OSError, ValueError):    # a name that no file can have is none of a data set's
                (folder / name).touch()
        if ABOUT in files:
            (folder / ABOUT).write_bytes(remote.read(ABOUT) or b"{}")
        try:
            yield folder
        except UsageError as error:
            what, where, hint = (text.replace(str(folder), remote.address)
                                 for text in (error.what, error.where, error.hint))
            raise UsageError(what, where=where, hint=hint) from error


def _whole(place: Path, files: dict[str, FileVersion]) -> bool:
    """Return whether a data set was fetched and every file has the sha256 with which it was received."""
    try:
        record = json.loads((place / RECORD).read_bytes())
        folder = place / name_of(record["address"])
        return record["files"].keys() == files.keys() and all(
            file_digest(folder / name) == sha256 for name, sha256 in record["files"].items())
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, AttributeError, ValueError):
        return False
