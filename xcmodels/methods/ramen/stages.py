"""RAMEN: metadata graphs regularise an encoder in training only.

Mittal et al., 2025. Each query and each label of a batch draws one of its anchors from every graph, and triplet losses
between nodes and anchors, weighed by lambda, are added to the base's (section 3.1). At every refresh of the base, edges
between texts that the newest encoder finds dissimilar are pruned (Appendix A). The strengths lambda are fixed, or
arms of a bandit.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcmodels.data.batching import Batch, BatchSide, anchor_block, sample_anchor
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.data.sorted_ids import isin_sorted, unique
from xcmodels.method import EncoderStage, Mined, Round, SideVectors, Vectors, embeddings
from xcmodels.methods.ramen.bandit import Bandit
from xcmodels.methods.ramen.config import SIDES, GraphConfig
from xcmodels.mining.graph import shared_anchors, similar_edges
from xcmodels.nn import losses
from xcmodels.nn.autograd import SparseGradScores
from xcmodels.nn.encoders import LABEL, QUERY, Encoder
from xcmodels.nn.row_table import Model


class Regularised(Model):
    """The base's model, and the bandit of the strengths where they adapt."""

    def __init__(self, base: Model, bandit: Bandit | None) -> None:
        super().__init__()
        self.base, self.bandit = base, bandit


