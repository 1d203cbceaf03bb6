"""GPUs, free disk space and ports of this machine."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tasks.core.files import nearest_existing

DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")    # device files of GPU drivers in /dev: NVIDIA, AMD, WSL


def gpus() -> int:
    """Return how many GPUs torch sees; torch takes seconds to import, so it is only imported where there may be one."""
    if sys.platform == "linux" and not any(list(Path("/dev").glob(name)) for name in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk where a folder is, or would be created."""
    return shutil.disk_usage(nearest_existing(folder)).free


def listeners(port: int) -> list[int]:
    """Return the pids of the processes that listen on a port, as far as this user may see them."""
    with suppress(psutil.Error, OSError):
        return [connection.pid for connection in psutil.net_connections("tcp") if connection.pid
                and connection.status == psutil.CONN_LISTEN and connection.laddr.port == port]
    return []


def port_holder(port: int) -> str:
    """Return the pid and command of the process that listens on a port, as far as this user may see them."""
    with suppress(psutil.Error, OSError):
        for pid in listeners(port):
            return f"process {pid}: {' '.join(psutil.Process(pid).cmdline())[:200]}"
    return "a process of another user"
