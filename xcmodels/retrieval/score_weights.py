"""Weights of the scores that a fusion sums, fitted on validation queries and kept near those it has without.

What a score is worth differs between data sets, and few validation queries do not say much of it: the more positives
they have, the smaller the penalty on moving away.
"""

import numpy as np

PENALTY = 0.1        # on squared distances from the weights before the fit
FULL_UP_TO = 1000    # positives; of n, which are more, the penalty is FULL_UP_TO / n of PENALTY
SCALES = 0.1, 50.0   # of the softmax's logits over the weighted sum, between which it is found


class DecoupledSoftmax:
    """`xcmodels.nn.losses.decoupled_softmax` of pairs' weighted sums of n scores, and its gradient by the weights.

    Each positive of a query is set against those labels of its shortlist that are none (DEXML, Gupta et al., 2024), and
    the weights of a query's positives have a mean of 1.
    scores (p, n) of pairs of a query and a label, rows (p,), ascending, and whether the label is a positive, (p,).
    gains (p,): what a positive counts for among those of its query. Queries without a positive do not count.
    """

    def __init__(self, scores: np.ndarray, rows: np.ndarray, relevant: np.ndarray, gains: np.ndarray) -> None:
        judged = np.isin(rows, rows[relevant])
        self.scores = np.ascontiguousarray(scores[judged].T, np.float64)
        self.relevant = relevant[judged]
        _, self.starts, self.query = np.unique(rows[judged], return_index=True, return_inverse=True)
        shares = np.where(self.relevant, gains[judged], 0.0)
        self.shares = shares / (np.bincount(self.query, shares)[self.query] * len(self.starts))

    def __call__(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and its gradient; sums are numpy's own, whose bits no number of threads changes."""
        logits = np.zeros(len(self.query))
        for weight, column in zip(weights, self.scores, strict=True):
            logits += weight * column
        logits -= np.maximum.reduceat(logits, self.starts)[self.query]
        odds = np.exp(np.maximum(logits, -700.0))
        against = odds + np.bincount(self.query, np.where(self.relevant, 0.0, odds))[self.query]
        wanted = self.shares / against
        pushed = np.bincount(self.query, wanted)[self.query]
        slope = np.where(self.relevant, wanted, pushed) * odds - self.shares
        return float((self.shares * (np.log(against) - logits)).sum()), (self.scores * slope).sum(axis=1)


def fit_weights(scores: np.ndarray, rows: np.ndarray, relevant: np.ndarray, gains: np.ndarray,
                before: np.ndarray) -> np.ndarray:
    """Return weights (n,) of n scores that minimise `DecoupledSoftmax` + penalty ||weights - before||^2.

    The penalty is less of more than FULL_UP_TO positives, as the evidence of each counts against it. The scale of the
    logits is that which suits the weights `before`, so that only their proportions are fitted.
    """
    from scipy.optimize import minimize, minimize_scalar

    if not relevant.any():
        return before
    loss, penalty = DecoupledSoftmax(scores, rows, relevant, gains), PENALTY * min(1, FULL_UP_TO / relevant.sum())
    scale = minimize_scalar(lambda scale: loss(scale * before)[0], bounds=SCALES, method="bounded").x

    def penalised(weights: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(scale * weights)
        moved = weights - before
        return value + penalty * float((moved * moved).sum()), scale * gradient + 2 * penalty * moved

    found: np.ndarray = minimize(penalised, before, jac=True, method="L-BFGS-B").x
    return found
