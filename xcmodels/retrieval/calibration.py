"""Confidence: the chance that a label is right, a function of its score that is fitted on held-out queries."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from xcmodels.checks import Unusable
from xcmodels.data.corpus import Corpus
from xcmodels.data.judged_answers import JudgedAnswers
from xcmodels.data.ranges import ranks
from xcmodels.data.sorted_ids import isin_sorted, unique

FILE = "calibration.json"
BEST = 5            # labels of a held-out query that are fitted: those that are shown first
KNOTS = 17          # of the function, at quantiles of the scores
STIFFNESS = 5.0     # how much a change of slope costs: a few hundred answers give a straight line (Platt scaling)
FLATTEST = 1e-3     # least slope, log-odds per standard deviation of the scores


@dataclass(frozen=True)
class Calibration:
    """The log-odds that a label is right, as a strictly increasing function of its score, linear between knots.

    Below the first knot and above the last, the first and the last line go on.
    """

    scores: np.ndarray      # (m,) float64 of the knots, ascending, m at least 2
    log_odds: np.ndarray    # (m,) float64, ascending
    queries: int            # that it was fitted on; of 0, nothing is known and it is the logistic function

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return the chance that a label of each score (...) is right, float64; 0 for -inf, the score of no label."""
        first, last = self.scores[0], self.scores[-1]
        slopes = np.diff(self.log_odds) / np.diff(self.scores)
        given = np.asarray(scores, dtype=np.float64)
        inside = np.interp(given, self.scores, self.log_odds)
        beyond = slopes[0] * np.minimum(given - first, 0) + slopes[-1] * np.maximum(given - last, 0)
        return np.asarray(expit(inside + beyond))

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps({"scores": self.scores.tolist(), "log_odds": self.log_odds.tolist(),
                                               "queries": self.queries}) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Calibration":
        """Read what `save` wrote; raise Unusable where it is missing or damaged."""
        try:
            kept = json.loads((folder / FILE).read_text())
            made = cls(np.array(kept["scores"], float), np.array(kept["log_odds"], float), int(kept["queries"]))
            knots = np.stack([made.scores, made.log_odds])
            if knots.ndim != 2 or knots.shape[1] < 2 or not np.isfinite(knots).all() or (np.diff(knots) <= 0).any():
                raise ValueError("its knots do not ascend")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{folder / FILE}, which turns scores into confidences, cannot be read ({error}); "
                           "train the retriever again, or fetch it again") from error
        return made


UNKNOWN = Calibration(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0)


class ScoredPairs(NamedTuple):
    """Scored pairs (p,) of a validation query, by its place in the split, and a label."""

    rows: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, scores: np.ndarray) -> "ScoredPairs":
        """Return those of label ids (n, S), -1 for none, and their scores."""
        rows, slots = np.nonzero(ids >= 0)
        return cls(rows, ids[rows, slots], scores[rows, slots])


def calibrate(corpus: Corpus, pairs: ScoredPairs) -> Calibration:
    """Fit a calibration on the BEST highest-scored labels of each validation query that has a label to find.

    Metrics leave the other queries out as well. Neither the model nor the fusion may have been fitted on the query
    whose pairs it scored.
    """
    known, width = JudgedAnswers.of(corpus), corpus.n_labels
    keys, queries = pairs.rows * width + pairs.labels, unique(known.truth // width)
    judged = known.has_query[pairs.labels] & ~isin_sorted(keys, known.unjudged.keys(width))
    kept = judged & isin_sorted(pairs.rows, queries)
    rows, keys, scores = pairs.rows[kept], keys[kept], pairs.scores[kept]
    order = np.lexsort((keys, -scores, rows))
    best = order[ranks(rows[order]) < BEST]
    return fit(scores[best], isin_sorted(keys[best], known.truth), len(queries))


def fit(scores: np.ndarray, right: np.ndarray, queries: int) -> Calibration:
    """Return the calibration of least log loss for scores (p,) of answers that were right or not, p > 0.

    The targets are Platt's (1999), (n+ + 1) / (n+ + 2) and 1 / (n- + 2), so that few answers make no certainty. Beside
    the loss stands STIFFNESS / 2 times the sum of the squared changes of slope, in log-odds per standard deviation.
    """
    from scipy.optimize import minimize  # a third of a second, which a server and a command need not wait for

    if not len(scores):
        return UNKNOWN
    scores, hits = scores.astype(np.float64), int(right.sum())
    targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))
    spread = float(scores.std()) or 1.0
    knots = unique(np.quantile(scores, np.linspace(0, 1, KNOTS)))
    knots = np.append(knots, knots[-1] + spread) if len(knots) == 1 else knots
    parts = np.clip(scores[:, None], knots[:-1], knots[1:]) - knots[:-1]    # of each line, how much lies below a score
    parts /= spread

    def loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        log_odds, bends = line[0] + parts @ line[1:], np.diff(line[1:])
        wrong = expit(log_odds) - targets
        slope = parts.T @ wrong
        slope[1:] += STIFFNESS * bends
        slope[:-1] -= STIFFNESS * bends
        return (float((np.logaddexp(0, log_odds) - targets * log_odds).sum() + STIFFNESS / 2 * (bends @ bends)),
                np.append(wrong.sum(), slope))

    start, bounds = np.ones(len(knots)), [(None, None), *[(FLATTEST, None)] * (len(knots) - 1)]
    line = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 1000}).x
    log_odds = line[0] + np.append(0, np.cumsum(line[1:] * np.diff(knots) / spread))
    return Calibration(knots, log_odds, queries)


def calibration_error(confidences: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error of answers (n,), in points; 0 for none.

    The mean gap between the confidence and the share that is right (bool), over bins of equally many answers in order
    of confidence (Naeini et al. 2015; Guo et al. 2017). Equal confidences count as right by the share of them that is.
    """
    order = np.argsort(confidences, kind="stable")
    sure = np.asarray(confidences, dtype=np.float64)[order]
    first = np.append(True, sure[1:] != sure[:-1])[:len(sure)]
    group = np.cumsum(first) - 1
    share = np.bincount(group, weights=right[order]) / np.maximum(np.bincount(group), 1)
    gaps = np.append(0, np.cumsum(sure - share[group]))
    return 100 * float(np.abs(np.diff(gaps[len(sure) * np.arange(bins + 1) // bins])).sum()) / max(len(sure), 1)
