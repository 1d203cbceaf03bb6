"""What benchmarks measure with: the seconds of a call, a process of its own for a call, and its peak memory."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from flows.services.processes import end_with_parent
from xcmodels.methods.presets import resolve

Result = TypeVar("Result")
# Settings that leave the stage of NGAME out, so that the method's own is the first.
OWN_STAGE = {"astra": {"start": "label"}, "renee": {"start": "label"}}


def cpu_config(method: str) -> Any:
    """Return the settings of a method's preset `cpu`, changed by OWN_STAGE."""
    return resolve(method, "cpu", OWN_STAGE.get(method, {})).method


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    return action(), time.perf_counter() - start


def process_pool(count: int) -> ProcessPoolExecutor:
    """Return a pool of new processes that end with this one, though it is killed."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))


def in_new_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a call in a process of its own, whose memory and threads are of that call alone."""
    with process_pool(1) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes (Linux); that of `getrusage` includes its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
