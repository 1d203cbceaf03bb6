"""What proposes labels for a query: indexes over labels, or over training queries that propose their own."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xcmodels.data.batching import padded
from xcmodels.data.corpus import Ragged
from xcmodels.retrieval import ann

NEIGHBOURS = 5     # labels that a shortlist has room for, a training query that proposes its own


@dataclass(frozen=True)
class Proposer:
    """An index that proposes labels for queries: those it holds, or those of the training queries that it holds.

    It reads as many of a query vector's dimensions, from the first, as its own vectors have.
    """

    index: ann.Index
    labels: Ragged | None = None     # of each vector of the index; None = its rows are the labels
    removed: np.ndarray = field(default_factory=lambda: ann.NOTHING)    # ids of labels that are not proposed

    def nearest(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return what the index comes up with for queries (n, width): rows of its vectors, (n, S) int64, -1 for none.

        Labels are `shortlist`, or as many as it takes for the k nearest to be among them; queries are k.
        """
        queries = queries[:, :self.index.dim]
        if self.labels is None:
            return self.index.propose(queries, max(shortlist, self.index.reach(k)), self.removed)
        return self.index.search(queries, max(k, 1))[1]

    def __call__(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return labels proposed for each query (n, width), (n, S) int64, -1 for none.

        They are `shortlist`, or as many as it takes for the k nearest labels of the index to be among them.
        """
        if self.labels is None:
            return self.nearest(queries, shortlist, k)
        near = self.nearest(queries, shortlist, max(shortlist, k) // NEIGHBOURS)
        found, lengths = self.labels.take(near[near >= 0])
        a_query = np.bincount(np.nonzero(near >= 0)[0], weights=lengths, minlength=len(near)).astype(np.int64)
        proposed = padded(found, a_query)[:, :max(shortlist, k)]
        return np.where(np.isin(proposed, self.removed), -1, proposed) if len(self.removed) else proposed

    def save(self, folder: Path) -> None:
        """Write the index, and the labels of what it holds."""
        self.index.save(folder)
        if self.labels is not None:
            self.labels.save(folder, "labels")

    @classmethod
    def load(cls, folder: Path, removed: np.ndarray = ann.NOTHING) -> "Proposer":
        """Map what `save` wrote."""
        there = (folder / "labels.offsets.npy").exists()
        return cls(ann.load(folder), Ragged.load(folder, "labels") if there else None, removed)


def candidates(proposers: Iterable[Proposer], queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
    """Return the union of what every index proposes for a query, (n, S) int64, rising; -1 for a repetition."""
    ids = np.sort(np.concatenate([propose(queries, shortlist, k) for propose in proposers], axis=1), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    return ids


def best_of(ids: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each row, or all where there are fewer; equal scores in the order of label ids."""
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)
