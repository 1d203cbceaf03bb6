"""Balanced hierarchical k-means, for clusters of training queries (NGAME, Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xcmodels.data.executor import IN_PROCESS, Executor, RowFunction
from xcmodels.mining.graph import hashed_uniform

_BLOCK = 4096  # points split at once, in cache; a larger group is split by a sample of this size
_RANGE = 1 << 16    # points of a group that is split further by itself, at most


def balanced_kmeans(vectors: np.ndarray, cluster_size: int, *, seed: int, iterations: int = 8,
                    rows: np.ndarray | None = None, executor: Executor = IN_PROCESS) -> np.ndarray:
    """Return the cluster of each vector, int32 (n,): ceil(n / cluster_size) clusters whose sizes differ by at most 1.

    `vectors` is (N, d) float32, unit length, and may be memory-mapped; `rows`, which ascend, are the n of them to
    cluster, all by default. executor: where arrays are computed. A group is split in two by the margin
    x.(c0 - c1) at the place that fills whole clusters on both sides (the middle, but for one cluster), where
    c0 and c1 are the means of the halves after `iterations` rounds; ties go by row number. No cluster is empty or
    larger than `cluster_size`, for any vectors. Time is O(n d log(n / cluster_size)); the same seed gives
    the same clusters, if the BLAS sums in the same order. Raises ValueError for a size or a number of
    iterations below 1, for a wrong shape and for vectors that are not finite.
    """
    _check(vectors, cluster_size, iterations)
    rows = np.arange(len(vectors)) if rows is None else rows
    n = len(rows)
    if not n:
        return np.empty(0, dtype=np.int32)
    clusters = -(-n // cluster_size)
    edges = np.arange(clusters + 1) * n // clusters
    tree = _Tree(vectors, rows.copy(), edges, seed, iterations)
    starts = sorted(first for first, _ in tree.split(0, clusters, _RANGE))
    order = executor.compute_rows("clusters of queries", _finely, [*edges[starts].tolist(), n], vectors, tree.order,
                                  edges, seed, iterations)
    ids = np.empty(n, dtype=np.int32)
    ids[np.searchsorted(rows, order)] = np.repeat(np.arange(clusters, dtype=np.int32), np.diff(edges))
    return ids


def _finely(vectors: np.ndarray, order: np.ndarray, edges: np.ndarray, seed: int, iterations: int) -> RowFunction:
    """Return a function that splits a group, low:high of `order`, down to its clusters, and returns its order."""
    def split(low: int, high: int) -> np.ndarray:
        tree = _Tree(vectors, np.array(order[low:high]), edges - low, seed, iterations)
        first, last = np.searchsorted(edges, [low, high]).tolist()
        for group in tree.split(first, last, _BLOCK):
            tree.split_block(*group)
        return tree.order

    return split


def _check(vectors: np.ndarray, cluster_size: int, iterations: int) -> None:
    if cluster_size < 1 or iterations < 1:
        raise ValueError(f"cluster_size and iterations must be at least 1, got {cluster_size} and {iterations}")
    if vectors.ndim != 2:
        raise ValueError(f"vectors must be (n, d), got shape {vectors.shape}")
    finite = np.isfinite(vectors @ np.ones(vectors.shape[1], dtype=vectors.dtype))  # one pass, no (n, d) temporary
    if not finite.all():
        raise ValueError(f"vector {int(finite.argmin())} is not finite; look for a diverged encoder")


@dataclass(frozen=True)
class _Tree:
    """Points while they are split: cluster j will be edges[j] : edges[j + 1] of `order`.

    A group is a run of clusters, first to last - 1, and is split before cluster (first + last) // 2.
    """

    vectors: np.ndarray
    order: np.ndarray
    edges: np.ndarray
    seed: int
    iterations: int

    def split(self, first: int, last: int, limit: int) -> Iterator[tuple[int, int]]:
        """Split a group, and yield those of it, in no order, that have at most `limit` points or are one cluster."""
        groups = [(first, last)]
        while groups:
            first, last = groups.pop()
            if self.edges[last] - self.edges[first] <= limit or last - first == 1:
                yield first, last
            else:
                middle = self.split_large(first, last)
                groups += [(first, middle), (middle, last)]

    def split_large(self, first: int, last: int) -> int:
        """Split one group by centres found on a sample of it, and return the cluster in its middle."""
        middle = (first + last) // 2
        rows = self.order[self.edges[first] : self.edges[last]]
        size, left = len(rows), int(self.edges[middle] - self.edges[first])
        jitter = hashed_uniform(self.seed, first, np.arange(_BLOCK) + last * _BLOCK)
        sample = rows[((np.arange(_BLOCK) + jitter) * size / _BLOCK).astype(np.int64)]  # one from each equal stretch
        points = np.asarray(self.vectors[sample], dtype=np.float32)[None]
        sizes, lefts = np.array([_BLOCK]), np.array([round(left * _BLOCK / size)])
        starts = _starts(self.seed, np.array([first]), np.array([last]), sizes)
        direction = _direction(points, sizes, lefts, starts, self.iterations)[0]
        margins = [self.vectors[rows[start : start + _BLOCK]] @ direction for start in range(0, size, _BLOCK)]
        side = _largest(np.concatenate(margins)[None], np.array([left]))[0]
        rows[:] = np.concatenate([rows[side], rows[~side]])
        return middle

    def split_block(self, first: int, last: int) -> None:
        """Split one group down to its clusters, each level as one padded batch of groups."""
        low, high = self.edges[first], self.edges[last]
        points = np.asarray(self.vectors[self.order[low:high]], dtype=np.float32)
        local = np.arange(high - low)
        cuts = np.array([first, last])
        while np.diff(cuts).max() > 1:
            parts = np.flatnonzero(np.diff(cuts) > 1)
            middles = self._split_level(points, local, low, cuts[parts], cuts[parts + 1])
            cuts = np.sort(np.concatenate([cuts, middles]))
        self.order[low:high] = self.order[low:high][local]

    def _split_level(self, points: np.ndarray, local: np.ndarray, low: int, first: np.ndarray, last: np.ndarray):
        """Reorder `local`, the permutation of `points`, by one split of each of G groups; return their middles."""
        middles = (first + last) // 2
        sizes, lefts = self.edges[last] - self.edges[first], self.edges[middles] - self.edges[first]
        valid = np.arange(sizes.max()) < sizes[:, None]
        positions = np.where(valid, np.arange(sizes.max()) + (self.edges[first] - low)[:, None], 0)
        rows = local[positions]
        batch = points[rows]
        direction = _direction(batch, sizes, lefts, _starts(self.seed, first, last, sizes), self.iterations)
        side = _sides(batch, direction, valid, lefts)
        moved = np.argsort(np.where(valid, ~side, 2), axis=1, kind="stable")  # left half, right half, padding
        local[positions[valid]] = np.take_along_axis(rows, moved, axis=1)[valid]
        return middles


def _starts(seed: int, first: np.ndarray, last: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return two different positions in each group of clusters first:last, (G, 2), by a hash of the group."""
    draws = hashed_uniform(seed, first[:, None], 2 * last[:, None] + np.arange(2))
    start = (draws[:, 0] * sizes).astype(np.int64)
    return np.stack([start, (start + 1 + (draws[:, 1] * (sizes - 1)).astype(np.int64)) % sizes], axis=1)


