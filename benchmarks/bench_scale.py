"""Do an epoch and a refresh at the size of LF-AmazonTitles-1.3M fit, and how long do they take?

    python -m benchmarks.bench_scale [share in percent] [method ...]

The corpus is made up: 1.3 million labels, 2.2 million queries with 22 labels each, vectors of 64; a share of it is as
much smaller in every count. Memory is the most that the process held; what is mapped from files is in it as far as it
is in memory. Each method runs in a process of its own. Beside what was measured stands what `xc plan` would have told.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.asked import Count, MethodName, answer
from benchmarks.made import AMAZON_TITLES_1_3M, Shape, made, most_held
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Round
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.negatives import hard_negatives
from xcmodels.resources import HOST, ROUND, Size, budget, read_rates, with_width
from xcmodels.retrieval import ann
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import Watch, fast_products, train_round

METHODS_ASKED = ("astra", "unidec")
DIM, DRAWN = 64, 20_000


def shape(percent: int) -> Shape:
    """Return a share of LF-AmazonTitles-1.3M's shape."""
    whole = AMAZON_TITLES_1_3M
    return replace(whole, queries=whole.queries * percent // 100, labels=whole.labels * percent // 100)


@fast_products()
def epoch(name: str, corpus: Corpus, scratch: Path) -> dict[str, float]:
    """Train one epoch of a method and mine for the next; return seconds and GB of either, and what was predicted.

    Of the queries, DRAWN are searched for, and the time for all is in proportion.
    """
    method = METHODS[name].make(with_width(resolve(name, "cpu", {}).method, DIM))
    stage, mining = method.stages[0], next(each for each in method.rounds if each.mines)
    out = scratch / name
    out.mkdir()
    done = list[float]()
    train_round(stage, stage.build(corpus, {}), corpus, Round(stage.name, 0, 0, 1), Mined(), start=None,
                scratch=out / "steps", out=out, watch=Watch(lambda progress: done.append(time.perf_counter())))
    # From the first step to the last: what comes before is once a stage.
    trained, held = (done[-1] - done[0]) * len(done) / max(len(done) - 1, 1), _gb()
    model = stage.build(corpus, {})
    load_model(model, out)
    began = time.perf_counter()
    vectors = stage.vectors(model, corpus)
    queries, labels = vectors["queries"](), vectors["labels"]()
    index, rows = ann.build(labels), corpus.training_rows()
    made = time.perf_counter() - began
    drawn = np.sort(seeds.generator(0, "searched").choice(rows, min(DRAWN, len(rows)), replace=False))
    began = time.perf_counter()
    hard_negatives(index, queries, corpus, drawn, mining.negatives)
    searched = (time.perf_counter() - began) * len(rows) / len(drawn)
    began = time.perf_counter()
    if mining.cluster_size:
        balanced_kmeans(queries[rows], mining.cluster_size, seed=0)
    clustered = time.perf_counter() - began
    of = AMAZON_TITLES_1_3M
    size = Size(corpus.n_labels, len(rows), of.positives, of.tokens)
    told = budget(method, size, read_rates())
    most = sum(part.size for part in told.held(HOST, ROUND))
    return {"epoch s": trained, "told epoch": told.epoch or 0.0, "refresh s": made + searched + clustered,
            "told refresh": told.refresh or 0.0, "GB": held, "told GB": most / 1e9,
            "GB with refresh": _gb()}


def _gb() -> float:
    return most_held() / 1e9


def main(percent: Count = 100, *methods: MethodName) -> None:
    """Print one row a method."""
    of = shape(percent)
    print(f"{of.labels:,} labels, {of.queries:,} queries, d = {DIM}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        began = time.perf_counter()
        made(Path(scratch) / "corpus", of)
        print(f"made up in {time.perf_counter() - began:.0f} s", flush=True)
        for name in methods or METHODS_ASKED:
            child = [sys.executable, "-m", "benchmarks.bench_scale", "--of", name, scratch]
            found = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"{name:<10}" + "".join(f"{about:>18} {value:>8.2f}" for about, value in found.items()), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(epoch(sys.argv[2], Corpus(Path(sys.argv[3]) / "corpus"), Path(sys.argv[3]))))
    else:
        answer(main, __doc__)
