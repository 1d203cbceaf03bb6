"""Predictions joined with the true pairs of their queries, less the filter pairs.

A set of pairs is a Ragged, or (indptr, indices), or a scipy CSR matrix. Predictions are (n, K) int64 label ids,
best first; -1 is no prediction.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from xcmodels.data.corpus import Ragged
from xcmodels.data.sorted_ids import isin_sorted, unique

Pairs = Any  # a Ragged, (indptr, indices), or a scipy CSR matrix whose stored entries are the pairs


@dataclass(frozen=True)
class Matches:
    """Predictions joined with the truth, over the m rows that have a true label."""

    rows: np.ndarray  # (m,) the row in `predictions`
    labels: np.ndarray  # (m, K) predicted label ids, -1 = none
    hits: np.ndarray  # (m, K) bool
    truth_rows: np.ndarray  # (p,) 0..m-1, ascending, of each true pair
    truth_labels: np.ndarray  # (p,)
    positives: np.ndarray  # (m,) how many true labels a row has, at least 1
    left_out: int  # rows without a true label


def match(predictions: np.ndarray, truth: Pairs, filters: Pairs | None, n_labels: int) -> Matches:
    """Join predictions with the truth less the filters.

    Raises ValueError for a wrong number of rows, a label outside [0, n_labels) and a label predicted twice in a row.
    """
    _check_predictions(predictions, n_labels)
    keys = _keys(truth, len(predictions), n_labels, "truth")
    if filters is not None:
        keys = keys[~isin_sorted(keys, _keys(filters, len(predictions), n_labels, "filters"))]
    truth_rows, truth_labels = np.divmod(keys, n_labels)
    counts = np.bincount(truth_rows, minlength=len(predictions))
    rows = np.flatnonzero(counts)
    labels = predictions[rows]
    hits = isin_sorted(rows[:, None] * n_labels + labels, keys) & (labels >= 0)
    new_row = np.cumsum(counts > 0) - 1
    return Matches(rows, labels, hits, new_row[truth_rows], truth_labels, counts[rows], len(counts) - len(rows))


def drop_filtered(predictions: np.ndarray, scores: np.ndarray, filters: Pairs,
                  k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k predictions of each row that are not filtered, (n, k), and their scores.

    The others move up in order; a row with fewer than k left is padded with -1 and -inf, so retrieve deeper than k.
    Raises ValueError for k above the depth and as `match` does.
    """
    check_depth(predictions, (k,))
    n_labels = 1 + max(int(predictions.max(initial=0)), int(_parts(filters)[1].max(initial=0)))
    _check_predictions(predictions, n_labels)
    pairs = np.arange(len(predictions))[:, None] * n_labels + predictions
    keep = (predictions >= 0) & ~isin_sorted(pairs, _keys(filters, len(predictions), n_labels, "filters"))
    position = np.cumsum(keep, axis=1) - 1
    keep &= position < k
    shape = len(predictions), k
    kept, kept_scores = np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32)
    row, column = np.nonzero(keep)
    kept[row, position[keep]], kept_scores[row, position[keep]] = predictions[row, column], scores[row, column]
    return kept, kept_scores


def check_depth(predictions: np.ndarray, ks: tuple[int, ...]) -> int:
    """Return the largest of `ks`; raise ValueError for one that the predictions are not deep enough for."""
    if not ks or min(ks) < 1 or max(ks) > predictions.shape[1]:
        raise ValueError(f"every k must be in 1..{predictions.shape[1]}, the depth of predictions; got {list(ks)}")
    return max(ks)


def _parts(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(pairs, Ragged):
        return pairs.offsets, pairs.values
    return (pairs.indptr, pairs.indices) if hasattr(pairs, "indptr") else pairs


def _keys(pairs: Pairs, n: int, n_labels: int, name: str) -> np.ndarray:
    """Return row * n_labels + label of every pair, sorted and unique."""
    indptr, indices = _parts(pairs)
    if len(indptr) != n + 1:
        raise ValueError(f"{name} has {len(indptr) - 1} rows, predictions have {n}; give the same split")
    _check_range(indices, 0, n_labels, name)
    return unique(np.repeat(np.arange(n), np.diff(indptr)) * n_labels + np.asarray(indices, dtype=np.int64))


def _check_range(labels: np.ndarray, low: int, n_labels: int, name: str) -> None:
    if labels.size and (labels.min() < low or labels.max() >= n_labels):
        wrong = labels[(labels < low) | (labels >= n_labels)][0]
        raise ValueError(f"{name} holds label {wrong}, outside [{low}, {n_labels}); count labels by the label file")


def _check_predictions(predictions: np.ndarray, n_labels: int) -> None:
    _check_range(predictions, -1, n_labels, "predictions")
    ordered = np.sort(predictions, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, column = np.argwhere(twice)[0]
        raise ValueError(f"row {row} predicts label {ordered[row, column]} twice; merge shortlists before evaluating")
