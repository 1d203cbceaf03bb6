"""Folders at addresses of other file systems (s3://, gs://, ...), through fsspec, with errors that name the remedy."""

import errno
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.core.files import NO_SPACE, link, put_file, remove

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://(.*)", re.DOTALL)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}    # protocol -> the extra of xcflow that reads it
_VERSIONS = (    # the first that a file system tells: a version, else a digest, else a time
    "VersionId", "generation", "ETag", "etag", "md5Hash", "blob_id", "sha", "Content-MD5", "Digest",
    "mtime", "LastModified", "Last-Modified", "modificationTime", "modify", "created")
_WITH_FOLDERS = ("file", "memory", "sftp", "ssh", "hdfs", "smb")    # in an object store a new folder would be a bucket
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIAL|ACCESS_KEY", re.IGNORECASE)
Source = str | Path    # a folder, or the address of one


def is_address(place: Source) -> bool:
    """Return whether a place is an address, not a path."""
    return bool(_ADDRESS.match(str(place)))


def name_of(place: Source) -> str:
    """Return the last part of a path or an address."""
    return Path(str(place)).name


def checked_address(place: Source) -> str:
    """Return an address without a slash at its end.

    Raises UsageError for one that could hold credentials, which would be written to records, without repeating it, for
    a chain of file systems, and for a path of this machine that is not absolute, or not by file://.
    """
    match = _ADDRESS.fullmatch(str(place))
    protocol, rest = match.groups() if match else ("", str(place))
    if "@" in rest.partition("/")[0] or (protocol in ("http", "https") and "?" in rest):
        raise UsageError(f"an address {protocol}:// with credentials in it is not used, as it would be recorded",
                         hint="give them as the store's own tools take them: AWS_PROFILE, AWS_ACCESS_KEY_ID, ...")
    if not match or "::" in str(place) or not rest.strip("/"):
        raise UsageError(f"{place} is not the address of a folder", hint="s3://BUCKET/FOLDER")
    # Scheduled runs, and other machines, have another current folder than the command that is given the address.
    if protocol.lower() == "local" or (protocol.lower() == "file" and not rest.startswith("/")):
        raise UsageError(f"{place} is not the address of a folder of this machine", hint=f"file://{os.path.abspath(rest)}")
    return f"{protocol.lower()}://{rest.rstrip('/')}"


def local_path(place: Source) -> Path | None:
    """Return the path of a folder of this machine, also of file://; None where it is elsewhere."""
    if not is_address(place):
        return Path(place)
    address = checked_address(place)
    return Path(address.removeprefix("file://")) if address.startswith("file://") else None


@dataclass(frozen=True)
class FileVersion:
    """A file's size in bytes, and what changes with its content (an ETag, a time of change)."""

    size: int
    version: str


