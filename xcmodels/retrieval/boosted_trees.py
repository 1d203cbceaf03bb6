"""Boosted regression trees that fuse the scores of a (query, label) pair (NGAME)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xcmodels.checks import Unusable

BINS = 256
CHUNK = 1 << 14    # (row, tree) pairs predicted at once, so that a level fits the cache


@dataclass(frozen=True)
class RegressionTrees:
    """The sum of T binary trees of fixed depth in heap order: node i has children 2i + 1 (x <= threshold) and 2i + 2.

    feature (T, 2^depth - 1) int, threshold (T, 2^depth - 1) float32, value (T, 2^depth) float32 of the leaves.
    """

    feature: np.ndarray
    threshold: np.ndarray
    value: np.ndarray

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return (n,) float32 for features (n, f)."""
        out = np.zeros(len(x), dtype=np.float32)
        chunk = max(1, CHUNK // max(1, len(self.value)))
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            leaves = self._leaves(x[part]) + self.value.shape[1] * np.arange(len(self.value))[:, None]
            for values in self.value.ravel().take(leaves):    # tree by tree, of a lone pair, too, as numpy's sum is not
                out[part] += values
        return out

    def _leaves(self, x: np.ndarray) -> np.ndarray:
        """Return the leaf of each row of x in each tree, (T, n), by descending all trees level by level."""
        inner = self.feature.shape[1]
        first = inner * np.arange(len(self.feature))[:, None]    # of each tree, in the concatenated nodes
        feature, threshold = self.feature.ravel(), self.threshold.ravel()
        values, row = x.ravel(), x.shape[1] * np.arange(len(x))
        node = np.zeros((len(self.feature), len(x)), dtype=np.int64)
        for _ in range(inner.bit_length()):
            place = first + node
            node = 2 * node + 1 + (values.take(row + feature.take(place)) > threshold.take(place))
        return node - inner

    def save(self, path: Path) -> None:
        np.savez(path, feature=self.feature, threshold=self.threshold, value=self.value)

    @classmethod
    def load(cls, path: Path) -> "RegressionTrees":
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["feature"], arrays["threshold"], arrays["value"])


def fit_trees(x: np.ndarray, y: np.ndarray, *, trees: int = 1, rate: float = 1.0, depth: int = 7,
              min_leaf: int = 50) -> RegressionTrees:
    """Fit least-squares regression trees, splitting at quantiles of the features (NGAME, Appendix C: one tree).

    A row counts in the quantiles as much as its target differs from the mean, so that of targets 0 and 1 each have half
    of the splits. One pair of a shortlist in a hundred is relevant: by plain quantiles nearly all splits would be among
    the scores of the others.

    x (n, f) float32, y (n,) float32. Each tree is fitted on the residuals of those before it, and `rate` scales its
    values. A node that no split improves passes everything to its left child. Raises Unusable for no rows.
    """
    if len(x) == 0:
        raise Unusable("the fusion has no pairs to be fitted on: no text of the validation split has a label that a "
                       "training text has, too; add labelled texts, raise prepare.validation, or rank without a fit: "
                       "--set serve=encoder")
    counted = np.abs(y - y.mean(dtype=np.float64))
    counted = counted if counted.any() else np.ones(len(y))
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1], weights=counted, method="inverted_cdf"))
             for column in x.T]
    binned = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, x.T, strict=True)])
    residuals, grown = y.astype(np.float32), []
    for _ in range(trees):
        feature, threshold, leaf = _grow(x, residuals, edges, binned, depth=depth, min_leaf=min_leaf)
        counts, sums = np.bincount(leaf, minlength=2**depth), np.bincount(leaf, weights=residuals, minlength=2**depth)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), residuals.mean()).astype(np.float32)
        value = np.float32(rate) * means
        residuals = residuals - value[leaf]
        grown.append((feature, threshold, value))
    return RegressionTrees(*(np.stack(part) for part in zip(*grown, strict=True)))


def _grow(x: np.ndarray, y: np.ndarray, edges: list[np.ndarray], binned: np.ndarray, *, depth: int,
          min_leaf: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the splits of one tree, and the leaf of each row."""
    inner = 2**depth - 1
    feature, threshold = np.zeros(inner, np.int64), np.full(inner, np.inf, np.float32)
    node, rows = np.zeros(len(x), dtype=np.int64), np.arange(len(x))
    for level in range(depth):
        first = 2**level - 1
        counts, sums = _histograms(binned, node - first, y, 2**level)
        for index, (column, edge) in enumerate(_best_splits(counts, sums, min_leaf), start=first):
            if column >= 0:
                feature[index], threshold[index] = column, edges[column][edge]
        node = 2 * node + 1 + (x[rows, feature[node]] > threshold[node])
    return feature, threshold, node - inner


def _histograms(binned: np.ndarray, node: np.ndarray, y: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and sums of y, (nodes, f, BINS) each."""
    flat = [node * BINS + column for column in binned]
    shape = (len(flat), nodes, BINS)
    counts = np.stack([np.bincount(part, minlength=nodes * BINS) for part in flat]).reshape(shape)
    sums = np.stack([np.bincount(part, weights=y, minlength=nodes * BINS) for part in flat]).reshape(shape)
    return counts.transpose(1, 0, 2), sums.transpose(1, 0, 2)


def _best_splits(counts: np.ndarray, sums: np.ndarray, min_leaf: int) -> list[tuple[int, int]]:
    """Return, for each node, the feature and bin after which to split, (-1, -1) where no split helps.

    The gain of a split is the fall in squared error: S_l^2 / n_l + S_r^2 / n_r - S^2 / n.
    """
    left, left_sum = counts.cumsum(2), sums.cumsum(2)
    total, total_sum = left[:, :, -1:], left_sum[:, :, -1:]
    right, right_sum = total - left, total_sum - left_sum
    gain = (left_sum**2 / np.maximum(left, 1) + right_sum**2 / np.maximum(right, 1)
            - total_sum**2 / np.maximum(total, 1))
    gain = np.where((left >= min_leaf) & (right >= min_leaf), gain, 0.0)
    best = gain.reshape(len(gain), -1).argmax(1)
    helps = gain.reshape(len(gain), -1).max(1) > 1e-9
    return [(int(b) // BINS, int(b) % BINS) if ok else (-1, -1) for b, ok in zip(best, helps, strict=True)]
