"""The interface of a method: a list of training stages, and a retriever builder.

Training is a sequence of rounds. A round is a pure step, (checkpoint, corpus, mined files) -> (checkpoint, metrics);
mining happens between rounds, so a killed run resumes at the last round and mining can run anywhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, epoch_order
from xcmodels.data.corpus import Corpus, Side
from xcmodels.data.executor import IN_PROCESS, Executor, RowFunction
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, encode_all
from xcmodels.nn.row_table import Model

# A stage on few texts needs more steps than `batch_size` gives: batches shrink until a pass over the texts has
# MIN_STEPS_PER_PASS of them, but keep at least MIN_BATCH_ROWS rows. NGAME's P@1 on 400 texts rises from 42.7 to 78.7
# (docs/methods.md, "Few texts").
MIN_STEPS_PER_PASS = 20    # steps of a pass, at least, where that leaves batches of enough rows
MIN_BATCH_ROWS = 64        # rows of a batch, at least, where `batch_size` is larger

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class RowRule:
    """How the rows of a table are trained: by SGD where `momentum` is set, otherwise by Adam."""

    lr: float
    momentum: float | None = None
    weight_decay: float = 0.0     # decoupled (SGD)
    rowwise: bool = False         # optimiser moments are kept for each row, not for each value


@dataclass(frozen=True)
class TrainingPlan:
    """How long a stage trains, on what batches and at what rates; epochs count from 0 in each stage.

    Plans are made for tens of thousands of rows and more. On fewer, batches are smaller than `batch_size`, and an epoch
    repeats passes until it has `least_steps`. Otherwise 400 texts would be 8 steps in all, of which nothing is learned.
    On many more, an epoch ends after `most_steps`, within a pass: each epoch trains on other rows, drawn anew.
    """

    epochs: int
    batch_size: int      # rows of a batch, at most
    lr: float            # of the dense parameters
    tables: Mapping[str, RowRule]  # of each matrix trained by rows, by its name
    warmup: int          # steps of linear warm-up; the decay to zero begins at step 0, too, and both factors multiply
    decay: str = "linear"  # linear | cosine
    least_steps: int = 0  # of an epoch
    most_steps: int = 0   # of an epoch; 0 = all of its passes

    @classmethod
    def of(cls, config: Any, tables: Mapping[str, RowRule]) -> "TrainingPlan":
        """Return the plan of a configuration whose settings are called as the fields here are."""
        return cls(config.epochs, config.batch_size, getattr(config, "lr", 0.0), tables, config.warmup,
                   decay=getattr(config, "decay", "linear"), least_steps=config.least_steps,
                   most_steps=config.most_steps)

    def batch_size_for(self, n: int) -> int:
        """Return the most rows of a batch of n training rows; all batches have that many, or a few less."""
        return min(self.batch_size, max(n // MIN_STEPS_PER_PASS, MIN_BATCH_ROWS))

    def steps_per_pass(self, n: int) -> int:
        """Return the number of batches in one pass over n rows."""
        return max(1, -(-n // self.batch_size_for(n)))

    def passes(self, n: int) -> int:
        """Return the number of passes over n rows in an epoch."""
        return max(1, -(-self.least_steps // self.steps_per_pass(n)))

    def steps_an_epoch(self, n: int) -> int:
        """Return the number of steps in an epoch over n rows."""
        steps = self.passes(n) * self.steps_per_pass(n)
        return min(steps, self.most_steps or steps)

    def steps(self, n: int) -> int:
        """Return the number of optimiser steps of the whole stage over n rows."""
        return self.epochs * self.steps_an_epoch(n)

    def lr_factor(self, step: int, n: int) -> float:
        """Return the factor on the learning rates at optimiser step `step`, counted from 0."""
        progress = min(step / self.steps(n), 1.0)
        remaining = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return min(1.0, (step + 1) / max(self.warmup, 1)) * remaining


@dataclass(frozen=True)
class Round:
    """Epochs first to stop - 1 of a stage, trained on files mined before it.

    cluster_size: size of the clusters of training queries that batches are made of; 0 = no clusters.
    negatives: hard negative labels mined for each training query; 0 = none.
    source: index of the round whose model mines, -1 = the model before the stage; rounds of one source share the
    mining result.
    """

    stage: str
    index: int
    first: int
    stop: int
    cluster_size: int = 0
    negatives: int = 0
    source: int = -1

    @property
    def mines(self) -> bool:
        """Whether clusters or negatives are mined before the round."""
        return self.cluster_size > 0 or self.negatives > 0

    @property
    def name(self) -> str:
        """The name shown to people: `encoder round 2`."""
        return f"{self.stage} round {self.index}"


@dataclass(frozen=True)
class Mined:
    """The result of mining, which a round trains on.

    clusters (training rows,) int32; negatives (rows of the training side, k) int32, -1 = none; kept (edges,) bool:
    the edges left after pruning, by "graph.side"; vectors: the fixed vectors of each side, (n, d) float32;
    measured: "recall", the share in percent of the exact nearest labels that the index found.
    """

    clusters: np.ndarray | None = None
    negatives: np.ndarray | None = None
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


# The vectors of each side by name, (n, d) float32, computed or read on demand: mining rarely needs all.
Vectors = Mapping[str, Callable[[], np.ndarray]]


@dataclass(frozen=True)
class SideVectors:
    """The vectors of a side's texts or labels, (count, d) float32, computed on demand: all, or some.

    of: those of rows low:high. batch: how many rows are computed together, which may decide their last digits.
    """

    count: int
    of: RowFunction
    batch: int = 1

    def __call__(self) -> np.ndarray:
        return self.of(0, self.count)

    def part(self, low: int, high: int) -> np.ndarray:
        """Return the vectors of rows low:high, bit for bit those among all."""
        first, last = low // self.batch * self.batch, min(-(-high // self.batch) * self.batch, self.count)
        return self.of(first, last)[low - first:high - first]


def embeddings(encoder: Encoder, side: Side, view: str) -> SideVectors:
    """Return the vectors that an encoder gives the texts of a side in a view."""
    return SideVectors(len(side), lambda low, high: encode_all(encoder, side, view, np.arange(low, high)),
                       encoder.backbone.batch)


class Stage(Generic[M]):
    """A stretch of training with one model M, one loss and one plan.

    settings: every setting that its result depends on, by name. frozen: it trains on the fixed vectors of the stage
    before and leaves that stage's encoder unchanged.
    """

    name: str
    seed: int
    plan: TrainingPlan
    rounds: Sequence[Round]
    settings: Mapping[str, object]
    frozen = False

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> M:
        """Return the initial model; `vectors` are those of the stage before."""
        raise NotImplementedError

    def begin(self, model: M, corpus: Corpus, before: Path | None) -> None:
        """Finish initialising the model where that takes long; called once, before the stage's first step.

        before: the folder of the final model of the stage before.
        """

    def order(self, corpus: Corpus, mined: Mined, epoch: int) -> np.ndarray:
        """Return the training rows of an epoch in order, shuffled by clusters where those were mined."""
        return epoch_order(corpus.training_rows(), mined.clusters,
                           seeds.generator(self.seed, "order", self.name, epoch))

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return the batch of training `rows`: everything that the loss needs."""
        raise NotImplementedError

    def loss(self, model: M, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the terms of the loss by name, already weighted; the training loop minimises their sum."""
        raise NotImplementedError

    def vectors(self, model: M, corpus: Corpus) -> Mapping[str, SideVectors]:
        """Return the vectors for mining and retrieval, "queries" and "labels", computed on the encoder's device."""
        raise NotImplementedError

    def ranking_vectors(self, model: M, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of training-side `rows` and of all labels, whose inner products rank the labels.

        Called at the end of an epoch for validation; it draws no random number and changes no weight.
        """
        raise NotImplementedError

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        """Return the mining result for a round, from vectors alone (CPU, pure); executor: where arrays are computed."""
        raise NotImplementedError


class EncoderStage(Stage[M]):
    """A stage whose loss is over text embeddings, so that further texts can join it (RAMEN's anchors)."""

    query_sides: tuple[str, ...] = ("queries",)   # batch sides that are encoded as queries
    whole_pool = False                            # every label of a batch is to be encoded at once (RAMEN)

    def encoder(self, model: M) -> Encoder:
        """Return the encoder of a model; by default the model is the encoder."""
        return cast(Encoder, model)

    def terms(self, model: M, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the terms of the loss from the backbone's vectors of each batch side."""
        raise NotImplementedError

    def loss(self, model: M, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the terms of the loss, with all batch sides encoded in one pass."""
        return self.terms(model, batch, self.encoder(model).pool(batch.sides, self.query_sides))

    def vectors(self, model: M, corpus: Corpus) -> Mapping[str, SideVectors]:
        """Return the embeddings of the training texts and of the label texts."""
        encoder = self.encoder(model)
        return {"queries": embeddings(encoder, corpus.sides["train"], QUERY),
                "labels": embeddings(encoder, corpus.sides["label"], LABEL)}

    def ranking_vectors(self, model: M, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of `rows` and of the labels."""
        encoder = self.encoder(model)
        return (encode_all(encoder, corpus.sides["train"], QUERY, rows),
                encode_all(encoder, corpus.sides["label"], LABEL))


class RetrieverBuilder(Protocol):
    """Builds a retriever from trained models."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Every setting that its result depends on, apart from the models, by name."""

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever to `out`, an empty folder; return measurements by name.

        models: the folder of each stage's last checkpoint. vectors: the fixed vectors that a frozen stage trained on.
        """


@dataclass(frozen=True)
class Method:
    """A published method for one configuration, and what it needs of the data."""

    name: str
    seed: int
    stages: Sequence[Stage[Any]]
    build_retriever: RetrieverBuilder
    encoder: EncoderConfig
    dim: int = 0                       # of a label vector; 0 = as the encoder's
    base: str = ""                     # the method that it regularises, whose steps take equally long: its rates apply
    needs_label_texts: bool = True     # label texts are trained on or scored
    needs_graphs: bool = False         # it trains on metadata graphs

    @property
    def width(self) -> int:
        """The dimension of a label vector."""
        return self.dim or self.encoder.dim

    @property
    def rounds(self) -> list[Round]:
        """The rounds of all stages, in order."""
        return [round_ for stage in self.stages for round_ in stage.rounds]

    def stage(self, name: str) -> Stage[Any]:
        return next(stage for stage in self.stages if stage.name == name)

    def round(self, name: str) -> Round:
        return next(round_ for round_ in self.rounds if round_.name == name)
