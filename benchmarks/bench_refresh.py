"""How long does a refresh take on Dask and how much memory has a worker, by number of workers and of queries?

    python -m benchmarks.bench_refresh [percent of LF-AmazonTitles-1.3M] [method]

A refresh embeds queries and labels, clusters queries where the method trains on clusters, builds an index of the labels
and searches hard negatives. The corpus is synthetic, the model untrained, vectors of 64. Every worker has one thread.
One and two workers take turns, and must mine the same bytes; the last row has four times the queries. "CPU" is the time
of the processor that the busiest worker and this process, while it does not wait, take together: what `seconds` is on
an idle machine. "A worker" is the largest peak of a worker, pages of mapped files included.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from benchmarks.arguments import Count, method_name, parsed_by, run
from benchmarks.bench_scale import DIM, scaled_shape
from benchmarks.measuring import cpu_config, peak_memory
from benchmarks.synthetic import synthetic_corpus
from tasks.core.dask_workers import Workers
from tasks.training.dask_executor import DaskExecutor
from tasks.training.embed import vectors_by
from xcmodels.data.corpus import Corpus
from xcmodels.methods.all_methods import METHODS
from xcmodels.resources import with_width

TURNS = (1, 2, 1, 2)    # workers
TIMES = 4               # queries of the last row, as often


def mining_method(word: str) -> str:
    """Parse the name of a method that has the preset `cpu` and mines."""
    if not any(round_.mines for round_ in METHODS[method_name(word)].make(cpu_config(word)).rounds):
        raise ValueError(f"{word!r} mines nothing; name another method, such as astra, ngame or unidec")
    return word


def refresh(corpus: Corpus, method: str, count: int) -> tuple[list[np.ndarray], float, float, int, list[str]]:
    """Mine on new workers; return the arrays, seconds, CPU seconds, a worker's peak in bytes, lines on its parts."""
    made = METHODS[method].make(with_width(cpu_config(method), DIM))
    mining = next(round_ for round_ in made.rounds if round_.mines)
    stage, said = made.stage(mining.stage), list[str]()
    with Workers(count=count) as workers, tempfile.TemporaryDirectory(dir=corpus.folder.parent) as folder:
        before = workers.client.run(time.process_time)
        began, own = time.perf_counter(), time.process_time()
        executor = DaskExecutor(workers, Path(folder), said.append)
        mined = stage.mine(vectors_by(executor, stage, corpus, None), corpus, mining, executor)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        after = workers.client.run(time.process_time)
        cpu = own + max(after[worker] - before[worker] for worker in before)
        arrays = [np.array(array) for array in (mined.clusters, mined.negatives) if array is not None]
        return arrays, seconds, cpu, max(workers.client.run(peak_memory).values()), said


def main(percent: Count = 20, method: Annotated[str, parsed_by(mining_method)] = "unidec") -> None:
    """Print one row per refresh."""
    shape, first = scaled_shape(percent), None
    print(f"{method}, {shape.labels:,} labels, d = {DIM}")
    print(f"{'queries':>12}{'workers':>9}{'seconds':>9}{'CPU':>8}{'a worker, MB':>14}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        same = synthetic_corpus(Path(scratch) / "corpus", shape)
        more = synthetic_corpus(Path(scratch) / "more", replace(shape, queries=TIMES * shape.queries))
        for corpus, count in (*((same, count) for count in TURNS), (more, TURNS[-1])):
            mined, seconds, cpu, peak, said = refresh(corpus, method, count)
            print(f"{len(corpus.sides['train']):>12,}{count:>9}{seconds:>9.1f}{cpu:>8.1f}{peak / 1e6:>14.0f}   "
                  f"{'; '.join(said)}", flush=True)
            if corpus is same:
                first = first or mined
                for one, other in zip(first, mined, strict=True):
                    np.testing.assert_array_equal(one, other)


if __name__ == "__main__":
    run(main, __doc__)
