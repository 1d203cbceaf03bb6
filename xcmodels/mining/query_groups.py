"""Groups of queries that lie together: their centres, by k-means over integer vectors."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.mining.int8_products import largest_entry, products, quantised, quantised_rows

QUERIES = 256    # queries of a group, on average
SAMPLED = 32     # queries sampled for each group
FEWEST = 4       # a group with fewer sampled queries is dissolved
ITERATIONS = 4   # of k-means
_ROWS = 1024    # queries compared with all centres at once
Part = TypeVar("Part")


def centres(queries: np.ndarray, rows: np.ndarray, *, seed: int) -> np.ndarray:
    """Return centres, (G, d) int8, of groups of about QUERIES each of `rows` (n,) of the queries (N, d) float32.

    k-means on a sample, of which the smallest groups are dissolved. Sums are of whole numbers: the same for any number
    of threads.
    """
    count = max(len(rows) // QUERIES, 1)
    drawn = seeds.generator(seed, "groups").permutation(len(rows))[:SAMPLED * count]
    points = quantised_rows(queries[rows[drawn]])
    found = points[:count]
    for _ in range(ITERATIONS if len(points) else 0):
        group = nearest(points, found)
        sizes = np.bincount(group, minlength=len(found))
        sums = np.stack([np.bincount(group, weights=column, minlength=len(found)) for column in points.T], axis=1)
        kept = sums[sizes >= min(FEWEST, sizes.max())]
        means = kept / np.linalg.norm(kept, axis=1, keepdims=True).clip(1)
        found = quantised(means, largest_entry(points.shape[1]) / max(np.abs(means).max(), 1e-9))
    return found


def nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return for each of (n, d) int8 vectors the centre of largest product, the first of equal ones, (n,) int64."""
    group = np.empty(len(points), dtype=np.int64)

    def compare(start: int) -> None:
        rows = slice(start, start + _ROWS)
        group[rows] = products(torch.from_numpy(points[rows]), torch.from_numpy(centres)).numpy().argmax(axis=1)

    in_threads(compare, range(0, len(points), _ROWS))
    return group


def in_threads(action: Callable[[Part], None], parts: Sequence[Part]) -> None:
    """Run an action on every part, by as many threads as torch has, each of which computes alone.

    Threads that share each product would wait for each other thousands of times a second.
    """
    import faiss

    def alone() -> None:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(1)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=alone) as pool:
            for _ in pool.map(action, parts):
                pass
    finally:
        torch.set_num_threads(threads)
