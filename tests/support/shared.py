"""What the test processes of a session share: the first that needs it makes it, and none changes it."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_folders: list[Path] = []    # one, once a session has begun
_locks: list[int] = []       # held until this process ends
# Kills a process, and its group where it leads one, once no test process holds the lock, however they ended.
_KILL_AT_THE_END = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
pid = int(sys.argv[2])
(os.killpg if os.getpgid(pid) == pid else os.kill)(pid, 15)
"""


def share_folder_of(factory: pytest.TempPathFactory) -> None:
    """Keep what is shared among the temporary folders of the session that this process belongs to."""
    own = factory.getbasetemp()
    _folders[:] = [own.parent if "PYTEST_XDIST_WORKER" in os.environ else own]
    _locks.append(os.open(_folders[0] / "tests", os.O_RDONLY | os.O_CREAT))
    fcntl.flock(_locks[-1], fcntl.LOCK_SH)


def end_with_tests(server: subprocess.Popen) -> None:
    """Let a process, and its group where it leads one, end when the last test process of the session has ended."""
    subprocess.Popen([sys.executable, "-S", "-c", _KILL_AT_THE_END, _folders[0] / "tests", str(server.pid)],
                     start_new_session=True)


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
