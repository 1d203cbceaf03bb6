"""Nearest labels of many queries by exact search on a GPU, block by block of queries and labels.

1.3 million labels of 768 dimensions take as long as their products and the choice of the largest of them: there is
nothing to build, and none of the labels is left out. Products are those of training, in TF32.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from xcmodels.mining.label_index import Excluded, nothing_excluded
from xcmodels.mining.per_query_index import PerQueryIndex
from xcmodels.retrieval import ann

MARK = "gpu.txt"    # of an index that was made on a GPU
SHARE = 0.5                           # of a GPU's free memory that vectors and scores may take
_QUERIES, _LABELS = 2048, 131_072     # of a block: scores of 1 GB
_SCORES = 3 * 4 * _QUERIES * _LABELS  # bytes of a block's scores, and of what chooses the largest of them


def has_room(labels: np.ndarray) -> bool:
    """Return whether there is a GPU whose free memory has room for label vectors (L, d) and a block of scores."""
    if not torch.cuda.is_available():
        return False
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()    # freed tensors' memory, which torch keeps
    return 4 * labels.size + _SCORES <= SHARE * (torch.cuda.mem_get_info()[0] + kept)


class GpuIndex(PerQueryIndex):
    """Label vectors on a GPU; device: a processor in tests."""

    def __init__(self, index: ann.Index, device: str = "cuda") -> None:
        super().__init__(index)
        self.kind, self.device = "gpu", torch.device(device)

    @cached_property
    def labels(self) -> torch.Tensor:
        """The label vectors on the device, (L, d)."""
        return torch.from_numpy(np.array(self.vectors, np.float32)).to(self.device)

    @torch.no_grad()
    def nearest(self, queries: np.ndarray, k: int, excluded: Excluded = nothing_excluded) -> np.ndarray:
        """Return the nearest labels that are not excluded; equal scores are in no certain order."""
        ann.need_finite(queries, "query")
        out = np.full((len(queries), k), -1, dtype=np.int64)
        for start in range(0, len(queries), _QUERIES):
            rows = np.arange(start, min(start + _QUERIES, len(queries)))
            found = self._nearest(torch.from_numpy(queries[rows]).to(self.device), k, excluded(rows))
            out[rows, :found.shape[1]] = found
        return out

    def _nearest(self, queries: torch.Tensor, k: int, pairs: np.ndarray) -> np.ndarray:
        """Return the ids (n, min(k, L)) of the nearest labels without `pairs`, row * L + id; -1 where there are fewer.

        The best of each block of labels join those of the blocks before.
        """
        starts = range(0, len(self.vectors), _LABELS)
        rows, labels = np.divmod(pairs, len(self.vectors))
        order = np.argsort(labels)
        ends = np.searchsorted(labels[order], [*starts, len(self.vectors)])
        row, label = (torch.from_numpy(each[order]).to(self.device) for each in (rows, labels))
        best, ids = queries.new_empty(len(queries), 0), label.new_empty(len(queries), 0)
        for start, low, high in zip(starts, ends, ends[1:], strict=False):
            scores = queries @ self.labels[start:start + _LABELS].T
            scores[row[low:high], label[low:high] - start] = -torch.inf
            top = scores.topk(min(k, scores.shape[1]), dim=1)
            best, ids = torch.cat([best, top.values], 1), torch.cat([ids, top.indices + start], 1)
            best, slots = best.topk(min(k, best.shape[1]), dim=1)
            ids = ids.gather(1, slots)
        return ids.masked_fill(best == -torch.inf, -1).cpu().numpy()

    def save(self, folder: Path) -> None:
        super().save(folder)
        (folder / MARK).write_text("search on a GPU where there is one\n")
