"""How fast is each kind of index, and what does it miss? Clusters with as much noise as signal are the hard case.

    python -m benchmarks.bench_search [labels] [queries] [dim]

HNSW is left out beyond 200,000 labels: over 67,892 it takes a minute and a half to build.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.asked import Count, answer
from xcmodels.retrieval import ann

SINGLE = 100    # queries asked one by one


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return what an action makes, and its seconds."""
    began = time.perf_counter()
    made = action()
    return made, time.perf_counter() - began


def main(labels: Count = 65_536, queries: Count = 2_048, dim: Count = 384, k: Count = 100) -> None:
    """Print one row an index kind."""
    rng = np.random.default_rng(0)
    # Centres with noise around them, as trained label vectors have.
    centres = rng.standard_normal((max(labels // 16, 1), dim), dtype=np.float32)
    vectors = centres[rng.integers(len(centres), size=labels)] + rng.standard_normal((labels, dim), dtype=np.float32)
    asked = vectors[rng.integers(labels, size=queries)] + rng.standard_normal((queries, dim), dtype=np.float32)
    print(f"{labels:,} labels, {queries:,} queries, d = {dim}, k = {k}")
    print(f"{'index':<10}{'build s':>8}{'ms, of all':>12}{'ms, alone':>12}{'recall':>9}")
    for kind in [kind for kind in ann.KINDS if kind != "hnsw" or labels <= ann.EXACT_MAX_BATCH]:
        index, built = timed(lambda kind=kind: ann.build(vectors, kind))
        _, searched = timed(lambda index=index: index.search(asked, k))
        _, alone = timed(lambda index=index: [index.search(query[None], k) for query in asked[:SINGLE]])
        print(f"{kind:<10}{built:>8.1f}{1000 * searched / queries:>12.2f}{1000 * alone / SINGLE:>12.2f}"
              f"{ann.recall(index.search(asked, k)[1], vectors, asked, k):>9.3f}")


if __name__ == "__main__":
    answer(main, __doc__)
