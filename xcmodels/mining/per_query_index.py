"""Nearest labels of many queries, each looked for by itself in an index that also serves."""

from pathlib import Path

import numpy as np

from xcmodels.mining.label_index import Excluded, LabelIndex, not_excluded, nothing_excluded
from xcmodels.retrieval import ann


class PerQueryIndex(LabelIndex):
    """An index that is searched for one query after another, deeper by as many labels as are left out."""

    chunk = 8192

    def __init__(self, index: ann.Index) -> None:
        self.index, self.vectors, self.kind = index, index.vectors, index.kind

    def nearest(self, queries: np.ndarray, k: int, excluded: Excluded = nothing_excluded) -> np.ndarray:
        pairs, n_labels = excluded(np.arange(len(queries))), len(self.vectors)
        ids = self.index.search(queries, k + int(np.bincount(pairs // n_labels).max(initial=0)))[1]
        allowed = not_excluded(ids, pairs, n_labels)
        rank = np.cumsum(allowed, axis=1) - 1
        row, slot = np.nonzero(allowed & (rank < k))
        out = np.full((len(queries), k), -1, dtype=np.int64)
        out[row, rank[row, slot]] = ids[row, slot]
        return out

    def save(self, folder: Path) -> None:
        self.index.save(folder)
