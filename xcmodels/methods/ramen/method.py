"""RAMEN: metadata graphs pull a base method's encoder while it trains, and are gone at inference (Mittal et al., 2025).

Each query and each label of a batch draws one of its anchors from every graph, and triplet losses between
nodes and anchors, weighed by lambda, join the base's own (section 3.1). Whenever the base is refreshed, edges whose
ends the newest encoder holds apart are pruned (Appendix A). The strengths lambda are fixed, or arms of a bandit.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import torch

from xcmodels.data.batching import Batch, Entries, anchor_block, sample_kept
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.sorted_ids import among, distinct
from xcmodels.method import Method, Mined, Round, Stage, Vectors
from xcmodels.methods.ramen.bandit import Bandit
from xcmodels.methods.ramen.config import SIDES, GraphConfig, RamenConfig
from xcmodels.mining.graph import alike, shared_anchors
from xcmodels.nn import losses
from xcmodels.nn.autograd import Products
from xcmodels.nn.encoders import LABEL, Encoder, encode_all
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.training.checkpoint import load_model, save_model


class Base(Method, Protocol):
    """What RAMEN asks of its base: a first stage that trains an encoder, and a loss that takes what it encoded."""

    name: str           # of the method, in its retrievers
    query_view: str     # the view of a query that labels are compared with

    def encoder(self, model: Model) -> Encoder:
        """The encoder of the first stage's model."""

    def terms(self, model: Model, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The loss of the first stage, from the trunk's vectors of the sides of the batch."""


class Regularised(Model):
    """The base's model, and the bandit of the strengths where they adapt."""

    def __init__(self, base: Model, bandit: Bandit | None) -> None:
        super().__init__()
        self.base, self.bandit = base, bandit

    def tables(self) -> dict[str, RowTable]:
        """The base's matrices that are trained by rows."""
        return self.base.tables()


class Ramen:
    """The method, for one configuration and over one base."""

    def __init__(self, config: RamenConfig, base: Base) -> None:
        self.graph, self.base, self.seed = config.graph, base, config.seed
        self.stage = base.stages()[0].name
        base.name = "ramen"

    def stages(self) -> list[Stage]:
        """The base's."""
        return self.base.stages()

    def settings(self, stage: str) -> dict[str, object]:
        """The base's, and the graphs' for the stage that they act on."""
        return {**self.base.settings(stage), **({"graph": self.graph} if stage == self.stage else {})}

    def rounds(self) -> list[Round]:
        """The base's: its random epochs train on whole graphs, each of its refreshes prunes them anew."""
        return self.base.rounds()

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the base's model, in its first stage with the bandit."""
        model = self.base.build(corpus, stage, vectors)
        if stage != self.stage:
            return model
        arms = len(corpus.graphs) * len(self.graph.pulled)
        return Regularised(model, Bandit(arms, self.graph.strength, self.graph.rate) if self.graph.adapt else None)

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """As the base does."""
        self.base.begin(_bare(model), corpus, before)

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Training rows in the base's order."""
        return self.base.order(corpus, round_, mined, epoch)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """The base's batch, and of each graph the anchors that its queries and labels draw."""
        truth = _augmented(corpus, self.graph.most) if self.graph.augment else corpus
        batch = self.base.batch(truth, round_, mined, rows, rng)
        if round_.stage != self.stage:
            return batch
        sides, blocks = dict(batch.sides), dict(batch.blocks)
        for name, graph in corpus.graphs.items():
            nodes = {side: batch.sides[side].ids.numpy() for side in self.graph.pulled}
            chosen = {side: sample_kept(graph.edges[SIDES[side]], mined.kept.get(f"{name}.{SIDES[side]}"), of, rng)
                      for side, of in nodes.items()}
            pool = distinct(np.concatenate([np.empty(0, np.int64), *chosen.values()]))
            pool = pool[pool >= 0]
            anchors = f"anchors.{name}"
            sides[anchors] = Entries(torch.from_numpy(pool), tokens=graph.anchors.tokens(pool))
            blocks |= {f"{name}.{side}": anchor_block((side, anchors), graph.edges[SIDES[side]], of, pool, chosen[side])
                       for side, of in nodes.items()}
        return Batch(sides, blocks)

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """The base's terms, and a triplet loss for every graph and side (R_x and R_z of section 3.1)."""
        if not isinstance(model, Regularised):
            return self.base.loss(model, batch, stage)
        encoder = self.base.encoder(model.base)
        pooled = encoder.pool(batch.sides)
        terms = self.base.terms(model.base, batch, pooled)
        vectors = {side: encoder.view(of, self.base.query_view if side == "queries" else LABEL)
                   for side, of in pooled.items()}
        blocks = {name: block for name, block in batch.blocks.items() if block.cols not in ("queries", "labels")}
        weights = model.bandit.weights() if model.bandit else [self.graph.strength] * len(blocks)
        for weight, (name, block) in zip(weights, blocks.items(), strict=True):
            assert block.pulled is not None
            terms[name] = weight * losses.triplet(
                Products(vectors[block.rows], vectors[block.cols]), block.pulled, block.pushed,
                margin=self.graph.margin, hard_positives=1, hard_negatives=self.graph.negatives, temperature=0.0)
        if model.bandit and model.training:
            model.bandit.learn(_accuracy(batch, vectors))
        return terms

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """The base's, and of the anchors of every graph."""
        out = dict(self.base.vectors(_bare(model), corpus))
        if isinstance(model, Regularised):
            encoder = self.base.encoder(model.base)
            out |= {f"anchors.{name}": partial(encode_all, encoder, graph.anchors, LABEL)
                    for name, graph in corpus.graphs.items()}
        return out

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By the base's."""
        return self.base.judged(_bare(model), corpus, mined, rows)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """What the base mines, and which edges are left of each graph."""
        if round_.stage != self.stage or not self.graph.prune:
            return self.base.mine(vectors, corpus, round_)
        once = {name: cache(make) for name, make in vectors.items()}
        kept = {f"{name}.{SIDES[side]}": alike(graph.edges[SIDES[side]], once[side](), once[f"anchors.{name}"]())
                for name, graph in corpus.graphs.items() for side in self.graph.pulled}
        return replace(self.base.mine(once, corpus, round_), kept=kept)

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """The base's: nothing of the graphs is left in it."""
        model = self.build(corpus, self.stage, {})
        load_model(model, models[self.stage])
        with TemporaryDirectory() as bare:
            save_model(_bare(model), Path(bare))
            return self.base.retriever({**models, self.stage: Path(bare)}, corpus, vectors, out)


def _bare(model: Model) -> Model:
    """Return the base's model."""
    return model.base if isinstance(model, Regularised) else model


def _accuracy(batch: Batch, vectors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the share of queries whose nearest label of the batch is one of theirs."""
    block = next(block for block in batch.blocks.values() if (block.rows, block.cols) == ("queries", "labels"))
    with torch.no_grad():
        scores = vectors["queries"] @ vectors["labels"].T
        # A positive that does not count in the loss is no mistake; what is masked otherwise is out of the race.
        barred = ~block.positives if block.weights is None else (block.weights == 0) & ~block.positives
        best = scores.masked_fill(barred, -torch.inf).argmax(1, keepdim=True)
        return block.positives.gather(1, best).float().mean()


@lru_cache(maxsize=1)
def _augmented(corpus: Corpus, most: int) -> Corpus:
    """Return the corpus with labels that share an anchor with a training query among its positives (AugGT)."""
    found = [shared_anchors(graph.edges["train"], graph.edges["label"], len(graph.anchors), most)
             for graph in corpus.graphs.values()]
    truth = corpus.positives["train"]
    width, filters = corpus.n_labels, corpus.filters["train"]
    keys = distinct(np.concatenate([truth.keys(width), *(each.keys(width) for each in found)]))
    keys = keys[~among(keys, distinct(filters.keys(width)))]
    out = copy(corpus)
    vars(out).pop("pulled", None)    # is of the positives that it had
    out.positives = {**corpus.positives, "train": Ragged.of_pairs(keys // width, keys % width, len(truth))}
    return out


__all__ = ["Base", "GraphConfig", "Ramen", "RamenConfig"]
