"""Propensities of labels: how likely a true label is to be observed, by which propensity-scored metrics weigh hits."""

import math

import numpy as np

from xcmodels.data.corpus import Corpus


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


def inverse_propensity(corpus: Corpus) -> np.ndarray:
    """Return 1 / propensity of each label of a corpus, (L,), by its training queries."""
    return 1 / propensity(corpus.frequencies(), corpus.n_queries, *corpus.facts["propensity"])
