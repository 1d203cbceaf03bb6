"""What the test processes of a session share: the first that needs it makes it, and none changes it."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

_folders: list[Path] = []    # one, once a session has begun


def share_folder_of(factory: pytest.TempPathFactory) -> None:
    """Keep what is shared among the temporary folders of the session that this process belongs to."""
    own = factory.getbasetemp()
    _folders[:] = [own.parent if "PYTEST_XDIST_WORKER" in os.environ else own]


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` filled, in whichever process; where it failed, the next process tries again."""
    (session,) = _folders
    folder = session / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made := Path(f"{folder}.made")).exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder
