"""Do an epoch and a refresh at the size of LF-AmazonTitles-1.3M fit in memory, and how long do they take?

    python -m benchmarks.bench_scale [percent of that size] [method ...]

The corpus is synthetic: 1.3 million labels, 2.2 million queries with 22 labels each, vectors of 64; a percentage scales
queries and labels. Each method runs in a process of its own. Memory is the peak of that process, pages of mapped files
included. Next to each measurement is what `xc plan --labels` predicts.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.arguments import Count, MethodName, run
from benchmarks.measuring import cpu_config, in_new_process, mined_at_random, peak_memory, timed
from benchmarks.synthetic import AMAZON_TITLES_1_3M, CorpusShape, synthetic_corpus
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import unique
from xcmodels.methods.all_methods import METHODS
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.refresh import build_index, nearest_negatives
from xcmodels.nn.devices import fast_products
from xcmodels.resources import HOST, ROUND, Size, estimate, read_rates, with_width
from xcmodels.retrieval import ann
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import Watch, train_round

DEFAULTS = ("astra", "unidec")
DIM, SEARCHED, STRETCHES, TRIED = 64, 20_000, 10, 256


def scaled_shape(percent: int) -> CorpusShape:
    """Return the shape of LF-AmazonTitles-1.3M with a percentage of its queries and labels."""
    full = AMAZON_TITLES_1_3M
    return replace(full, queries=full.queries * percent // 100, labels=full.labels * percent // 100)


def drawn(rows: np.ndarray) -> np.ndarray:
    """Return about SEARCHED positions of the rows (n,), in STRETCHES: whole groups, if they are in that order."""
    size = min(SEARCHED // STRETCHES, max(len(rows) // STRETCHES, 1))
    starts = np.sort(seeds.generator(0, "searched").integers(0, len(rows) - size + 1, STRETCHES))
    return unique(starts[:, None] + np.arange(size))


@fast_products()
def epoch_and_refresh(name: str, scratch: Path) -> dict[str, float]:
    """Train a method for one epoch and mine for the next; return measured and predicted seconds and gigabytes.

    The epoch is one of the last round, on negatives drawn at random, as many as are mined for it. About
    SEARCHED of the queries are searched for, whole groups of them; the time for all is in proportion. The refresh is
    the last one, as predicted. NaN where nothing is mined, or no rate was measured.
    """
    corpus, method = Corpus(scratch / "corpus"), METHODS[name].make(with_width(cpu_config(name), DIM))
    stage, unknown = method.stages[0], float("nan")
    mining = next((round_ for round_ in reversed(stage.rounds) if round_.mines), None)
    out = scratch / name
    out.mkdir()
    times = list[float]()
    train_round(stage, stage.build(corpus, {}), corpus, replace(stage.rounds[-1], first=0, stop=1),
                mined_at_random(stage, corpus), start=None, scratch=out / "steps", out=out,
                watch=Watch(lambda progress: times.append(time.perf_counter())))
    # from the first step to the last: what comes before the first is done once a stage
    epoch, memory = (times[-1] - times[0]) * len(times) / max(len(times) - 1, 1), peak_memory()
    model = stage.build(corpus, {})
    load_model(model, out)
    vectors, rows = stage.vectors(model, corpus), corpus.training_rows()
    queries, embed_queries = timed(vectors["queries"])
    refresh, recall = embed_queries if mining else unknown, unknown
    if mining and mining.n_negatives:
        index, embed_and_index = timed(
            lambda: build_index(vectors["labels"](), queries, rows, mining.n_negatives, kind="auto", seed=0))
        ordered, group = timed(lambda: index.search_order(queries, rows))
        some = ordered[drawn(rows)]
        _, search_some = timed(lambda: nearest_negatives(index, queries, corpus, some, mining.n_negatives))
        refresh += embed_and_index + group + search_some * len(rows) / len(some)
        tried = queries[some[seeds.generator(0, "tried").permutation(len(some))[:TRIED]]]
        recall = ann.recall(index.nearest(tried, mining.n_negatives), index.vectors, tried, mining.n_negatives)
    if mining and mining.cluster_size:
        refresh += timed(lambda: balanced_kmeans(queries, mining.cluster_size, seed=0, rows=rows))[1]
    shape = AMAZON_TITLES_1_3M
    size = Size(corpus.n_labels, len(rows), shape.positives, shape.tokens)
    predicted = estimate(method, size, read_rates(), stage.name)
    return {"epoch s": epoch, "predicted epoch": predicted.epoch or unknown,
            "refresh s": refresh, "predicted refresh": predicted.refresh or unknown, "recall %": 100 * recall,
            "GB": memory / 1e9, "predicted GB": sum(part.size for part in predicted.held(HOST, ROUND)) / 1e9,
            "GB with refresh": peak_memory() / 1e9}


def main(percent: Count = 100, *methods: MethodName) -> None:
    """Print one row per method."""
    shape = scaled_shape(percent)
    print(f"{shape.labels:,} labels, {shape.queries:,} queries, d = {DIM}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        _, seconds = timed(lambda: synthetic_corpus(Path(scratch) / "corpus", shape))
        print(f"corpus generated in {seconds:.0f} s", flush=True)
        for name in methods or DEFAULTS:
            measured = in_new_process(epoch_and_refresh, name, Path(scratch))
            print(f"{name:<10}" + "".join(f"{figure:>18} {value:>8.2f}" for figure, value in measured.items()),
                  flush=True)


if __name__ == "__main__":
    run(main, __doc__)
