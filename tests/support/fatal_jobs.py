"""Jobs that kill or stop the Dask worker that does them; a module that a worker started again imports at once."""

import os
import signal
from pathlib import Path


def kill_worker_once(marker: Path, value: int) -> int:
    """Return the value, but kill the worker where `marker` is not there yet."""
    if not marker.exists():
        marker.write_text("")
        kill_worker(value)
    return value


def kill_worker(value: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def stop_worker(value: int) -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return value
