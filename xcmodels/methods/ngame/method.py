"""NGAME: mini-batches clustered so that in-batch negatives are hard (Dahiya et al., 2022).

Module M1 trains a Siamese encoder, module M2 a classifier per label that starts at the label's embedding with the
encoder frozen, and a regression tree fuses the two scores. Algorithm 1, equation 1, Appendix C.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, Entries, epoch_order, padded, pooled_block, sample_positive
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import distinct
from xcmodels.method import Mined, Round, RowRule, Stage, Vectors
from xcmodels.methods.ngame.config import ModuleConfig, NgameConfig
from xcmodels.mining import negatives, schedule
from xcmodels.nn import losses
from xcmodels.nn.autograd import Products, dropout
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, build_encoder, encode_all
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.retrieval import ann
from xcmodels.retrieval.fusion import fit_fusion
from xcmodels.retrieval.proposers import Proposer, candidates
from xcmodels.retrieval.retriever import save_retriever
from xcmodels.training.checkpoint import load_model

ENCODER, CLASSIFIER = "encoder", "classifier"


class Classifiers(Model):
    """One vector a label, trained by rows over fixed query vectors (module M2)."""

    def __init__(self, start: np.ndarray, dropout: float) -> None:
        super().__init__()
        self.table = RowTable.shared(len(start), lambda part: torch.from_numpy(start[part].copy()))
        self.dropout = dropout

    def tables(self) -> dict[str, RowTable]:
        """The matrix trained by rows."""
        return {"labels": self.table}

    def forward(self, queries: torch.Tensor, labels: torch.Tensor) -> Products:
        """Return the scores (R, C) of query vectors (R, d) and label ids (C,), sorted, each there once."""
        rows, place = self.table.gather(labels)
        return Products(dropout(queries, self.dropout, self.training), F.embedding(place, rows))


class Ngame:
    """The method, for one configuration."""

    name = "ngame"
    query_view = QUERY

    def __init__(self, config: NgameConfig) -> None:
        self.config, self.seed = config, config.seed
        self._modules = {ENCODER: config.m1, CLASSIFIER: config.m2}

    def stages(self) -> list[Stage]:
        """M1, then M2."""
        tables = {ENCODER: "tokens", CLASSIFIER: "labels"}
        return [Stage(name, module.epochs, module.batch_size, module.lr, {tables[name]: RowRule(module.table_lr)},
                      module.warmup, frozen=name == CLASSIFIER, least_steps=module.least_steps)
                for name, module in self._modules.items()]

    def settings(self, stage: str) -> dict[str, object]:
        """M1 depends on its own settings and the encoder's, M2 on its own, the retriever on the fusion's."""
        own: dict[str, dict[str, object]] = {
            ENCODER: {"m1": self.config.m1, "encoder": self.config.encoder},
            CLASSIFIER: {"m2": self.config.m2},
            "retriever": {"fusion": self.config.fusion, "index": self.config.index}}
        return {"seed": self.seed, **own[stage]}

    def rounds(self) -> list[Round]:
        """Random epochs first, then a round for every clustering, each cluster size twice the last."""
        return [each for name, module in self._modules.items() for each in schedule.rounds(name, module)]

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the encoder (M1), or the classifiers at the labels' embeddings (M2)."""
        if stage == ENCODER:
            return build_encoder(self.config.encoder, corpus.idf, self.seed)
        return Classifiers(vectors["labels"], self.config.m2.dropout)

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """Nothing: the classifiers are built at the vectors of the stage before."""

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Training rows of an epoch: shuffled one by one, or by clusters."""
        rng = seeds.generator(self.seed, "order", round_.stage, epoch)
        return epoch_order(corpus.training_rows(), mined.clusters, rng)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Queries against the pool of their own positives: one drawn a query (M1), or all (M2)."""
        positives = corpus.pulled
        if round_.stage == ENCODER:
            chosen = sample_positive(positives, rows, rng)[:, None]
        else:
            chosen = padded(*positives.take(rows))
        pool = distinct(chosen[chosen >= 0])
        blocks = {"triplet": pooled_block(corpus, rows, pool, chosen)}
        ids, labels = torch.from_numpy(rows), torch.from_numpy(pool)
        if round_.stage == ENCODER:
            sides = {"queries": Entries(ids, tokens=corpus.sides["train"].tokens(rows)),
                     "labels": Entries(labels, tokens=corpus.sides["label"].tokens(pool))}
        else:
            vectors = torch.from_numpy(mined.vectors["queries"][rows])
            sides = {"queries": Entries(ids, vectors=vectors), "labels": Entries(labels)}
        return Batch(sides, blocks)

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """The triplet loss of equation 1 over the hardest pairs of the batch."""
        if isinstance(model, Encoder):
            return self.terms(model, batch, model.pool(batch.sides))
        scores = model(batch.sides["queries"].vectors, batch.sides["labels"].ids)
        return {"triplet": self._triplet(stage, batch, scores)}

    def encoder(self, model: Model) -> Encoder:
        """Return the encoder of M1, the model itself."""
        assert isinstance(model, Encoder)
        return model

    def terms(self, model: Model, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The loss of M1 from the trunk's vectors of queries and labels."""
        encoder = self.encoder(model)
        scores = Products(encoder.view(pooled["queries"], QUERY), encoder.view(pooled["labels"], LABEL))
        return {"triplet": self._triplet(ENCODER, batch, scores)}

    def _triplet(self, stage: str, batch: Batch, scores: Products) -> torch.Tensor:
        module, block = self._modules[stage], batch.blocks["triplet"]
        assert block.pulled is not None
        return losses.triplet(
            scores, block.pulled, block.pushed, margin=module.margin, hard_positives=module.positives,
            hard_negatives=module.negatives, temperature=module.temperature)

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """Embeddings of the training queries and of the labels."""
        assert isinstance(model, Encoder)
        return {"queries": partial(encode_all, model, corpus.sides["train"], QUERY),
                "labels": partial(encode_all, model, corpus.sides["label"], LABEL)}

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By the embeddings (M1), or the classifiers over those that are fixed (M2)."""
        if isinstance(model, Classifiers):
            return mined.vectors["queries"][rows], model.table.all()
        assert isinstance(model, Encoder)
        return (encode_all(model, corpus.sides["train"], QUERY, rows), encode_all(model, corpus.sides["label"], LABEL))

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """Balanced clusters of about `round_.cluster_size` training queries each."""
        return negatives.mine(vectors, corpus, round_, seed=self.seed)

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """Fit the fusion on the validation split and write the retriever to `out`.

        models: the folder of each stage's trained model. Returns what was measured on the way.
        """
        classifiers = Classifiers(vectors["labels"], 0.0)
        load_model(classifiers, models[CLASSIFIER])
        weights = classifiers.table.weight.numpy()
        index = ann.build(weights, self.config.index, limit=ann.ASKED)
        queries = vectors["queries"][corpus.validation]
        ids = candidates([Proposer(index)], queries, self.config.fusion.shortlist)
        fusion, measured = fit_fusion(corpus, queries, ids, embeddings=vectors["labels"], classifiers=weights,
                                      trained=lambda: vectors["queries"], config=self.config.fusion)
        encoder = build_encoder(self.config.encoder, corpus.idf, self.seed)
        load_model(encoder, models[ENCODER])
        save_retriever(out, corpus, method=self.name, encoder=encoder, indexes={CLASSIFIER: Proposer(index)},
                       shortlist=self.config.fusion.shortlist, scores=fusion)
        return measured


__all__ = ["CLASSIFIER", "ENCODER", "ModuleConfig", "Ngame", "NgameConfig"]
