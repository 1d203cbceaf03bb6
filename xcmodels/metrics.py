"""Metrics of extreme classification: P, nDCG, PSP, PSnDCG and recall at k.

A set of pairs is a Ragged, or (indptr, indices), or a scipy CSR matrix. Predictions are (n, K) int64 label ids,
best first; -1 is no prediction. Results are in percent. A row without a true label (after filters) is in
no mean; pyxclib and napkinXC count it as 0 in P, nDCG and recall. PSP and PSnDCG are the same with and without it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcmodels.data.corpus import Ragged
from xcmodels.data.ranges import ranks
from xcmodels.data.sorted_ids import isin_sorted, unique

# The metrics shown to people, in this order: on the terminal, in the report, on the version's card, in Prefect.
SHOWN = ("P/1", "P/5", "PSP/1", "PSP/5", "nDCG/5", "recall/100")
HEADLINE = ("P/1", "PSP/5")    # where there is room for two; promotion gates use them

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


def name_of(key: str) -> str:
    """Return a metric's key as people write it: "P@1" for "P/1"."""
    return key.replace("/", "@")


def line_of(measured: Mapping[str, float], keys: Sequence[str] = SHOWN) -> str:
    """Return the measured ones of some metrics in a line: P@1 44.55, P@5 15.69."""
    return ", ".join(f"{name_of(key)} {measured[key]:.2f}" for key in keys if key in measured)


def propensity(frequencies: np.ndarray, n: int, a: float, b: float) -> np.ndarray:
    """Return each label's propensity, float64 (L,): how likely a true label is to be observed (Jain et al. 2016).

    p_l = 1 / (1 + C e^{-A log(N_l + B)}) with C = (log n - 1) (B + 1)^A. `frequencies` (L,) and `n`, the number of
    points, are those of the training matrix before label texts are added to it. Raises ValueError below n = 3,
    where C is negative.
    """
    if n < 3:
        raise ValueError(f"propensities need at least 3 training points, got {n}")
    c = (math.log(n) - 1) * (b + 1) ** a
    return 1 / (1 + c * (np.asarray(frequencies) + b) ** -a)


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


def evaluate(predictions: np.ndarray, truth: Pairs, filters: Pairs | None, inverse_propensity: np.ndarray, *,
             ks: tuple[int, ...] = (1, 3, 5, 10), recall_ks: tuple[int, ...] = (1, 3, 5, 10)) -> dict[str, float]:
    """Return "P/1", "nDCG/5", "PSP/3", "PSnDCG/5", "recall/10", ... in percent, "points" and "left_out" as counts.

    P divides by k always. nDCG divides by the DCG of min(k, positives) hits. PSP and PSnDCG are ratios of means
    (numerator: 1/p over the hits; denominator: over the best k true labels); in PSnDCG both sides of a row are first
    divided by its ideal DCG, as pyxclib and napkinXC do. `inverse_propensity` is (L,), 1 / propensity(...).
    Raises ValueError where a k exceeds the depth K, where no row has a true label, and as `match` does.
    """
    deepest = _deepest(predictions, (*ks, *recall_ks))
    matches = match(predictions[:, :deepest], truth, filters, len(inverse_propensity))
    _need_points(matches)
    hits, gains = _gains(matches, inverse_propensity, max(ks, default=0))
    best, rank = _best(matches, inverse_propensity)
    discount = 1 / np.log2(np.arange(2, deepest + 2))
    ideal = np.cumsum(discount)
    result: dict[str, float] = {}
    for k in ks:
        scale = ideal[np.minimum(matches.positives, k) - 1]
        top = rank < k
        attainable = best[top] * discount[rank[top]] / scale[matches.truth_rows[top]]
        result[f"P/{k}"] = 100 * float(hits[:, :k].sum(1).mean() / k)
        result[f"nDCG/{k}"] = 100 * float((hits[:, :k] @ discount[:k] / scale).mean())
        result[f"PSP/{k}"] = 100 * float(gains[:, :k].sum() / best[top].sum())
        result[f"PSnDCG/{k}"] = 100 * float((gains[:, :k] @ discount[:k] / scale).sum() / attainable.sum())
    for k in recall_ks:
        result[f"recall/{k}"] = 100 * float((matches.hits[:, :k].sum(1) / matches.positives).mean())
    return result | {"points": float(len(matches.rows)), "left_out": float(matches.left_out)}


def by_decile(predictions: np.ndarray, truth: Pairs, filters: Pairs | None,  # noqa: PLR0917
              frequencies: np.ndarray, inverse_propensity: np.ndarray, k: int) -> list[dict[str, float]]:
    """Return ten dicts, one per decile of labels by training frequency, from the tail (1) to the head (10).

    Labels are sorted by frequency, then id, and cut so that each decile holds a tenth of the training positives
    (ASTRA, Table 10; NGAME, Figure 3a): with an equal number of labels, most deciles of a long tail would be the same
    frequency. A label goes where the middle of its positives lies, so a very frequent one may leave a decile empty.
    Keys: decile, labels, min_frequency, max_frequency, positives (true pairs counted); "P/k" and "PSP/k" are the shares
    that add up to those of `evaluate`; "recall/k" is of the decile's own positives (0 where it has none).
    """
    if len(frequencies) != len(inverse_propensity):
        raise ValueError(f"{len(frequencies)} frequencies but {len(inverse_propensity)} propensities; need one a label")
    matches = match(predictions[:, : _deepest(predictions, (k,))], truth, filters, len(inverse_propensity))
    _need_points(matches)
    decile = _deciles(np.asarray(frequencies))
    hits, gains = _gains(matches, inverse_propensity, k)
    best, rank = _best(matches, inverse_propensity)
    hit_deciles = decile[matches.labels[hits]]
    hit_counts = np.bincount(hit_deciles, minlength=10)
    gained = np.bincount(hit_deciles, weights=gains[hits], minlength=10)
    positives = np.bincount(decile[matches.truth_labels], minlength=10)
    table = []
    for i in range(10):
        members = np.asarray(frequencies)[decile == i]
        table.append({
            "decile": i + 1, "labels": len(members), "positives": int(positives[i]),
            "min_frequency": int(members.min()) if len(members) else 0,
            "max_frequency": int(members.max()) if len(members) else 0,
            f"P/{k}": 100 * float(hit_counts[i] / (k * len(matches.rows))),
            f"PSP/{k}": 100 * float(gained[i] / best[rank < k].sum()),
            f"recall/{k}": 100 * float(hit_counts[i] / max(positives[i], 1)),
        })  # fmt: skip
    return table


