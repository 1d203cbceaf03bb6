"""How fast is each kind of index, and what is its recall? The label vectors are clusters with as much noise as signal.

    python -m benchmarks.bench_search [labels] [queries] [dim] [k]

HNSW is left out above HNSW_LABELS labels: to build it takes a minute and a half for 67,892.
"""

import numpy as np

from benchmarks.arguments import Count, run
from benchmarks.measuring import timed
from xcmodels.retrieval import ann

SINGLE = 100    # queries searched one by one, at most
HNSW_LABELS = 200_000


def main(labels: Count = 65_536, queries: Count = 2_048, dim: Count = 384, k: Count = 100) -> None:
    """Print one row per kind of index."""
    rng = np.random.default_rng(0)
    # trained label vectors lie around centres, too
    centres = rng.standard_normal((max(labels // 16, 1), dim), dtype=np.float32)
    vectors = centres[rng.integers(len(centres), size=labels)] + rng.standard_normal((labels, dim), dtype=np.float32)
    query_vectors = vectors[rng.integers(labels, size=queries)] + rng.standard_normal((queries, dim), dtype=np.float32)
    print(f"{labels:,} labels, {queries:,} queries, d = {dim}, k = {k}")
    print(f"{'index':<10}{'build s':>8}{'ms, batch':>12}{'ms, single':>12}{'recall':>9}")
    for kind in [kind for kind in ann.KINDS if kind != "hnsw" or labels <= HNSW_LABELS]:
        index, build = timed(lambda kind=kind: ann.build(vectors, kind))
        (_, ids), batch = timed(lambda index=index: index.search(query_vectors, k))
        some = query_vectors[:SINGLE]
        _, single = timed(lambda index=index, some=some: [index.search(query[None], k) for query in some])
        print(f"{kind:<10}{build:>8.1f}{1000 * batch / queries:>12.2f}{1000 * single / len(some):>12.2f}"
              f"{ann.recall(ids, vectors, query_vectors, k):>9.3f}")


if __name__ == "__main__":
    run(main, __doc__)
