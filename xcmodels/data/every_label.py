"""Batches of queries against every label, made part by part: memory does not grow with labels."""

from dataclasses import dataclass

import numpy as np
import torch

from xcmodels.data.batching import Batch, Block
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import isin_sorted, unique

PAIRS = 1 << 22    # of query and label that are scored at once: 16 MB


@dataclass(frozen=True)
class EveryLabelBatch(Batch):
    """A batch whose side "queries" meets every label.

    It lists only the pairs that are positives or ignored by the loss; all other pairs are negatives of weight 1.
    rows, labels (P,) int64, sorted by label; positives (P,) bool; weights (P,) float32, 0 = the loss ignores the pair.
    """

    n_labels: int
    rows: torch.Tensor
    labels: torch.Tensor
    positives: torch.Tensor
    weights: torch.Tensor

    def parts(self, most: int = PAIRS) -> list[slice]:
        """Return the labels in parts of at most `most` labels, and of at most PAIRS pairs."""
        size = max(min(most, PAIRS // max(len(self.sides["queries"].ids), 1)), 1)
        return [slice(start, min(start + size, self.n_labels)) for start in range(0, self.n_labels, size)]

    def block(self, part: slice) -> Block:
        """Return the block of all queries against the labels of a part, as `pooled_block` does."""
        listed = self._listed(part)
        shape = len(self.sides["queries"].ids), part.stop - part.start
        positives = torch.zeros(shape, dtype=torch.bool, device=self.rows.device)
        weights = torch.ones(shape, device=self.rows.device)
        cells = self.rows[listed], self.labels[listed] - part.start
        positives[cells], weights[cells] = self.positives[listed], self.weights[listed]
        return Block("queries", "labels", positives, weights)

    @property
    def counted_positives(self) -> torch.Tensor:
        """Which of the listed pairs are positives that the loss counts, (P,) bool."""
        return self.positives & (self.weights > 0)

    def positive_cells(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row and the column in `block(part)` of every positive that the loss counts, in the order here."""
        listed = self._listed(part)
        kept = self.counted_positives[listed]
        return self.rows[listed][kept], self.labels[listed][kept] - part.start

    def _listed(self, part: slice) -> slice:
        ends = torch.tensor([part.start, part.stop], device=self.labels.device)
        return slice(*torch.searchsorted(self.labels, ends).tolist())


def every_label_batch(corpus: Corpus, rows: np.ndarray, batch: Batch) -> EveryLabelBatch:
    """Return `batch`, whose queries are the training `rows`, against every label."""
    n = corpus.n_labels
    true, ignored = (unique(pairs["train"].subset(rows).keys(n)) for pairs in (corpus.positives, corpus.filters))
    keys = unique(np.concatenate([true, ignored]))
    weights = np.ones(len(keys), np.float32)
    if corpus.train_weights is not None:
        weights[np.searchsorted(keys, corpus.train_positives.subset(rows).keys(n))] = corpus.train_weights.take(rows)[0]
    weights[isin_sorted(keys, ignored)] = 0.0
    order = np.argsort(keys % n, kind="stable")
    columns = (keys[order] // n, keys[order] % n, isin_sorted(keys, true)[order], weights[order])
    return EveryLabelBatch(batch.sides, batch.blocks, n, *map(torch.from_numpy, columns))
