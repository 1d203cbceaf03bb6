"""How long does preparation take and how much memory, by number of workers, and on ten times the data?

    python -m benchmarks.bench_prepare DATA [method]

DATA is a raw data set in the XC JSON-lines format. Each row is a run in a new home, whose Prefect server first creates
its tables: "seconds" is the whole command, "in steps" the sum of its steps, each listed at the end of the row. The last
row is a copy in which each training query occurs ten times, each time with another text. Memory is the peak of the run
and its workers together, shared pages counted once.
"""

import gzip
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from scipy import sparse

from benchmarks.arguments import JsonLines, MethodName, run
from benchmarks.measuring import run_xc
from tasks.core.memory import memory_use
from tasks.data.sources.raw import GROUPS
from tasks.data.sources.writing import write_lines

TIMES = 10
TRAINING_FILE = "trn.json.gz"


def memory(pid: int) -> int:
    """Return the bytes that a process and its descendants use, without Prefect's server, which a deployment has."""
    servers = list[psutil.Process]()
    with suppress(psutil.Error):
        servers = [child for child in psutil.Process(pid).children(recursive=True) if "server" in child.cmdline()]
    return memory_use(pid).bytes - sum(memory_use(server.pid).bytes for server in servers)


def prepare(data: Path, home: Path, method: str, workers: int) -> tuple[float, int, dict[str, float]]:
    """Prepare a data set in a new home; return seconds, peak bytes, and the seconds of each step."""
    # every 2 s, not less: a process gets no new pages while its pages are counted
    seconds, peak = run_xc("prepare", "--data", str(data), "--home", str(home), "--method", method, "--workers",
                           str(workers), every=2, held=memory)
    steps = {file.name.removesuffix(f"-{data.name}"): json.loads(file.read_text())["seconds"]
             for file in sorted((home / "refs" / "timings").iterdir())}
    return seconds, peak, steps


def enlarge(data: Path, out: Path, times: int) -> Path:
    """Write a copy of a data set with each training query `times` times, a different word added to each.

    The copies of a query stand together, and so do their groups, their edges to anchors and their filter pairs.
    """
    shutil.copytree(data, out)
    with gzip.open(data / TRAINING_FILE, "rt") as rows, gzip.open(out / TRAINING_FILE, "wt", compresslevel=1) as copy:
        for line in rows:
            row = json.loads(line)
            for number in range(times):
                changed = {**row, "uid": f"{row['uid']}-{number}", "title": f"{row['title']} {number}"}
                copy.write(json.dumps(changed, ensure_ascii=False) + "\n")
    if (groups := data / GROUPS).exists():
        write_lines(out / GROUPS, (name for name in groups.read_text().splitlines() for _ in range(times)))
    for edges in data.glob("*_trn_X_Y.txt"):
        header, *lines = edges.read_text().splitlines()
        count, columns = header.split()
        repeated = (line for line in lines for _ in range(times))
        (out / edges.name).write_text("\n".join([f"{int(count) * times} {columns}", *repeated]) + "\n")
    for edges in data.glob("*_trn_X_Y.npz"):
        matrix = sparse.load_npz(edges).tocsr()
        sparse.save_npz(out / edges.name, matrix[np.repeat(np.arange(matrix.shape[0]), times)])
    if (filters := data / "filter_labels_train.txt").exists():
        pairs = [line.split() for line in filters.read_text().splitlines() if line]
        (out / filters.name).write_text("".join(
            f"{int(row) * times + number} {label}\n" for row, label in pairs for number in range(times)))
    return out


def main(data: JsonLines, method: MethodName = "ngame") -> None:
    """Print one row per run."""
    print(f"{'data':<22}{'workers':>8}{'seconds':>10}{'in steps':>10}{'MB':>8}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        large = enlarge(data, Path(scratch) / f"{data.name}-{TIMES}", TIMES)
        for number, (folder, workers) in enumerate(((data, 1), (data, 2), (large, 2))):
            home = Path(scratch) / f"home-{number}"
            seconds, peak, steps = prepare(folder, home, method, workers)
            by_step = ", ".join(f"{name} {seconds:.0f}" for name, seconds in steps.items())
            print(f"{folder.name:<22}{workers:>8}{seconds:>10.1f}{sum(steps.values()):>10.1f}{peak / 1e6:>8.0f}   "
                  f"{by_step}", flush=True)
            shutil.rmtree(home)


if __name__ == "__main__":
    run(main, __doc__)
