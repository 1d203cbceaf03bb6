"""File operations of the store: flushed writes, digests, permissions and file locks."""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError

_REMEDIES = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "remove files, or have the quota raised",
    errno.EIO: "check that disk",
    errno.EROFS: "choose a HOME on a disk that is not read-only",
    errno.EACCES: "give this user the right to write there",
    errno.ENOTDIR: "choose a HOME below a folder",
}
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)    # what a full disk answers, or a user's full share of it
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)    # what a file system without hard links answers
FULL = 8_000_000    # free bytes below which a database may fail
# A full disk in the words of libraries whose errors have no number; the last are NumPy's, of a part of an array.
_NO_ROOM = re.compile(r"No space left on device|database or disk is full|\d+ requested and \d+ written")
_held: dict[object, int] = {}    # file descriptors of the locks of this process, by who holds each


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that this user sees."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file directly in a folder, by name."""
    return {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.is_file()}


@contextmanager
def explained(doing: str, place: Path) -> Iterator[None]:
    """Turn disk errors into a ProjectError with a remedy; other errors pass."""
    try:
        yield
    except ProjectError:
        raise
    except Exception as error:
        number = errno.ENOSPC if _NO_ROOM.search(str(error)) else getattr(error, "errno", None)
        if number not in _REMEDIES:
            raise
        what = f"cannot {doing}: {getattr(error, 'filename', None) or place}: {os.strerror(number)}"
        raise ProjectError(what, hint=f"{_REMEDIES[number]}, then run the same command again") from error


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Raise UsageError where a folder that the user names cannot be made; that its disk fails or is full passes."""
    try:
        yield
    except OSError as error:
        if error.errno in (*NO_SPACE, errno.EIO):
            raise
        raise UsageError(f"{folder} cannot be made: {error.strerror}",
                         hint="name a folder where you may write") from error


def full_disk(error: BaseException, place: Path) -> ProjectError | None:
    """Return the error to raise where a failure is due to the disk of `place` being full; else None."""
    free = shutil.disk_usage(nearest_existing(place)).free    # the place itself may have been removed
    # The file that failed to be written is gone by now, and may have left room.
    if free >= FULL and getattr(error, "errno", None) not in NO_SPACE and not _NO_ROOM.search(str(error)):
        return None
    what = "is full" if free < FULL else "had no room for a file"
    return ProjectError(f"the disk of {place} {what}: {free / 1e6:,.1f} MB free",
                        hint="free space on that disk; the same command resumes")


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file that must not exist yet, and flush it to the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    finally:
        os.close(file)


def put_file(data: bytes, target: Path, move: Callable[[Path, Path], None], part: Path | None = None,
             mode: int = 0o600) -> bool:
    """Write a small file to `part`, by default a new one beside `target`, then give it that name: nobody sees it half.

    move: `link`, which keeps a file that is there (False is returned), or os.replace, which replaces it.
    """
    placed = True
    part = part or target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        write_file(part, data, mode)
        move(part, target)
    except FileExistsError:
        placed = False
    finally:
        remove(part)
    fsync(target.parent)
    return placed


def link(part: Path, target: Path) -> None:
    """Give a file a name that must be free, also where the file system has no hard links; `part` may be gone then."""
    try:
        os.link(part, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with locked(target.parent, fcntl.LOCK_EX):    # a rename would replace what another process has put there
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            os.replace(part, target)


def secret(path: Path) -> str:
    """Return the line in a private file, "xc:" and a password; the first call creates it."""
    if not path.exists():
        with explained("keep a password", path.parent):
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            put_file(f"xc:{secrets.token_urlsafe(18)}\n".encode(), path, link)
    return path.read_text().strip()


def fsync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """Create a private folder, unless it exists."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        fsync(path.parent)


def mode_for_others(path: Path) -> int:
    """Return the mode of a folder that others than its owner may look into, else 0."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:    # it does not exist, or nobody may look into it
        return 0
    return mode if mode & 0o077 else 0


def make_private(path: Path) -> None:
    """Close a folder to all but its owner, so that the modes of the files in it do not matter.

    Raises ProjectError where that fails, unless this process could not write there either.
    """
    if not (mode := mode_for_others(path)):
        return
    try:
        path.chmod(mode & 0o700)
    except OSError as error:
        if os.access(path, os.W_OK):
            raise ProjectError(f"others can look into {path}, its mode is {mode:04o}: {error.strerror}",
                               hint=f"have its owner close it: chmod 700 {path}; or use a folder of your own in "
                                    "it") from error


def remove(path: Path) -> None:
    """Delete a file or a folder, best effort: what stays in tmp/ is collected later."""
    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(path: Path, how: int, seconds: float = inf) -> Iterator[bool]:
    """Hold a flock on a file or folder; yield whether it was acquired within `seconds`.

    The kernel frees it when the last process that holds the open file ends. Programs started meanwhile do not
    inherit it (close-on-exec), nor do forks (`_forget_locks`), so a killed process leaves no lock to its children.
    """
    deadline, acquired, pause = time.monotonic() + seconds, False, 0.01
    lock, holder = os.open(path, os.O_RDONLY | os.O_CLOEXEC), object()
    _held[holder] = lock
    try:
        while not acquired:
            try:
                fcntl.flock(lock, how | fcntl.LOCK_NB)
                acquired = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause)
                pause = min(1.5 * pause, 0.5)    # a wait of hours should not keep a processor awake
        yield acquired
    finally:
        if holder in _held:    # else it is of the process that forked this one, where another file may have its number
            os.close(_held.pop(holder))


def hold(path: Path, by: object) -> None:
    """Mark a folder as in use (`held`) for as long as the object `by` of this process lives."""
    lock = ExitStack()
    lock.enter_context(locked(path, fcntl.LOCK_SH))
    weakref.finalize(by, lock.close)


def held(path: Path) -> bool:
    """Return whether any process holds a folder; what is none, a link or a pipe, is held by nobody."""
    if path.is_symlink() or not path.is_dir():
        return False
    try:
        with locked(path, fcntl.LOCK_EX, 0.0) as free:
            return not free
    except FileNotFoundError:    # removed meanwhile
        return False


def _forget_locks() -> None:
    for lock in _held.values():
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)
