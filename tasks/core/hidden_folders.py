"""Hidden folders beside what a user names, in which it is made; what killed calls left in such is found and ended."""

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from data_contracts.errors import UsageError
from tasks.core.files import locked, making

NEW = ".new"    # ends the name of one in which something new is made: it never holds what was there before
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)    # what renaming a folder to a name in use answers
_DRAWN = "[a-z0-9_]" * 8    # as mkdtemp names them
End = Callable[[Path, Path], None]    # what becomes of a hidden folder, and of what it is beside


def discard(folder: Path, out: Path) -> None:
    """Remove a hidden folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def hidden_folder(out: Path, suffix: str = NEW, end: End = discard) -> Iterator[Path]:
    """Yield a new hidden folder beside `out`, an absolute path; `end` is called with both once the block is done.

    suffix: of its name, one for each `end`. Raises UsageError where it cannot be made.
    """
    folder, lock = _locked(out, suffix)
    with lock:
        try:
            yield folder
        finally:
            end(folder, out)


def end_left(out: Path, suffix: str = NEW, end: End = discard) -> None:
    """Call `end` with each hidden folder that killed calls left beside `out`, an absolute path, and with `out`."""
    for left in out.parent.glob(f".{glob.escape(out.name)}.{_DRAWN}{suffix}"):
        with suppress(OSError):    # another user's, say
            if left.is_dir() and not left.is_symlink():
                with locked(left, fcntl.LOCK_EX, 0.0) as free:
                    if free:
                        end(left, out)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield the name of a folder to make in a hidden one beside `out`; it becomes `out` when the block is done.

    Raises UsageError where `out` cannot be made, or has been made meanwhile.
    """
    end_left(out.absolute())
    with hidden_folder(out.absolute()) as hidden:
        yield hidden / "made"
        try:
            os.rename(hidden / "made", out)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise UsageError(f"{out} has been made by another process meanwhile",
                             hint="name a new folder, or move that one away") from error


def _locked(out: Path, suffix: str) -> tuple[Path, ExitStack]:
    """Return a new hidden folder and its lock, so that nobody takes it for one that was left."""
    while True:
        with making(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=suffix, dir=out.parent))
        lock = ExitStack()
        with suppress(FileNotFoundError):
            lock.enter_context(locked(folder, fcntl.LOCK_SH))
            if folder.exists():    # else `end_left` took it for one, before it was locked
                return folder, lock
        lock.close()
