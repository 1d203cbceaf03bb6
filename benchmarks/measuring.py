"""What benchmarks measure with: the seconds of a call, and the peak memory of this process."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    return action(), time.perf_counter() - start


def peak_memory() -> int:
    """Return the peak memory of this process in bytes (Linux); that of `getrusage` includes its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