def difference_errors(predictions: Sequence[np.ndarray], truth: Pairs, filters: Pairs | None,  # noqa: PLR0917
                      frequencies: np.ndarray, inverse_propensity: np.ndarray, k: int = 5) -> dict[str, float]:
    """Return the standard errors of the differences between two predictions of the same queries, in percent.

    Keys: "P/1", "PSP/<k>", "mean" of both, and "decile/1" to "decile/10" for the recall@k of each decile of labels.
    Each metric is sum(gains) / sum(best attainable gains) over queries, with the same divisor for both predictions;
    under equality a query's difference d has mean 0, and the error is sqrt(sum d^2) / divisor. For P@1 a
    difference of z errors is McNemar's test (1947): (b - c)^2 / (b + c) = z^2.
    """
    left, right = (match(ids[:, :_deepest(ids, (k,))], truth, filters, len(inverse_propensity)) for ids in predictions)
    _need_points(left)
    best, rank = _best(left, inverse_propensity)
    precise = (left.hits[:, 0].astype(np.float64) - right.hits[:, 0]) / len(left.rows)
    gained = sum(sign * _gains(matches, inverse_propensity, k)[1].sum(1) for sign, matches in ((1, left), (-1, right)))
    propense = gained / best[rank < k].sum()
    decile = _deciles(np.asarray(frequencies))
    hits = np.zeros((len(left.rows), 10))
    for sign, matches in ((1, left), (-1, right)):
        np.add.at(hits, (np.nonzero(matches.hits)[0], decile[matches.labels[matches.hits]]), sign)
    recalled = hits / np.maximum(np.bincount(decile[left.truth_labels], minlength=10), 1)
    differences = {"P/1": precise, f"PSP/{k}": propense, "mean": (precise + propense) / 2,
                   **{f"decile/{number + 1}": recalled[:, number] for number in range(10)}}
    return {name: 100 * float(np.sqrt((values**2).sum())) for name, values in differences.items()}


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the normal 95% interval of the mean of per-point values in [0, 1], in percent, cut to [0, 100].

    For P@1 the values are `match(...).hits[:, 0]`. One point gives (0, 100). Raises ValueError for none.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        raise ValueError("an interval needs at least one point, got none")
    mean, half = float(values.mean()), half_interval(values)
    return 100 * max(0.0, mean - half), 100 * min(1.0, mean + half)


def half_interval(values: np.ndarray) -> float:
    """Return half the width of the 95% interval of the mean of per-point values, at most 1 apart; 1 for one point.

    The interval is the normal one. Where all n values are equal, their spread is 0 and says nothing: then it is the
    bound of Clopper and Pearson, 1 - 0.025^(1/n), about 3.7 / n.
    """
    n = len(values)
    if n == 1:
        return 1.0
    spread = float(np.std(values, ddof=1))
    return 1.959963984540054 * spread / math.sqrt(n) if spread > 1e-9 else 1 - 0.025 ** (1 / n)


def drop_filtered(predictions: np.ndarray, scores: np.ndarray, filters: Pairs,
                  k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k predictions of each row that are not filtered, (n, k), and their scores.

    The others move up in order; a row with fewer than k left is padded with -1 and -inf, so retrieve deeper than k.
    Raises ValueError for k above the depth and as `match` does.
    """
    _deepest(predictions, (k,))
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


def _deepest(predictions: np.ndarray, ks: tuple[int, ...]) -> int:
    if not ks or min(ks) < 1 or max(ks) > predictions.shape[1]:
        raise ValueError(f"every k must be in 1..{predictions.shape[1]}, the depth of predictions; got {list(ks)}")
    return max(ks)


def _need_points(matches: Matches) -> None:
    if not len(matches.rows):
        raise ValueError(f"no row has a true label left, of {matches.left_out}; look at the split and its filters")


def _gains(matches: Matches, inverse_propensity: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k columns of hits, and 1/p where there is a hit, (m, k) each."""
    hits = matches.hits[:, :k]
    return hits, np.where(hits, np.asarray(inverse_propensity)[matches.labels[:, :k]], 0.0)


def _best(matches: Matches, inverse_propensity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 1/p of every true pair, largest first within its row, and its rank there from 0."""
    values = np.asarray(inverse_propensity)[matches.truth_labels]
    order = np.lexsort((-values, matches.truth_rows))  # truth_rows are ascending, so rows stay where they are
    return values[order], ranks(matches.truth_rows)


def _deciles(frequencies: np.ndarray) -> np.ndarray:
    """Return the decile of each label, 0 (tail) to 9, (L,)."""
    order = np.argsort(frequencies, kind="stable")
    sorted_ = frequencies[order].astype(np.float64)
    middle = np.cumsum(sorted_) - sorted_ / 2
    decile = np.empty(len(frequencies), dtype=np.int64)
    decile[order] = np.minimum(10 * middle / max(sorted_.sum(), 1), 9).astype(np.int64)
    return decile
