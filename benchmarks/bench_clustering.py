"""How does balanced k-means grow, and how does it compare with faiss' k-means of as many clusters?

    python -m benchmarks.bench_clustering [cluster size] [vectors ...]

Both do eight rounds. A hierarchy grows as N log N; k-means with N / size centres as N^2.
"""

import time

import faiss
import numpy as np

from benchmarks.asked import Count, answer
from xcmodels.data.centroids import unit
from xcmodels.mining.clustering import balanced_kmeans

ITERATIONS = 8
FAISS_MOST = 2_000    # clusters beyond which faiss is not waited for


def noisy(n: int, dim: int) -> np.ndarray:
    """Return unit vectors around centres, with as much noise as signal."""
    rng = np.random.default_rng(n)
    centres = rng.standard_normal((max(n // 64, 1), dim), dtype=np.float32)
    return unit(centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, dim), dtype=np.float32))


def within(points: np.ndarray, clusters: np.ndarray) -> float:
    """Return the mean square distance of a vector to the mean of its cluster."""
    counts = np.bincount(clusters)
    order = np.argsort(clusters, kind="stable")
    sums = np.add.reduceat(points[order], np.concatenate([[0], np.cumsum(counts)[:-1]])[counts > 0], axis=0)
    return float(1 - (sums**2).sum(1).dot(1 / counts[counts > 0]) / len(points))


def main(size: Count = 256, *vectors: Count) -> None:
    """Print one row a number of vectors."""
    print(f"d = 384, clusters of {size}, {ITERATIONS} rounds, {faiss.omp_get_max_threads()} threads")
    print(f"{'vectors':>10}{'clusters':>10}{'ours s':>10}{'us/N log':>10}{'sizes':>12}{'spread':>8}"
          f"{'faiss s':>10}{'sizes':>12}{'spread':>8}{'ratio':>8}")
    for n in vectors or (125_000, 250_000, 500_000):
        points = noisy(n, 384)
        began = time.perf_counter()
        ours = balanced_kmeans(points, size, seed=0, iterations=ITERATIONS)
        took = time.perf_counter() - began
        k = int(ours.max()) + 1
        line = f"{n:>10,}{k:>10,}{took:>10.1f}{1e6 * took / (n * np.log2(k)):>10.2f}{_sizes(ours):>12}" \
               f"{within(points, ours):>8.3f}"
        if k <= FAISS_MOST:
            began = time.perf_counter()
            kmeans = faiss.Kmeans(384, k, niter=ITERATIONS, seed=0, max_points_per_centroid=n)
            kmeans.train(points)
            theirs = kmeans.index.search(points, 1)[1][:, 0]
            other = time.perf_counter() - began
            line += f"{other:>10.1f}{_sizes(theirs):>12}{within(points, theirs):>8.3f}{other / took:>8.1f}"
        print(line, flush=True)


def _sizes(clusters: np.ndarray) -> str:
    counts = np.bincount(clusters)
    return f"{counts.min()}-{counts.max()}"


if __name__ == "__main__":
    answer(main, __doc__)
