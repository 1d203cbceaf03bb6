"""The interface of an index of label vectors, from which hard negatives are mined."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.retrieval.ann import NO_IDS

Excluded = Callable[[np.ndarray], np.ndarray]    # the pairs to leave out among some rows, i * L + label for rows[i]


def nothing_excluded(rows: np.ndarray) -> np.ndarray:
    return NO_IDS


class LabelIndex(ABC):
    """Label vectors (L, d), to search for the nearest labels of many queries."""

    vectors: np.ndarray
    kind: str
    chunk: ClassVar[int]    # queries to search for at once

    @abstractmethod
    def nearest(self, queries: np.ndarray, k: int, excluded: Excluded = nothing_excluded) -> np.ndarray:
        """Return the ids of the nearest labels that a search finds, int64 (n, k), best first, -1 where there are fewer.

        queries: (n, d) float32. excluded: of their rows, 0 to n - 1. Raises ValueError for queries that are not finite.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the index to a folder."""

    def search_order(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return `rows` (n,) of the queries (N, d) in the order in which to search for them."""
        return rows


def not_excluded(ids: np.ndarray, excluded: np.ndarray, n_labels: int) -> np.ndarray:
    """Return which of the label ids (n, k), -1 = none, are not in the `excluded` pairs, row * L + id: bool (n, k)."""
    return (ids >= 0) & ~isin_sorted(np.arange(len(ids))[:, None] * n_labels + ids, np.sort(excluded))
