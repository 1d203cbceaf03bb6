"""Metrics of extreme classification: P, nDCG, PSP, PSnDCG and recall at k.

Predictions and sets of pairs are as in `xcmodels.predictions`. Results are in percent. A row without a true label
(after filters) is in no mean; pyxclib and napkinXC count it as 0 in P, nDCG and recall. PSP and PSnDCG are the same
with and without it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from xcmodels.data.ranges import ranks
from xcmodels.predictions import Matches, Pairs, check_depth, match

# The metrics shown to people, in this order: on the terminal, in the report, on the version's card, in Prefect.
SHOWN = ("P/1", "P/5", "PSP/1", "PSP/5", "nDCG/5", "recall/100")
HEADLINE = ("P/1", "PSP/5")    # where there is room for two; promotion gates use them
FAMILIES = ("P", "PSP", "nDCG", "PSnDCG", "recall")    # all at every k, where there is room for all


def name_of(key: str) -> str:
    """Return a metric's key as people write it: "P@1" for "P/1"."""
    return key.replace("/", "@")


def line_of(measured: Mapping[str, float], keys: Sequence[str] = SHOWN) -> str:
    """Return the measured ones of some metrics in a line: P@1 44.55, P@5 15.69."""
    return ", ".join(f"{name_of(key)} {measured[key]:.2f}" for key in keys if key in measured)


def evaluate(predictions: np.ndarray, truth: Pairs, filters: Pairs | None, inverse_propensity: np.ndarray, *,
             ks: tuple[int, ...] = (1, 3, 5, 10), recall_ks: tuple[int, ...] = (1, 3, 5, 10)) -> dict[str, float]:
    """Return "P/1", "nDCG/5", "PSP/3", "PSnDCG/5", "recall/10", ... in percent, "points" and "left_out" as counts.

    P divides by k always. nDCG divides by the DCG of min(k, positives) hits. PSP and PSnDCG are ratios of means
    (numerator: 1/p over the hits; denominator: over the best k true labels); in PSnDCG both sides of a row are first
    divided by its ideal DCG, as pyxclib and napkinXC do. `inverse_propensity` is (L,), 1 / propensity(...).
    Raises ValueError where a k exceeds the depth K, where no row has a true label, and as `match` does.
    """
    deepest = check_depth(predictions, (*ks, *recall_ks))
    matches = match(predictions[:, :deepest], truth, filters, len(inverse_propensity))
    _need_points(matches)
    result = {name: 100 * float(gain.mean() / best.mean())
              for name, (gain, best) in per_query(matches, inverse_propensity, ks, recall_ks).items()}
    return result | {"points": float(len(matches.rows)), "left_out": float(matches.left_out)}


def per_query(matches: Matches, inverse_propensity: np.ndarray, ks: tuple[int, ...],
              recall_ks: tuple[int, ...] = ()) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return of each metric what every query gains and the most that it counts for, (m,) each, by the metric's key.

    A metric is the ratio of their means; of a mean over queries, as P is, each query counts for 1.
    """
    hits, gains = _gains(matches, inverse_propensity, max(ks, default=0))
    best, rank = _best(matches, inverse_propensity)
    discount = 1 / np.log2(np.arange(2, max(ks, default=0) + 2))
    ideal, ones = np.cumsum(discount), np.ones(len(matches.rows))
    result: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for k in ks:
        scale, top = ideal[np.minimum(matches.positives, k) - 1], rank < k
        row, attainable = matches.truth_rows[top], best[top]
        result[f"P/{k}"] = hits[:, :k].mean(1), ones
        result[f"nDCG/{k}"] = hits[:, :k] @ discount[:k] / scale, ones
        result[f"PSP/{k}"] = gains[:, :k].sum(1), np.bincount(row, attainable, len(ones))
        result[f"PSnDCG/{k}"] = (gains[:, :k] @ discount[:k] / scale,
                                 np.bincount(row, attainable * discount[rank[top]], len(ones)) / scale)
    for k in recall_ks:
        result[f"recall/{k}"] = matches.hits[:, :k].sum(1) / matches.positives, ones
    return result


def intervals(matches: Matches, inverse_propensity: np.ndarray, ks: tuple[int, ...]) -> dict[str, tuple[float, float]]:
    """Return the 95% interval, in percent, of each metric at `ks`, by its key.

    A metric is a ratio of means, sum g / sum b (gain over what a query counts for): the delta method, with the standard
    error of the mean of (g - ratio b) / mean(b). Of a mean over queries, where b = 1, that is the normal interval.
    """
    return {name: _interval(gain, best) for name, (gain, best) in per_query(matches, inverse_propensity, ks).items()}


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
    matches = match(predictions[:, : check_depth(predictions, (k,))], truth, filters, len(inverse_propensity))
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


def difference_errors(predictions: Sequence[np.ndarray], truth: Pairs, filters: Pairs | None,
                      frequencies: np.ndarray, inverse_propensity: np.ndarray) -> dict[str, float]:
    """Return the standard errors of the differences between two predictions of the same queries, in percent.

    Keys: "P/1", "PSP/5", "mean" of both, and "decile/1" to "decile/10" for the recall@5 of each decile of labels.
    Each metric is sum(gains) / sum(best attainable gains) over queries, with the same divisor for both predictions;
    under equality a query's difference d has mean 0, and the error is sqrt(sum d^2) / divisor. For P@1 a
    difference of z errors is McNemar's test (1947): (b - c)^2 / (b + c) = z^2.
    """
    left, right = (match(ids[:, :check_depth(ids, (5,))], truth, filters, len(inverse_propensity))
                   for ids in predictions)
    _need_points(left)
    best, rank = _best(left, inverse_propensity)
    precise = (left.hits[:, 0].astype(np.float64) - right.hits[:, 0]) / len(left.rows)
    gained = sum(sign * _gains(matches, inverse_propensity, 5)[1].sum(1) for sign, matches in ((1, left), (-1, right)))
    propense = gained / best[rank < 5].sum()
    decile = _deciles(np.asarray(frequencies))
    hits = np.zeros((len(left.rows), 10))
    for sign, matches in ((1, left), (-1, right)):
        np.add.at(hits, (np.nonzero(matches.hits)[0], decile[matches.labels[matches.hits]]), sign)
    recalled = hits / np.maximum(np.bincount(decile[left.truth_labels], minlength=10), 1)
    differences = {"P/1": precise, "PSP/5": propense, "mean": (precise + propense) / 2,
                   **{f"decile/{number + 1}": recalled[:, number] for number in range(10)}}
    return {name: 100 * float(np.sqrt((values**2).sum())) for name, values in differences.items()}


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the normal 95% interval of the mean of per-point values in [0, 1], in percent, cut to [0, 100].

    For P@1 the values are `match(...).hits[:, 0]`. One point gives (0, 100). Raises ValueError for none.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        raise ValueError("an interval needs at least one point, got none")
    return _interval(values, np.ones(len(values)))


def _interval(gain: np.ndarray, best: np.ndarray) -> tuple[float, float]:
    ratio = gain.mean() / best.mean()
    half = half_interval((gain - ratio * best) / best.mean())
    return 100 * max(0.0, float(ratio - half)), 100 * min(1.0, float(ratio + half))


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
