"""UniDEC's losses over every label, by parts of the labels (DEXML).

Memory does not grow with their number. A row's denominator is over all labels, so a part returns its share of it and
the scores of its positives. No part is kept for the backward pass, which encodes and scores it again.
"""

from dataclasses import dataclass
from functools import partial

import torch

from xcmodels.data.batching import BatchSide, Block
from xcmodels.data.every_label import EveryLabelBatch
from xcmodels.methods.unidec.config import LOSSES, UnidecConfig
from xcmodels.nn import losses
from xcmodels.nn.autograd import recomputed
from xcmodels.nn.encoders import LABEL, QUERY, Encoder
from xcmodels.nn.row_table import RowTable
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER


@dataclass(frozen=True)
class OverEveryLabel:
    """The loss of one batch; labels: the classifiers, None where there are none."""

    config: UnidecConfig
    encoder: Encoder
    labels: RowTable | None
    batch: EveryLabelBatch

    def terms(self) -> dict[str, torch.Tensor]:
        """Return the terms of the loss, as `UnidecStage.terms` does for a pool."""
        config, batch = self.config, self.batch
        pooled = self.encoder.pool({"queries": batch.sides["queries"]})["queries"]
        queries, share = {}, 1 - config.balance
        if config.balance > 0:
            queries[ENCODER] = self.encoder.view(pooled, QUERY)
        if self.labels is not None:
            queries[CLASSIFIER] = self.encoder.heads[CLASSIFIER](pooled)
        parts = batch.parts(self.encoder.backbone.batch)
        # of each part: for each scorer a denominator, the scores of positives and the loss of its labels over queries;
        # then the classifier's binary cross-entropy
        found = [self._part(part, tuple(queries), *queries.values()) if len(parts) == 1 else
                 recomputed(partial(self._part, part, tuple(queries)), *queries.values()) for part in parts]
        columns = list(zip(*found, strict=True))
        terms = {}
        for name in queries:
            denominators, positive_scores, backward = columns[0], columns[1], columns[2]
            columns = columns[3:]
            weight = config.balance if name == ENCODER else share * config.softmax
            if weight:
                terms[name] = weight * self._symmetric(torch.cat(denominators, 1), torch.cat(positive_scores),
                                                       torch.stack(backward).sum())
        if columns:
            terms["bce"] = share * config.bce * torch.stack(columns[0]).sum()
        return terms

    def _part(self, part: slice, names: tuple[str, ...], *queries: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the labels of a part add to each term."""
        config, block, out = self.config, self.batch.block(part), []
        for name, vectors in zip(names, queries, strict=True):
            scores = vectors @ (self._embeddings(part) if name == ENCODER else self._classifiers(part)).T
            scaled = scores / config.temperature
            denominator = losses.softmax_part(config.loss, scaled, block.positives, block.weights)
            out += [denominator, scaled[self.batch.positive_cells(part)], self._labels_over_queries(scaled, block)]
            if name == CLASSIFIER and config.bce:
                out.append(losses.weighted_bce(scores + self._prior(), block.positives, block.weights))
        return tuple(out)

    def _embeddings(self, part: slice) -> torch.Tensor:
        side = self.batch.sides["labels"]
        assert side.tokens is not None
        texts = BatchSide(side.ids[part], side.tokens.part(part))
        return self.encoder.view(self.encoder.pool({"labels": texts})["labels"], LABEL)

    def _classifiers(self, part: slice) -> torch.Tensor:
        assert self.labels is not None
        return self.labels.vectors(self.batch.sides["labels"].ids[part])

    def _symmetric(self, denominators: torch.Tensor, positive_scores: torch.Tensor,
                   backward: torch.Tensor) -> torch.Tensor:
        """Return the loss of queries over labels and, for the share `symmetric`, of labels over queries."""
        kept, share = self.batch.counted_positives, self.config.symmetric
        forward = losses.softmax_of_parts(self.config.loss, denominators, positive_scores, self.batch.rows[kept],
                                          self.batch.weights[kept])
        return (1 - share) * forward + share * backward

    def _labels_over_queries(self, scaled: torch.Tensor, block: Block) -> torch.Tensor:
        """Return the part's addend to the mean over all labels that have a positive."""
        if not self.config.symmetric:
            return scaled.new_zeros(())
        assert block.weights is not None
        here = (block.positives & (block.weights > 0)).any(0).sum()
        total = self.batch.labels[self.batch.counted_positives].unique().numel()
        mean = LOSSES[self.config.loss](scaled.T, block.positives.T, block.weights.T)
        return mean * here / max(total, 1)

    def _prior(self) -> torch.Tensor:
        """Return `prior_logit` over all labels."""
        right = self.batch.counted_positives.sum().clamp_min(1)
        counted = self.batch.n_labels * len(self.batch.sides["queries"].ids) - (self.batch.weights == 0).sum()
        return (right / (counted - right).clamp_min(1)).log()
