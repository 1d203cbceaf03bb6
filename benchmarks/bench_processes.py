"""How much label memory does each of two training processes need, and do their losses equal those of one process?

    python -m benchmarks.bench_processes [labels] [method ...]

One process and two run the same steps, on CPUs over gloo. Memory is the label vectors and their optimiser moments in
one process. Losses are compared step by step.
"""

import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.arguments import Count, MethodName, run
from benchmarks.measuring import cpu_config
from benchmarks.synthetic import CorpusShape, synthetic_corpus
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.registry import METHODS
from xcmodels.nn import distributed
from xcmodels.training.loop import Interrupted, Progress, Watch, train_round
from xcmodels.training.optimisers import Optimisers

STEPS = 30
DEFAULTS = ("astra", "unidec")
ONE = LaunchConfig(1, 1, 1, run_id="bench", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)


def measure(name: str, scratch: Path) -> tuple[list[float], np.ndarray, float]:
    """Train as one of the processes; return losses and milliseconds of steps, in the first process, and megabytes."""
    torch.set_num_threads(1)
    distributed.join()
    corpus = Corpus(scratch / "corpus")
    config: Any = cpu_config(name)
    method = METHODS[name].make(replace(config, encoder=replace(config.encoder, source="random", dim=64)))
    stage = method.stages[0]
    model = stage.build(corpus, {})
    losses, times = list[float](), list[float]()

    def on_step(progress: Progress) -> None:
        losses.append(progress.loss)
        times.append(time.perf_counter())

    out = scratch / f"{name}-{distributed.count()}"
    out.mkdir(exist_ok=True)
    with suppress(Interrupted):
        train_round(stage, model, corpus, stage.rounds[0], Mined(), start=None, scratch=out / "steps", out=out,
                    watch=Watch(on_step, lambda: len(losses) == STEPS, save_every=float("inf")))
    optimiser = Optimisers(model, stage.plan).rows["labels"]
    label_bytes = sum(tensor.nbytes for tensor in (optimiser.table.weight, *optimiser.state().values()))
    return losses, 1000 * np.diff(times), label_bytes / 1e6


def main(labels: Count = 200_000, *methods: MethodName) -> None:
    """Print one row per method."""
    print(f"{labels:,} labels, d = 64, {STEPS} steps, one thread per process")
    print(f"{'':<10}{'MB, one':>10}{'MB, two':>10}{'ms, one':>10}{'ms, two':>10}{'loss differs by':>18}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        synthetic_corpus(Path(scratch) / "corpus", CorpusShape(queries=100_000, labels=labels, positives=5.0))
        for name in methods or DEFAULTS:
            (ones, ms, mb), (twos, ms_of_two, mb_of_two) = (
                elastic_launch(replace(ONE, nproc_per_node=processes), measure)(name, Path(scratch))[0]
                for processes in (1, 2))
            difference = max(abs(a - b) / abs(a) for a, b in zip(ones, twos, strict=True))
            print(f"{name:<10}{mb:>10.1f}{mb_of_two:>10.1f}{np.median(ms):>10.1f}{np.median(ms_of_two):>10.1f}"
                  f"{difference:>18.1e}", flush=True)


if __name__ == "__main__":
    run(main, __doc__)