def _direction(points: np.ndarray, sizes: np.ndarray, lefts: np.ndarray, starts: np.ndarray, iterations: int):
    """Return c0 - c1 of each group of (G, s, d) points, up to its length, (G, d).

    With fixed sizes of the halves, the best assignment to two means orders points by x.(c0 - c1) alone
    (|x - c0|^2 - |x - c1|^2 is that and a constant), so the centres are never computed.
    """
    valid = np.arange(points.shape[1]) < sizes[:, None]
    rows = np.arange(len(points))
    direction = points[rows, starts[:, 0]] - points[rows, starts[:, 1]]
    before = None
    for _ in range(iterations):
        side = _sides(points, direction, valid, lefts)
        if before is not None and np.array_equal(side, before):
            break
        share = np.where(side, (sizes - lefts)[:, None], -lefts[:, None]) * valid  # n0 n1 (c0 - c1): whole numbers
        direction = (share.astype(points.dtype)[:, None] @ points)[:, 0]
        before = side
    return direction


def _sides(points: np.ndarray, direction: np.ndarray, valid: np.ndarray, lefts: np.ndarray) -> np.ndarray:
    """Return which points lie in the first half of their group, bool (G, s)."""
    return _largest(np.where(valid, (points @ direction[:, :, None])[:, :, 0], -np.inf), lefts)


def _largest(margins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mark the counts[g] largest margins of each row, bool (G, s); ties go to the first."""
    cuts = margins.shape[1] - counts
    threshold = np.partition(margins, np.unique(cuts), axis=1)[np.arange(len(margins)), cuts][:, None]
    above, equal = margins > threshold, margins == threshold
    return above | (equal & (np.cumsum(equal, axis=1) <= (counts - above.sum(axis=1))[:, None]))
