"""UniDEC: a dual encoder and a classifier trained together on picked labels.

Kharbanda et al., 2025. A batch is made of clusters of queries; its labels are up to beta positives of each query and
eta of its mined hard negatives, and every positive of a query among them counts: pick-some-labels (section 3.1). The
dual encoder scores with one pair of heads, the classifier with a third head and a vector per label. DEPSL is the dual
encoder alone; DPR, TAS, ANCE and DEXML are settings of it.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from xcmodels.data.batching import (
    Batch,
    BatchSide,
    Block,
    padded,
    pooled_block,
    sample_negatives,
    sample_positives,
)
from xcmodels.data.corpus import Corpus
from xcmodels.data.every_label import EveryLabelBatch, every_label_batch
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.data.sorted_ids import unique
from xcmodels.method import EncoderStage, Mined, Round, Vectors
from xcmodels.methods.unidec.config import LOSSES, UnidecConfig
from xcmodels.methods.unidec.every_label import OverEveryLabel
from xcmodels.mining import refresh, schedule
from xcmodels.nn import losses
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all, siamese
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.retrieval.serving_config import CLASSIFIER
from xcmodels.training_plan import TrainingPlan

STAGE = "joint"


class Joint(Model):
    """An encoder with the heads of dual encoder and classifier, and the classifiers where there are any."""

    def __init__(self, config: UnidecConfig, corpus: Corpus) -> None:
        super().__init__()
        self.encoder = build_encoder(config.encoder, corpus.idf, config.seed, layout(config), config.table_dtype)
        width = config.dim or self.encoder.backbone.dim
        self.labels = RowTable.zeros(corpus.n_labels, width, config.table_dtype) if config.classifies else None
        if self.labels is not None:
            self.labels.in_parts = config.every_label


def layout(config: UnidecConfig) -> Layout:
    """Return the heads of the dual encoder, and the classifier's where there is one."""
    projects = config.head == "tanh"
    dual = siamese(config.encoder, HeadConfig(config.head, config.dim if projects else 0,
                                              config.dropout if projects else 0.0))
    if not config.classifies:
        return dual
    return Layout({**dual.heads, CLASSIFIER: HeadConfig("linear", config.dim, config.dropout)},
                  {**dual.views, CLASSIFIER: (CLASSIFIER,)})


@lru_cache(maxsize=1)
def all_labels(corpus: Corpus) -> BatchSide:
    """Return every label of a corpus as a side, which all batches share."""
    labels = np.arange(corpus.n_labels)
    return BatchSide(torch.from_numpy(labels), tokens=corpus.sides["label"].tokens(labels))


class UnidecStage(EncoderStage[Joint]):
    """The only stage: trains dual encoder and classifier together."""

    name = STAGE

    def __init__(self, config: UnidecConfig) -> None:
        self.config, self.seed = config, config.seed
        tables = {"tokens": config.rule(config.token_lr), "labels": config.rule(config.label_lr)}
        self.plan = TrainingPlan.of(config, tables)
        mined = 0 if config.every_label else config.negatives * config.epochs_per_refresh
        self.rounds = schedule.rounds(STAGE, config, mined)
        unused = {"unit"} if any(round_.mines for round_ in self.rounds) else {"unit", "index"}
        self.settings = {name: value for name, value in config.training.items() if name not in unused}

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Joint:
        return Joint(self.config, corpus)

    def begin(self, model: Joint, corpus: Corpus, before: Path | None) -> None:
        """Initialise each classifier with its label's embedding; most labels are too rare to learn one from zero."""
        if model.labels is not None:
            model.labels.set_all(partial(encode_all, model.encoder, corpus.sides["label"], LABEL))

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return queries against the pool of their picked positives, hard negatives and rejected labels."""
        queries = BatchSide(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows))
        if self.config.every_label and not self.whole_pool:
            return every_label_batch(corpus, rows, Batch({"queries": queries, "labels": all_labels(corpus)}, {}))
        positives, counts = sample_positives(corpus.train_positives, rows, self.config.positives, rng)
        picked = [positives, corpus.rejected.take(rows)[0]]
        if mined.negatives is not None:
            picked.append(sample_negatives(mined.negatives[rows], self.config.negatives, rng))
        pool = np.arange(corpus.n_labels) if self.config.every_label else unique(np.concatenate(picked))
        sides = {"queries": queries,
                 "labels": BatchSide(torch.from_numpy(pool), tokens=corpus.sides["label"].tokens(pool))}
        own = None if self.config.pooled else padded(positives, counts)
        return Batch(sides, {"pool": pooled_block(corpus, rows, pool, own)})

    def encoder(self, model: Joint) -> Encoder:
        return model.encoder

    def loss(self, model: Joint, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the terms of the loss; over every label, they are computed by parts of the labels."""
        if isinstance(batch, EveryLabelBatch):
            return OverEveryLabel(self.config, model.encoder, model.labels, batch).terms()
        return super().loss(model, batch)

    def terms(self, model: Joint, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the losses of dual encoder and classifier, each in both directions (sections 3.2 and 3.3)."""
        config, block, encoder = self.config, batch.blocks["pool"], model.encoder
        terms = {}
        if config.balance > 0:
            scores = encoder.view(pooled["queries"], QUERY) @ encoder.view(pooled["labels"], LABEL).T
            terms["encoder"] = config.balance * self._symmetric(scores / config.temperature, block)
        if model.labels is not None:
            classifiers, share = model.labels.vectors(batch.sides["labels"].ids), 1 - config.balance
            scores = encoder.heads[CLASSIFIER](pooled["queries"]) @ classifiers.T
            if config.softmax:
                terms["classifier"] = share * config.softmax * self._symmetric(scores / config.temperature, block)
            if config.bce:
                prior = losses.prior_logit(block.positives, block.weights)
                terms["bce"] = share * config.bce * losses.weighted_bce(scores + prior, block.positives, block.weights)
        return terms

    def _symmetric(self, scores: torch.Tensor, block: Block) -> torch.Tensor:
        """Return the loss of queries over labels and, for the share `symmetric`, of labels over queries."""
        loss, share = LOSSES[self.config.loss], self.config.symmetric
        forward = loss(scores, block.positives, block.weights)
        if share == 0:
            return forward
        weights = None if block.weights is None else block.weights.T
        return (1 - share) * forward + share * loss(scores.T, block.positives.T, weights)

    def ranking_vectors(self, model: Joint, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of the dual encoder, or of the classifier where it alone is trained."""
        if model.labels is not None and self.config.balance == 0:
            return encode_all(model.encoder, corpus.sides["train"], CLASSIFIER, rows), model.labels.read_all()
        return super().ranking_vectors(model, corpus, mined, rows)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        """Return clusters of queries and hard negatives of each, by the embeddings of the dual encoder."""
        return refresh.mine(vectors, corpus, round_, seed=self.seed, index=self.config.index, executor=executor)
