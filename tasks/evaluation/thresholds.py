"""Thresholds of confidence: the share of answers that is right at each, and of true labels that is found."""

from dataclasses import dataclass

import numpy as np

SHOWN = tuple(i / 20 for i in range(20))        # thresholds of the report's table
TRIED = tuple(i / 100 for i in range(100))      # thresholds of which one is recommended


@dataclass(frozen=True)
class Answers:
    """The best labels of m test queries that have a true one: confidences (m, K), -1 for none, and which are right.

    positives (m,): how many true labels a query has.
    """

    confidences: np.ndarray
    right: np.ndarray
    positives: np.ndarray


@dataclass(frozen=True)
class AtThreshold:
    """What labels of at least a confidence are; shares of 0 to 1, `right` NaN where there is none."""

    threshold: float
    right: float        # share of the labels given that is true
    found: float        # share of the true labels that is given
    labels: float       # labels given to a text
    silent: float       # share of the texts without one


def at_threshold(answers: Answers, threshold: float) -> AtThreshold:
    """Return what is left at a threshold."""
    given = answers.confidences >= max(threshold, 0.0)
    count, right = int(given.sum()), int((answers.right & given).sum())
    return AtThreshold(threshold, right / count if count else float("nan"), right / int(answers.positives.sum()),
                       count / len(given), float((~given.any(axis=1)).mean()))


def recommended(answers: Answers, wanted: float) -> AtThreshold | None:
    """Return the lowest threshold at which a share `wanted` of the labels given is right; None where there is none."""
    return next((found for found in (at_threshold(answers, threshold) for threshold in TRIED)
                 if found.right >= wanted), None)


def advice(answers: Answers, wanted: float) -> str:
    """Return a sentence that recommends a threshold for the wanted share of right labels."""
    if (found := recommended(answers, wanted)) is None:
        return f"At no threshold are {100 * wanted:.0f}% of the labels given right."
    return (f"For {100 * wanted:.0f}% right, the threshold is {found.threshold:.2f}: {100 * found.right:.0f}% of the "
            f"labels given are right, {100 * found.found:.0f}% of the true ones are given, {found.labels:.1f} to a "
            f"text, and {100 * found.silent:.0f}% of the texts get none.")
