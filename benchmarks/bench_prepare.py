"""How long does preparation take and how much memory, by workers, and on ten times the data?

    python -m benchmarks.bench_prepare DATA [method]

DATA is a data set's folder. Each row is of a new home, in which Prefect's server first makes its tables: seconds are of
the command, those of the steps are told beside them. The last row is of a copy whose training queries are each there
ten times, with other texts. Memory is the most that the run and its workers held together, shared pages once.
"""

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import psutil

from benchmarks.asked import MethodName, answer

TIMES = 10
TRAINING = "trn.json.gz"


class Memory(threading.Thread):
    """Watches how much a process and its children hold."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.most, self.over = process, 0, threading.Event()

    def run(self) -> None:
        """Look every two seconds, until it is over: while the pages of a process are added up, it gets no new ones."""
        while not self.over.wait(2):
            held = 0
            for each in [self.process, *self._children()]:
                with suppress(psutil.Error):
                    if "server" not in each.cmdline():    # of Prefect, which a deployment has anyway
                        held += each.memory_full_info().pss
            self.most = max(self.most, held)

    def _children(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return self.process.children(recursive=True)
        return []


def prepare(data: Path, home: Path, method: str, workers: int) -> tuple[float, int, dict[str, float]]:
    """Prepare a data set in a new home; return seconds, bytes, and the seconds of each step."""
    command = [sys.executable, "-m", "flows.cli", "prepare", "--data", str(data), "--home", str(home), "--method",
               method, "--workers", str(workers)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        memory = Memory(psutil.Process(run.pid))
        memory.start()
        code = run.wait()
        memory.over.set()
    took = time.perf_counter() - began
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    steps = {kept.name.removesuffix(f"-{data.name}"): json.loads(kept.read_text())["seconds"]
             for kept in sorted((home / "refs" / "timings").iterdir())}
    return took, memory.most, steps


def larger(data: Path, out: Path, times: int) -> Path:
    """Write a copy of a data set whose training queries are there `times` times, each with a word more."""
    shutil.copytree(data, out)
    with gzip.open(data / TRAINING, "rt") as rows, gzip.open(out / TRAINING, "wt", compresslevel=1) as copy:
        for line in rows:
            row = json.loads(line)
            for time_ in range(times):
                again = {**row, "uid": f"{row['uid']}-{time_}", "title": f"{row['title']} {time_}"}
                copy.write(json.dumps(again, ensure_ascii=False) + "\n")
    return out


def benchmark_folder(word: str) -> Path:
    """Read the path of a folder in the format of a benchmark, whose training queries can be copied."""
    if not Path(word, TRAINING).is_file():
        raise ArgumentTypeError(f"{word!r} has no {TRAINING}")
    return Path(word)


def main(data: Annotated[Path, benchmark_folder], method: MethodName = "ngame") -> None:
    """Print one row a run."""
    print(f"{'data':<22}{'workers':>8}{'seconds':>10}{'of steps':>10}{'MB':>8}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        copy = larger(data, Path(scratch) / f"{data.name}-{TIMES}", TIMES)
        for number, (of, workers) in enumerate(((data, 1), (data, 2), (copy, 2))):
            home = Path(scratch) / f"home-{number}"
            seconds, held, steps = prepare(of, home, method, workers)
            told = ", ".join(f"{name} {took:.0f}" for name, took in steps.items())
            print(f"{of.name:<22}{workers:>8}{seconds:>10.1f}{sum(steps.values()):>10.1f}{held / 1e6:>8.0f}   {told}",
                  flush=True)
            shutil.rmtree(home)


if __name__ == "__main__":
    answer(main, __doc__)
