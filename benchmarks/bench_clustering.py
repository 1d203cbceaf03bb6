"""How does the time of balanced k-means grow with the vectors, against faiss' k-means with as many clusters?

    python -m benchmarks.bench_clustering [cluster size] [vectors ...]

Both run eight iterations. The hierarchy of balanced 2-means grows as N log N, k-means with N / size centres as N^2.
"""

import faiss
import numpy as np

from benchmarks.arguments import Count, run
from benchmarks.measuring import timed
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.autograd import normalise

DIM, ITERATIONS = 384, 8
FAISS_MAX_CLUSTERS = 2_000    # with more, faiss takes too long


def noisy_vectors(count: int) -> np.ndarray:
    """Return unit vectors around centres, with as much noise as signal."""
    rng = np.random.default_rng(count)
    centres = rng.standard_normal((max(count // 64, 1), DIM), dtype=np.float32)
    own = centres[rng.integers(len(centres), size=count)]
    return normalise(own + rng.standard_normal((count, DIM), dtype=np.float32))


def spread(vectors: np.ndarray, clusters: np.ndarray) -> float:
    """Return the mean squared distance of a unit vector to the mean of its cluster."""
    counts = np.bincount(clusters)
    order = np.argsort(clusters, kind="stable")
    sums = np.add.reduceat(vectors[order], np.concatenate([[0], np.cumsum(counts)[:-1]])[counts > 0], axis=0)
    return float(1 - (sums**2).sum(1).dot(1 / counts[counts > 0]) / len(vectors))


def faiss_kmeans(vectors: np.ndarray, clusters: int) -> np.ndarray:
    """Return the cluster of each vector by faiss."""
    kmeans = faiss.Kmeans(DIM, clusters, niter=ITERATIONS, seed=0, max_points_per_centroid=len(vectors))
    kmeans.train(vectors)
    return kmeans.index.search(vectors, 1)[1][:, 0]


def main(size: Count = 256, *vectors: Count) -> None:
    """Print one row per number of vectors."""
    print(f"d = {DIM}, clusters of {size}, {ITERATIONS} iterations, {faiss.omp_get_max_threads()} threads")
    print(f"{'vectors':>10}{'clusters':>10}{'ours s':>10}{'us/N log':>10}{'sizes':>12}{'spread':>8}"
          f"{'faiss s':>10}{'sizes':>12}{'spread':>8}{'ratio':>8}")
    for n in vectors or (125_000, 250_000, 500_000):
        points = noisy_vectors(n)
        ours, seconds = timed(lambda points=points: balanced_kmeans(points, size, seed=0, iterations=ITERATIONS))
        k = int(ours.max()) + 1
        line = f"{n:>10,}{k:>10,}{seconds:>10.1f}{1e6 * seconds / (n * np.log2(k)):>10.2f}{_sizes(ours):>12}" \
               f"{spread(points, ours):>8.3f}"
        if k <= FAISS_MAX_CLUSTERS:
            theirs, faiss_seconds = timed(lambda points=points, k=k: faiss_kmeans(points, k))
            line += f"{faiss_seconds:>10.1f}{_sizes(theirs):>12}{spread(points, theirs):>8.3f}" \
                    f"{faiss_seconds / seconds:>8.1f}"
        print(line, flush=True)


def _sizes(clusters: np.ndarray) -> str:
    counts = np.bincount(clusters)
    return f"{counts.min()}-{counts.max()}"


if __name__ == "__main__":
    run(main, __doc__)
