"""Candidate labels of a query, from indexes over labels or over training queries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from xcmodels.data.batching import padded
from xcmodels.data.corpus import Ragged
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.retrieval import ann

NEIGHBOURS = 5     # places in a shortlist per training query that is searched for


@dataclass(frozen=True)
class Proposer:
    """An index over labels, which it proposes, or over training queries, whose labels it proposes.

    It uses the first dimensions of a query vector, as many as its own vectors have. Labels `without` are left out of
    its searches: the next ones are proposed in their places.
    """

    index: ann.Index
    labels: Ragged | None = None     # labels of each vector of the index; None = the vectors are of labels
    without: np.ndarray = field(default_factory=lambda: ann.NO_IDS)    # ids of labels not proposed, ascending

    def leaving_out(self, without: np.ndarray) -> "Proposer":
        """Return this with other labels left out."""
        return replace(self, without=without)

    @cached_property
    def _idle(self) -> np.ndarray:
        """The rows of the index that are left out: labels, or training queries all of whose labels are."""
        if self.labels is None or not len(self.without):
            return self.without
        return np.flatnonzero(self.labels.less(self.without).lengths == 0)

    def nearest(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return the nearest rows of the index for queries (n, width), (n, S) int64, -1 for none.

        S is k for an index of training queries; for one of labels it is `shortlist`, or all labels where those are
        fewer, or more if the k nearest need it.
        """
        queries = queries[:, :self.index.dim]
        if self.labels is None:
            depth = max(min(shortlist, len(self.index)), self.index.depth_for(k), 1)
            return self.index.propose(queries, depth, self.without)
        return self.index.search(queries, max(k, 1), self._idle)[1]

    def __call__(self, queries: np.ndarray, shortlist: int, k: int = 0) -> np.ndarray:
        """Return labels proposed for each query (n, width), (n, S) int64, -1 for none.

        S is `shortlist`, or the labels of the index where those are fewer, or more if the k nearest need it.
        """
        if self.labels is None:
            return self.nearest(queries, shortlist, k)
        near = self.nearest(queries, shortlist, max(shortlist, k) // NEIGHBOURS)
        labels, lengths = self.labels.take(near[near >= 0])
        query = np.repeat(np.nonzero(near >= 0)[0], lengths)
        if len(self.without):
            kept = ~isin_sorted(labels, self.without)
            labels, query = labels[kept], query[kept]
        return padded(labels, np.bincount(query, minlength=len(near)))[:, :max(shortlist, k)]

    def save(self, folder: Path) -> None:
        """Write the index, and the labels of its training queries."""
        self.index.save(folder)
        if self.labels is not None:
            self.labels.save(folder, "labels")

    @classmethod
    def load(cls, folder: Path, without: np.ndarray = ann.NO_IDS) -> "Proposer":
        of_queries = (folder / "labels.offsets.npy").exists()
        return cls(ann.load(folder), Ragged.load(folder, "labels") if of_queries else None, without)


@dataclass(frozen=True, eq=False)
class Selection:
    """The labels that a request may get, and how they are searched; those left out are never proposed.

    without: ids of those left out, ascending. count: of all others. scored: their ids, where they are few enough to be
    scored one by one. proposers: by name, for where they are not; depth: by which the length of shortlists is
    multiplied.
    """

    without: np.ndarray
    count: int
    proposers: Mapping[str, Proposer]
    scored: np.ndarray | None = None
    depth: int = 1


def candidates(proposers: Iterable[Proposer], queries: np.ndarray, shortlist: int, k: int = 0,
               others: Iterable[np.ndarray] = ()) -> np.ndarray:
    """Return the union of the labels that all proposers and `others` propose, (n, S) int64, sorted.

    others: label ids (n, .), -1 for none. All but one of equal ids are replaced by -1 where they stand.
    """
    proposed = [*(propose(queries, shortlist, k) for propose in proposers), *others]
    ids = np.sort(np.concatenate(proposed, axis=1), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    return ids


def best_of(ids: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each row, or all where there are fewer; ties by ascending label id."""
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)
