"""What the store writes in HOME, the folder of all state, and HOME's permissions.

    HOME/FORMAT               version of this layout
    HOME/lock, gc.lock        flock: one run at a time; writers hold gc.lock shared, garbage collection exclusively
    HOME/tmp/<uuid>           unfinished; dead whenever gc.lock can be had exclusively
    HOME/objects/<sha256>/    immutable, named by the sha256 of its MANIFEST.json, which lists the sha256 of each file;
                              with the file SPENT (manifest.REMOVED) in it, some of its files were removed
    HOME/refs/<kind>/<name>   small JSON; refs/steps/<step key> is written once, the others can be moved
    HOME/scratch/<step key>/  checkpoints of an unfinished step        HOME/quarantine/   objects that do not verify
"""

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf, nan
from pathlib import Path
from typing import Any

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import (
    explained,
    link,
    locked,
    make_folder,
    make_private,
    mode_for_others,
    nearest_existing,
    put_file,
    remove,
)
from tasks.core.manifest import VERSION, canonical, damaged, newer

CHECKPOINTS = "steps"    # in a step's scratch folder: the states that it resumes from
LOCK_SECONDS = 0.5  # long enough for a run that has just started to write its pid
DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Home:
    """A HOME's locks, refs and scratch folders; its only state is its path."""

    def __init__(self, home: Path, *, create: bool = True) -> None:
        self.home = Path(home).absolute()
        form = self.home / "FORMAT"
        if create:
            require_folder(self.home)
            _require_private(self.home)
            with explained("set up HOME", self.home):
                try:
                    self.home.parent.mkdir(parents=True, exist_ok=True)
                    self._make_folders()
                except (FileExistsError, FileNotFoundError) as error:    # a link to nothing, or below /proc
                    raise UsageError(f"{self.home} cannot be a HOME: {error.filename}: {error.strerror}",
                                     hint="choose another folder: --home DIR") from error
                for name in ("lock", "gc.lock"):
                    os.close(os.open(self.home / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                if not form.exists():
                    with self._gc_lock("set up HOME"):
                        self._place(f"{VERSION}\n".encode(), form, link)
        make_home_private(self.home)
        try:
            if int(form.read_text()) > VERSION:
                raise newer(form)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_home(self.home) from error
        except ValueError as error:
            raise DamagedArtifact(f"{form} is not a version", hint=f"restore it: echo {VERSION} > {form}") from error
        if not create and os.access(self.home, os.W_OK):    # a backup may lack folders that were empty
            with explained("set up HOME", self.home):
                self._make_folders()

    @contextmanager
    def run_lock(self, seconds: float = LOCK_SECONDS, *, page: str = "") -> Iterator[None]:
        """Make this the only run in HOME. Raises UsageError with the pid of the other run after `seconds`.

        page: where a scheduled run can be cancelled.
        """
        path = self.home / "lock"
        with locked(path, fcntl.LOCK_EX, seconds) as acquired:
            if not acquired:
                pid, _, scheduled = path.read_text().strip().partition("\n")
                raise UsageError(f"{self.home} is in use by process {pid}{', a scheduled run' if scheduled else ''}",
                                 hint=f"wait for it, or cancel it: {scheduled}" if scheduled else
                                      f"wait for it, or stop it: kill {pid}")
            with explained("start a run", self.home):
                path.write_text(f"{os.getpid()}\n{page}".rstrip() + "\n")
            yield

    def set_ref(self, kind: str, name: str, value: Mapping[str, Any]) -> None:
        """Set refs/<kind>/<name> to `value` atomically; `collect` keeps each digest in it."""
        target = self._ref(kind, name)
        with self._gc_lock(f"set {kind}/{name}"):
            make_folder(target.parent)
            self._place(canonical(dict(value)), target, os.replace)

    def get_ref(self, kind: str, name: str) -> dict[str, Any] | None:
        path = self._ref(kind, name)
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (RecursionError, ValueError) as error:
            raise damaged(path, "is not JSON") from error
        if not isinstance(value, dict):
            raise damaged(path, "is not a JSON object")
        return value

    def scratch(self, key: str) -> Path:
        """Return a folder for the checkpoints of step `key`, which outlives a killed run."""
        folder = self.home / "scratch" / checked(key, DIGEST)
        with explained("make a scratch folder", self.home):
            make_folder(folder)
        return folder

    def drop_scratch(self, key: str) -> None:
        remove(self.home / "scratch" / checked(key, DIGEST))

    @contextmanager
    def no_collection(self) -> Iterator[None]:
        """Block garbage collection, so that what is found or published can be used before a ref names it."""
        with locked(self.home / "gc.lock", fcntl.LOCK_SH):
            yield

    def sweep(self) -> None:
        """Remove what killed writers left in tmp/; does nothing while somebody writes."""
        with self._gc_lock("collect", fcntl.LOCK_EX, 0.0) as acquired:
            for path in (self.home / "tmp").iterdir() if acquired else ():
                remove(path)

    def _make_folders(self) -> None:
        make_folder(self.home)
        for name in ("tmp", "objects", "refs", "refs/steps", "scratch", "quarantine"):
            make_folder(folder := self.home / name)
            if not folder.is_dir():
                raise UsageError(f"{folder} is no folder", hint="mount the disk that it leads to, or move it away")

    def _ref(self, kind: str, name: str) -> Path:
        return self.home / "refs" / checked(kind) / checked(name)

    def _place(self, data: bytes, target: Path, move: Callable[[Path, Path], None]) -> bool:
        return put_file(data, target, move, self.home / "tmp" / uuid.uuid4().hex)

    @contextmanager
    def _gc_lock(self, doing: str, how: int = fcntl.LOCK_SH, seconds: float = inf) -> Iterator[bool]:
        """Hold gc.lock while `doing` something; yield whether it was acquired within `seconds`."""
        with explained(doing, self.home), locked(self.home / "gc.lock", how, seconds) as acquired:
            yield acquired


@contextmanager
def earlier_seconds(scratch: Path) -> Iterator[float]:
    """Yield how many seconds the earlier parts of a step took; if this one is stopped, note how long all of them did.

    NaN where a part was killed, which notes nothing; 0 where they left nothing to resume from.
    """
    note, began, before = scratch / "seconds", time.monotonic(), 0.0
    with suppress(OSError, ValueError):    # a step does not fail for it
        if any((scratch / CHECKPOINTS).glob("*")):
            before = nan
            before = float(note.read_text())
    with suppress(OSError):
        note.unlink()
    try:
        yield before
    except BaseException:
        with suppress(OSError):    # the step ended for a reason that says more
            note.write_text(str(before + time.monotonic() - began))
        raise


def require_folder(home: Path) -> None:
    """Raise UsageError where HOME, or what it would be in, is a file."""
    if not (place := nearest_existing(home)).is_dir():
        raise UsageError(f"{home} cannot be a HOME: {place} is a file", hint="choose a folder: --home DIR")


def _require_private(home: Path) -> None:
    """Close a folder that is to be a HOME. Raises UsageError where it holds other files that others can look into."""
    if not (mode := mode_for_others(home)) or (home / "FORMAT").exists():
        return
    if any(home.iterdir()):
        raise UsageError(f"{home} holds other files, and others can look into it: its mode is {mode:04o}",
                         hint="choose a folder that is not there yet")
    make_private(home)    # before anything is in it: the next call would take what a kill leaves for other files


def no_home(folder: Path) -> UsageError:
    """Return the error to raise where a folder is not the HOME that it should be."""
    return UsageError(f"{folder} is not the HOME of a pipeline", hint="give the folder that xc run made: --home DIR")


def make_home_private(home: Path) -> None:
    """Make a HOME private to its owner, whatever its mode was; another folder is left alone."""
    if (home / "FORMAT").exists():
        make_private(home)


def checked(name: str, pattern: re.Pattern[str] = _NAME) -> str:
    if not pattern.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name in HOME", hint=f"a name matches {pattern.pattern}")
    return name
