"""What do two processes that train together hold and lose? The same steps by one and by two, on CPUs over gloo.

    python -m benchmarks.bench_together [labels] [method ...]

The loss is compared step by step. Memory is of the label vectors and their moments, in each process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.asked import Count, MethodName, answer
from benchmarks.made import Shape, made
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.nn import distributed
from xcmodels.training.loop import Interrupted, Progress, Watch, train_round
from xcmodels.training.optimisers import Optimisers

STEPS = 30
ASKED = ("astra", "unidec")


def steps(name: str, scratch: Path) -> None:
    """Take the steps as one of the processes; the first one writes what was found."""
    distributed.join()
    corpus, settings = Corpus(scratch / "corpus"), resolve(name, "cpu", {}).method
    known: Any = settings
    method = METHODS[name].make(replace(known, encoder=replace(known.encoder, source="random", dim=64)))
    stage = method.stages[0]
    model = stage.build(corpus, {})
    losses, times = list[float](), list[float]()

    def report(progress: Progress) -> None:
        losses.append(progress.loss)
        times.append(time.perf_counter())

    out = scratch / f"{name}-{distributed.count()}"
    out.mkdir(exist_ok=True)
    with suppress(Interrupted):
        train_round(stage, model, corpus, stage.rounds[0], Mined(), start=None, scratch=out / "steps", out=out,
                    watch=Watch(report, lambda: len(losses) == STEPS, save_every=float("inf")))
    rows = Optimisers(model, model.tables(), stage.plan).rows["labels"]
    held = sum(tensor.nbytes for tensor in (rows.table.weight, *rows.state().values()))
    if distributed.rank() == 0:
        found = {"losses": losses, "ms": 1000 * float(np.median(np.diff(times))), "MB": held / 1e6}
        (out / "found.json").write_text(json.dumps(found))


def main(labels: Count = 200_000, *methods: MethodName) -> None:
    """Print one row a method."""
    shape = Shape(queries=100_000, labels=labels, positives=5.0)
    print(f"{shape.labels:,} labels, d = 64, {STEPS} steps, one thread a process")
    print(f"{'':<10}{'MB, one':>10}{'MB, two':>10}{'ms, one':>10}{'ms, two':>10}{'loss differs by':>18}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        made(Path(scratch) / "corpus", shape)
        for name in methods or ASKED:
            found = {}
            for processes in (1, 2):
                subprocess.run(
                    [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
                     "--module", "benchmarks.bench_together", "--of", name, scratch], check=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"})
                found[processes] = json.loads((Path(scratch) / f"{name}-{processes}" / "found.json").read_text())
            one, two = found[1], found[2]
            apart = max(abs(a - b) / abs(a) for a, b in zip(one["losses"], two["losses"], strict=True))
            print(f"{name:<10}{one['MB']:>10.1f}{two['MB']:>10.1f}{one['ms']:>10.1f}{two['ms']:>10.1f}{apart:>18.1e}",
                  flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--of"]:
        steps(sys.argv[2], Path(sys.argv[3]))
    else:
        answer(main, __doc__)
