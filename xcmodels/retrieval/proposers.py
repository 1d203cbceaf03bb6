"""Candidate labels of a query, from indexes over labels or over training queries."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xcmodels.data.batching import padded
from xcmodels.data.corpus import Ragged
from xcmodels.retrieval import ann

NEIGHBOURS = 5     # places in a shortlist per training query that is searched for


@dataclass(frozen=True)
class Proposer:
    """An index over labels, which it proposes, or over training queries, whose labels it proposes.

    It uses the first dimensions of a query vector, as many as its own vectors have.
    """

    index: ann.Index
    labels: Ragged | None = None     # labels of each vector of the index; None = the vectors are of labels
    removed: np.ndarray = field(default_factory=lambda: ann.NOTHING)    # ids of labels that are not proposed

    def nearest(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return the nearest rows of the index for queries (n, width), (n, S) int64, -1 for none.

        S is k for an index of training queries; for one of labels it is `shortlist`, or more if the k nearest need it.
        """
        queries = queries[:, :self.index.dim]
        if self.labels is None:
            return self.index.propose(queries, max(shortlist, self.index.reach(k)), self.removed)
        return self.index.search(queries, max(k, 1))[1]

    def __call__(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return labels proposed for each query (n, width), (n, S) int64, -1 for none.

        S is `shortlist`, or more if the k nearest labels of the index need it.
        """
        if self.labels is None:
            return self.nearest(queries, shortlist, k)
        near = self.nearest(queries, shortlist, max(shortlist, k) // NEIGHBOURS)
        labels, lengths = self.labels.take(near[near >= 0])
        per_query = np.bincount(np.nonzero(near >= 0)[0], weights=lengths, minlength=len(near)).astype(np.int64)
        proposed = padded(labels, per_query)[:, :max(shortlist, k)]
        return np.where(np.isin(proposed, self.removed), -1, proposed) if len(self.removed) else proposed

    def save(self, folder: Path) -> None:
        """Write the index, and the labels of its training queries."""
        self.index.save(folder)
        if self.labels is not None:
            self.labels.save(folder, "labels")

    @classmethod
    def load(cls, folder: Path, removed: np.ndarray = ann.NOTHING) -> "Proposer":
        of_queries = (folder / "labels.offsets.npy").exists()
        return cls(ann.load(folder), Ragged.load(folder, "labels") if of_queries else None, removed)


def candidates(proposers: Iterable[Proposer], queries: np.ndarray, shortlist: int, k: int = 0,
               others: Iterable[np.ndarray] = ()) -> np.ndarray:
    """Return the union of the labels that all proposers and `others` propose, (n, S) int64, ascending.

    others: label ids (n, .), -1 for none. A duplicate is -1.
    """
    proposed = [*(propose(queries, shortlist, k) for propose in proposers), *others]
    ids = np.sort(np.concatenate(proposed, axis=1), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    return ids


def best_of(ids: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each row, or all where there are fewer; ties by ascending label id."""
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)
