"""What benchmarks measure with: times and peak memory of a call or of `xc`, a process of its own, random negatives."""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from flows.services.processes import end_with_parent
from tasks.core.files import put_file
from tasks.core.memory import memory_use
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Stage
from xcmodels.methods.presets import resolve
from xcmodels.nn.devices import device

Result = TypeVar("Result")
# Settings that leave the stage of NGAME out, so that the method's own is the first, and train its tokens.
_WITHOUT_M1 = {"start": "label", "lr": "2e-3", "token_lr": "2e-3", "label_lr": "5e-3"}
OWN_STAGE = {"astra": _WITHOUT_M1, "renee": _WITHOUT_M1}


def cpu_config(method: str) -> Any:
    """Return the settings of a method's preset `cpu`, changed by OWN_STAGE."""
    return resolve(method, "cpu", OWN_STAGE.get(method, {})).method


def mined_at_random(stage: Stage[Any], corpus: Corpus) -> Mined:
    """Return hard negatives for every query of the training side as the stage's last round has them, at random.

    So no two queries share any, as those of a cluster do: a step of UniDEC took 6% longer.
    """
    size, rng = (len(corpus.sides["train"]), stage.rounds[-1].n_negatives), np.random.default_rng(0)
    return Mined(negatives=rng.integers(corpus.n_labels, size=size, dtype=np.int32)) if size[1] else Mined()


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    return action(), time.perf_counter() - start


def run_xc(*words: str, every: float = 0.5, held: Callable[[int], int] = lambda pid: memory_use(pid).bytes
           ) -> tuple[float, int]:
    """Run `xc` with these words; return its seconds, and the bytes that its processes held together at most.

    held: reads those of a process and its descendants, `every` so many seconds. Ends this program with what `xc` said
    where it fails.
    """
    command, most, began = [sys.executable, "-m", "flows.cli", *words], 0, time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors, \
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(every)
            most = max(most, held(process.pid))
        seconds = time.perf_counter() - began
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"xc {' '.join(words)} ended with {process.returncode}\n{errors.read()[-2000:]}")
    return seconds, most


def process_pool(count: int) -> ProcessPoolExecutor:
    """Return a pool of new processes that end with this one, though it is killed."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))


def in_new_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a call in a process of its own, whose memory and threads are of that call alone."""
    with process_pool(1) as pool:
        return pool.submit(function, *arguments).result()


def machine() -> str:
    """Return what is measured on: the name of the GPU, or the number of processors and their name (Linux)."""
    if device().type != "cpu":
        return str(torch.cuda.get_device_name())
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{torch.get_num_threads()} processors: {names[0] if names else platform.machine()}"


def write_whole(file: Path, text: str) -> None:
    """Write a file that people read and keep; a full disk or a kill leaves the earlier one as it was."""
    put_file(text.encode(), file, os.replace, mode=0o644)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes (Linux); that of `getrusage` includes its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