@dataclass(frozen=True)
class Remote:
    """A folder at an address. Every method raises ServerError where the address cannot be used.

    Files that are written are replaced as a whole or not at all in an object store and in a folder of this machine
    (file://); elsewhere a reader may meet a part of one. In such a folder what is no file is as one that is not there.
    """

    address: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", checked_address(self.address))

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        protocol = self.address.partition("://")[0]
        with self._as_server_errors():
            try:
                return fsspec.core.url_to_fs(self.address, use_listings_cache=False, skip_instance_cache=True)
            except ImportError as error:
                extra = _EXTRAS.get(protocol)
                raise UsageError(f"{protocol}:// needs a package that is not installed: {error}"[:300],
                                 hint=f"pip install 'xcflow[{extra}]'" if extra else "install it") from error
            except ValueError as error:
                raise UsageError(f"{protocol}:// is no file system that fsspec knows",
                                 hint="s3://BUCKET/FOLDER, gs://BUCKET/FOLDER") from error

    def files(self) -> dict[str, FileVersion]:
        """Return the version of each file directly in the folder, by name."""
        files, root = self._opened
        with self._as_server_errors():
            files.invalidate_cache()
            entries = [entry for entry in files.ls(root, detail=True) if entry["type"] == "file"]
            # over HTTP a listing has names alone, and links that sort it
            entries = [entry if entry["size"] is not None else files.info(entry["name"]) for entry in entries
                       if entry["size"] is not None or not set("?#") & set(entry["name"])]
        if unknown := [name_of(entry["name"]) for entry in entries if entry["size"] is None]:
            raise ServerError(f"{self.address} does not tell the size of {unknown[0]}",
                              hint="copy the folder to this machine, or to a store that tells sizes")
        return {name_of(entry["name"]): FileVersion(entry["size"], _version(entry)) for entry in entries}

    def blocks(self, name: str, start: int, size: int) -> Iterator[bytes]:
        """Yield a file from byte `start` on, `size` bytes at a time."""
        files, root = self._opened
        with self._as_server_errors():
            file = files.open(f"{root}/{name}", "rb", block_size=size, cache_type="readahead")
        with file:
            file.seek(start)
            while True:
                with self._as_server_errors():
                    block = file.read(size)
                if not block:
                    return
                yield block

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None where there is none."""
        files, root = self._opened
        with self._as_server_errors():
            if (folder := local_path(self.address)) is not None and not (folder / name).is_file():
                return None    # a pipe would be waited for
            try:
                return bytes(files.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes, *, replace: bool = True) -> bool:
        """Write a small file; without `replace`, only where there is none, and return whether there was none."""
        files, root = self._opened
        with self._as_server_errors():
            if (folder := local_path(self.address)) is not None:
                _make_way(folder, name, links=True)
                return put_file(data, folder / name, os.replace if replace else link, mode=0o666)
            self._make_folders(name)
            try:
                files.pipe_file(f"{root}/{name}", data, mode="overwrite" if replace else "create")
            except FileExistsError:
                return False
            return True

    def delete(self, name: str) -> None:
        """Delete a file."""
        files, root = self._opened
        with self._as_server_errors():
            files.rm_file(f"{root}/{name}")

    def upload(self, folder: Path, prefix: str, names: Sequence[str]) -> None:
        """Copy files of a local folder below `prefix`; to another machine several at a time."""
        files, root = self._opened
        with self._as_server_errors():
            if (place := local_path(self.address)) is not None:
                for name in names:
                    _make_way(place, f"{prefix}/{name}", links=False)
                    part = (target := place / prefix / name).with_name(f".{uuid.uuid4().hex}.part")
                    try:
                        files.put_file(str(folder / name), str(part))
                        os.replace(part, target)
                    finally:
                        remove(part)
                return
            self._make_folders(*(f"{prefix}/{name}" for name in names))
            files.put([str(folder / name) for name in names], [f"{root}/{prefix}/{name}" for name in names])

    def download(self, wanted: Mapping[str, Path]) -> None:
        """Copy files, by name, to local paths whose folders exist; a missing one raises FileNotFoundError."""
        files, root = self._opened
        with self._as_server_errors(missing=False, full=False):
            if (folder := local_path(self.address)) is not None:
                for name in wanted:
                    if not (folder / name).is_file():    # a device would be read without end
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / name))
            files.get([f"{root}/{name}" for name in wanted], [str(path) for path in wanted.values()])

    def _make_folders(self, *names: str) -> None:
        files, root = self._opened
        if self.address.partition("://")[0] in _WITH_FOLDERS:
            for parent in {f"{root}/{name}".rpartition("/")[0] for name in names}:
                files.makedirs(parent, exist_ok=True)

    @contextmanager
    def _as_server_errors(self, *, missing: bool = True, full: bool = True) -> Iterator[None]:
        """Turn a file system's errors into ServerError.

        Unless `missing`, FileNotFoundError passes, and unless `full`, a full disk: that of this machine, written to.
        """
        try:
            yield
        except ProjectError:
            raise
        except FileNotFoundError as error:
            if not missing:
                raise
            raise ServerError(f"{self.address} is not there", hint="check the bucket and the folder, and that these "
                              "credentials may list them") from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                if not full:
                    raise
                raise ServerError(f"{self.address} has no room: {error.strerror}",
                                  hint="free space there, or raise its quota; the same command resumes") from error
            why = without_secrets(" ".join(str(error).split()))[:200] or type(error).__name__
            refused = isinstance(error, PermissionError) or "credential" in f"{type(error).__name__} {why}".lower()
            if local_path(self.address) is not None:
                hint = "give this user the right to read and write there, or see to that disk"
            elif refused:
                hint = "give credentials as the store's own tools take them: AWS_PROFILE, AWS_ACCESS_KEY_ID, ..."
            else:
                hint = "check the network and the endpoint (AWS_ENDPOINT_URL)"
            raise ServerError(f"{self.address} {'refuses access' if refused else 'cannot be used'}: {why}",
                              hint=hint if refused else f"{hint}; the same command resumes") from error


def _make_way(folder: Path, name: str, *, links: bool) -> None:
    """Make the folders of a file that is to be written, and move aside what is in the place of one of them or of it.

    links: a link to a folder is followed. If not, one directly in `folder` is all the same, as it is its owner's: to
    another disk, say. Further down it would have files written wherever somebody else chose.
    """
    *parents, last = PurePosixPath(name).parts
    for depth, part in enumerate(parents):
        folder /= part
        if os.path.lexists(folder) and not (folder.is_dir() and (links or depth == 0 or not folder.is_symlink())):
            _set_aside(folder)
        os.makedirs(folder, exist_ok=True)
    os.makedirs(folder, exist_ok=True)    # where the file has no other
    if (folder / last).is_dir() or (folder / last).is_symlink():
        _set_aside(folder / last)


def _set_aside(path: Path) -> None:
    with suppress(FileNotFoundError):    # another process has done so
        os.rename(path, path.with_name(f".{uuid.uuid4().hex}.damaged"))


def _version(entry: Mapping[str, Any]) -> str:
    """Return what changes with a file's content, as far as its file system tells."""
    return next((str(entry[name]) for name in _VERSIONS if entry.get(name) not in (None, "", "null")), "")


def without_secrets(text: str) -> str:
    """Return a text without the values of environment variables that are secrets, and without users in addresses."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) > 3:
            text = text.replace(value, "...")
    return without_passwords(text)


def without_passwords(text: str) -> str:
    """Return a text with users and passwords removed from the addresses in it."""
    return re.sub(r"://[^/\s]*@", "://", text)