class GraphStage(EncoderStage[Regularised]):
    """A base's encoder stage, regularised by graphs."""

    def __init__(self, base: EncoderStage[Any], graph: GraphConfig) -> None:
        self.base, self.graph = base, graph
        self.name, self.seed, self.plan, self.rounds = base.name, base.seed, base.plan, base.rounds
        self.settings = {**base.settings, "graph": graph}
        self.query_sides = base.query_sides
        base.whole_pool = True    # graphs pull at all labels of a batch

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Regularised:
        arms = len(corpus.graphs) * len(self.graph.regularised_sides)
        bandit = Bandit(arms, self.graph.strength, self.graph.rate) if self.graph.adapt else None
        return Regularised(self.base.build(corpus, vectors), bandit)

    def begin(self, model: Regularised, corpus: Corpus, before: Path | None) -> None:
        self.base.begin(model.base, corpus, before)

    def order(self, corpus: Corpus, mined: Mined, epoch: int) -> np.ndarray:
        return self.base.order(corpus, mined, epoch)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return the base's batch, with the anchors of each graph that its queries and labels draw."""
        truth = augmented(corpus, self.graph.most) if self.graph.augment else corpus
        batch = self.base.batch(truth, round_, mined, rows, rng)
        sides, blocks = dict(batch.sides), dict(batch.blocks)
        for name, graph in corpus.graphs.items():
            nodes = {side: batch.sides[side].ids.numpy() for side in self.graph.regularised_sides}
            chosen = {side: sample_anchor(graph.edges[SIDES[side]], mined.kept.get(f"{name}.{SIDES[side]}"), ids, rng)
                      for side, ids in nodes.items()}
            pool = unique(np.concatenate([np.empty(0, np.int64), *chosen.values()]))
            pool = pool[pool >= 0]
            anchors = f"anchors.{name}"
            sides[anchors] = BatchSide(torch.from_numpy(pool), tokens=graph.anchors.tokens(pool))
            blocks |= {f"{name}.{side}": anchor_block((side, anchors), graph.edges[SIDES[side]], ids, pool,
                                                      chosen[side]) for side, ids in nodes.items()}
        return Batch(sides, blocks)

    def encoder(self, model: Regularised) -> Encoder:
        return self.base.encoder(model.base)

    def terms(self, model: Regularised, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the base's terms, and a triplet loss for every graph and side (R_x and R_z of section 3.1)."""
        encoder, terms = self.encoder(model), self.base.terms(model.base, batch, pooled)
        vectors = {side: encoder.view(backbone, QUERY if side in self.query_sides else LABEL)
                   for side, backbone in pooled.items()}
        blocks = {name: block for name, block in batch.blocks.items() if block.cols not in ("queries", "labels")}
        weights = model.bandit.weights() if model.bandit else [self.graph.strength] * len(blocks)
        for weight, (name, block) in zip(weights, blocks.items(), strict=True):
            assert block.chosen_positives is not None
            scores = SparseGradScores(vectors[block.rows], vectors[block.cols])
            terms[name] = weight * losses.triplet(
                scores, block.chosen_positives, block.counted_negatives, margin=self.graph.margin, hard_positives=1,
                hard_negatives=self.graph.negatives, temperature=0.0)
        if model.bandit and model.training:
            model.bandit.learn(_accuracy(batch, vectors))
        return terms

    def vectors(self, model: Regularised, corpus: Corpus) -> Mapping[str, SideVectors]:
        """Return the base's vectors, and those of the anchors of every graph."""
        anchors = {f"anchors.{name}": embeddings(self.encoder(model), graph.anchors, LABEL)
                   for name, graph in corpus.graphs.items()}
        return {**self.base.vectors(model.base, corpus), **anchors}

    def ranking_vectors(self, model: Regularised, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.base.ranking_vectors(model.base, corpus, mined, rows)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        """Return the base's mining result, and the edges of each graph that are left after pruning."""
        truth = corpus
        if self.graph.augment:    # labels that were added are no negatives; workers would open the corpus without them
            truth, executor = augmented(corpus, self.graph.most), IN_PROCESS
        if not self.graph.prune:
            return self.base.mine(vectors, truth, round_, executor)
        cached = {name: cache(make) for name, make in vectors.items()}
        kept = {f"{name}.{SIDES[side]}": similar_edges(graph.edges[SIDES[side]], cached[side](),
                                                       cached[f"anchors.{name}"](), self.graph.similar)
                for name, graph in corpus.graphs.items() for side in self.graph.regularised_sides}
        return replace(self.base.mine(cached, truth, round_, executor), kept=kept)


def _accuracy(batch: Batch, vectors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the share of queries whose nearest label in the batch is a positive."""
    block = next(block for block in batch.blocks.values() if (block.rows, block.cols) == ("queries", "labels"))
    with torch.no_grad():
        scores = vectors["queries"] @ vectors["labels"].T
        # positives count as hits even where the loss ignores them; other ignored pairs are left out
        ignored = ~block.positives if block.weights is None else (block.weights == 0) & ~block.positives
        best = scores.masked_fill(ignored, -torch.inf).argmax(1, keepdim=True)
        return block.positives.gather(1, best).float().mean()


@lru_cache(maxsize=1)
def augmented(corpus: Corpus, most: int) -> Corpus:
    """Return the corpus with labels that share an anchor with a training query among its positives (AugGT)."""
    shared = [shared_anchors(graph.edges["train"], graph.edges["label"], len(graph.anchors), most)
              for graph in corpus.graphs.values()]
    truth = corpus.positives["train"]
    width, filters = corpus.n_labels, corpus.filters["train"]
    keys = unique(np.concatenate([truth.keys(width), *(labels.keys(width) for labels in shared)]))
    keys = keys[~isin_sorted(keys, unique(np.concatenate([filters.keys(width), corpus.rejected.keys(width)])))]
    keys = keys[corpus.train_positives.lengths[keys // width] > 0]    # the same rows are trained, and clustered
    out = copy(corpus)
    for cached in ("train_positives", "train_weights"):
        vars(out).pop(cached, None)
    out.positives = {**corpus.positives, "train": Ragged.of_pairs(keys // width, keys % width, len(truth))}
    if corpus.train_weights is not None:
        out.weights = np.ones(len(keys), np.float32)
        out.weights[np.searchsorted(keys, corpus.train_positives.keys(width))] = corpus.train_weights.values
    return out
