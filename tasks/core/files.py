"""Files as a store needs them: whole and flushed to the disk, hashed, and locks that a kill frees."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path

from data_contracts.errors import ProjectError

_REMEDIES = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "remove files, or have the quota raised",
    errno.EIO: "check that disk",
    errno.EROFS: "choose a HOME on a disk that is not read-only",
    errno.EACCES: "give this user the right to write there",
    errno.ENOTDIR: "choose a HOME below a folder",
}
FULL = 8_000_000    # bytes free below which a database cannot be expected to work
_NO_ROOM = ("No space left on device", "database or disk is full")
_held: set[int] = set()


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file that lies in a folder itself, by its name."""
    return {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.is_file()}


@contextmanager
def explained(doing: str, place: Path) -> Iterator[None]:
    """Turns what a disk refuses into one line with a remedy; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        what = f"cannot {doing}: {error.filename or place}: {error.strerror}"
        raise ProjectError(what, hint=f"{_REMEDIES[error.errno]}, then run the same command again") from error


def full_disk(error: BaseException, place: Path) -> ProjectError | None:
    """Return what to say of a failure that comes of the disk of `place` being full; None where that is not why."""
    free = shutil.disk_usage(place).free
    # What failed to be written is gone by now, and may have left room.
    if free >= FULL and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) \
            and not any(said in str(error) for said in _NO_ROOM):
        return None
    what = "is full" if free < FULL else "had no room for a file"
    return ProjectError(f"the disk of {place} {what}: {free / 1e6:,.1f} MB free",
                        hint="free space on that disk; the same command resumes")


def write_file(path: Path, data: bytes) -> None:
    """Makes a file that must not be there yet, and flushes it to the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    finally:
        os.close(file)


def secret(path: Path) -> str:
    """Returns the line in a private file, "xc:" and a password, which is made at the first call."""
    if not path.exists():
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{uuid.uuid4().hex}")
        write_file(part, f"xc:{secrets.token_urlsafe(18)}\n".encode())
        with suppress(FileExistsError):
            os.link(part, path)    # where two processes make one, both get the first
        os.unlink(part)
    return path.read_text().strip()


def fsync(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """Makes a private folder, unless it is there."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        fsync(path.parent)


def others_may(path: Path) -> int:
    """Returns the mode of a folder that others than its owner may look into, else 0."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:    # it is not there, or nobody's to look into
        return 0
    return mode if mode & 0o077 else 0


def make_private(path: Path) -> None:
    """Closes a folder to all but its owner, whatever its mode was, so that no mode of a file in it matters.

    Raises ProjectError where it cannot be, unless this process could not write there either.
    """
    if not (mode := others_may(path)):
        return
    try:
        path.chmod(mode & 0o700)
    except OSError as error:
        if os.access(path, os.W_OK):
            raise ProjectError(f"others can look into {path}, its mode is {mode:04o}: {error.strerror}",
                               hint=f"have its owner close it: chmod 700 {path}; or use a folder of your own in "
                                    "it") from error


def remove(path: Path) -> None:
    """Deletes a file or a folder, best effort: what stays in tmp/ is collected later."""
    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(path: Path, how: int, seconds: float = inf) -> Iterator[bool]:
    """Holds a flock on a file or folder; yields False where it could not be had in that time.

    The kernel frees it when the last process that holds the open file ends. Programs started meanwhile do not
    inherit it (close-on-exec), nor do forks (`_forget_locks`), so that a killed holder's children keep nothing.
    """
    deadline, mine, pause = time.monotonic() + seconds, False, 0.01
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    _held.add(lock)
    try:
        while not mine:
            try:
                fcntl.flock(lock, how | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause)
                pause = min(1.5 * pause, 0.5)    # whoever waits for hours is not to keep a processor awake
        yield mine
    finally:
        if lock in _held:
            _held.remove(lock)
            os.close(lock)


def hold(path: Path, by: object) -> None:
    """Holds a folder for as long as an object of this process lives: `held` tells others, and a kill ends it."""
    grip = ExitStack()
    grip.enter_context(locked(path, fcntl.LOCK_SH))
    weakref.finalize(by, grip.close)


def held(path: Path) -> bool:
    """Whether any process holds a folder."""
    with locked(path, fcntl.LOCK_EX, 0.0) as free:
        return not free


def _forget_locks() -> None:
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)
