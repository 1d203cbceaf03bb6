"""What a method is: stages that train one after the other, and what builds a retriever of their models.

Training is a sequence of rounds. A round is a pure step, (checkpoint, corpus, mined files) -> (checkpoint, metrics);
nothing is mined inside it, so a killed run resumes at the last round and a refresh can run anywhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, epoch_order
from xcmodels.data.corpus import Corpus
from xcmodels.nn.backbones import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, encode_all
from xcmodels.nn.row_table import Model

# NGAME's CPU preset on the names and descriptions of Debian's packages, 590 tags, P@1 / P@5 on others. On 400 texts,
# batches of 1,024, 128, 64, 32: 42.7 / 30.8, 73.7 / 34.4, 78.7 / 36.5, 78.0 / 34.7; on 2,500: 78.3 / 37.6, 85.7 / 42.0,
# 85.1 / 40.7, 84.5 / 38.5. On 24,235, batches of 1,024 and 256: 90.6 / 46.1, 90.1 / 46.0. With warm-ups cut to a tenth
# of the stage: on 400 76.4 / 33.5, on 2,500 84.9 / 40.3.
LEAST_STEPS, FEWEST_ROWS = 20, 64

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class RowRule:
    """How the rows of a table are trained: by Adam, or by SGD where `momentum` is given."""

    lr: float
    momentum: float | None = None
    weight_decay: float = 0.0     # decoupled (SGD)


@dataclass(frozen=True)
class TrainingPlan:
    """How long a stage trains, on what batches and at what rates; epochs count from 0 in each stage.

    Plans are made for tens of thousands of rows and more. On fewer, batches are smaller than `batch_size`, down to
    FEWEST_ROWS, for as long as a pass over the rows has less than LEAST_STEPS of them, and an epoch is as many passes
    as it takes for `least_steps`. Otherwise 400 texts would be 8 steps in all, and a model that has learned nothing.
    """

    epochs: int
    batch_size: int      # rows of a batch, at most
    lr: float            # of the dense parameters
    tables: Mapping[str, RowRule]  # of each matrix trained by rows, by its name
    warmup: int          # steps of linear warm-up; decay to zero follows
    weight_decay: float = 0.0
    decay: str = "linear"  # linear | cosine
    least_steps: int = 0  # of an epoch

    def rows(self, n: int) -> int:
        """Rows of a batch where an epoch has n; its last batch may have fewer."""
        return min(self.batch_size, max(n // LEAST_STEPS, FEWEST_ROWS))

    def steps_a_pass(self, n: int) -> int:
        """How many batches n rows make."""
        return max(1, -(-n // self.rows(n)))

    def passes(self, n: int) -> int:
        """How often an epoch passes over n rows."""
        return max(1, -(-self.least_steps // self.steps_a_pass(n)))

    def steps_an_epoch(self, n: int) -> int:
        """How many steps an epoch over n rows takes."""
        return self.passes(n) * self.steps_a_pass(n)

    def steps(self, n: int) -> int:
        """Optimiser steps of the whole stage over n rows."""
        return self.epochs * self.steps_an_epoch(n)

    def rate(self, step: int, n: int) -> float:
        """The factor on the learning rates at optimiser step `step`, counted from 0."""
        done = min(step / self.steps(n), 1.0)
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return min(1.0, (step + 1) / max(self.warmup, 1)) * left


@dataclass(frozen=True)
class Round:
    """Epochs [first, last) of a stage, trained on files mined before it.

    cluster_size: of the training queries that a batch takes together; 0 = single ones.
    negatives: hard negative labels mined for each training query; 0 = none.
    source: index of the round whose result is mined; rounds of one source share what was mined. -1 = what there is
    before the stage.
    """

    stage: str
    index: int
    first: int
    last: int
    cluster_size: int = 0
    negatives: int = 0
    source: int = -1

    @property
    def mines(self) -> bool:
        """Whether anything is mined before the round."""
        return self.cluster_size > 0 or self.negatives > 0

    @property
    def name(self) -> str:
        """What people see: `encoder round 2`."""
        return f"{self.stage} round {self.index}"


@dataclass(frozen=True)
class Mined:
    """What a refresh gives a round.

    clusters (training rows,) int32; negatives (rows of the training side, k) int32, -1 = none; kept (edges,) bool:
    the edges left of each graph and side, by "graph.side"; fixed vectors by side, (n, d) float32; what was measured on
    the way: "recall", the share in percent of the exact nearest labels that the index found.
    """

    clusters: np.ndarray | None = None
    negatives: np.ndarray | None = None
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


# The vectors of each side by name, (n, d) float32, made or read when called for: not every refresh needs all.
Vectors = Mapping[str, Callable[[], np.ndarray]]


class Stage(Generic[M]):
    """A stretch of training with one model M, one loss and one plan.

    settings: what its result depends on, by name. frozen: it works on the vectors of the stage before, whose encoder it
    leaves as it is.
    """

    name: str
    seed: int
    plan: TrainingPlan
    rounds: Sequence[Round]
    settings: Mapping[str, object]
    frozen = False

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> M:
        """Build the model at its start; `vectors` are those of the stage before."""
        raise NotImplementedError

    def begin(self, model: M, corpus: Corpus, before: Path | None) -> None:
        """Set what the stage starts from where that takes work; called once, before its first step.

        before: the folder of the model that the stage before it ended with.
        """

    def order(self, corpus: Corpus, mined: Mined, epoch: int) -> np.ndarray:
        """Return the training rows of an epoch in order: shuffled one by one, or by clusters where those were mined."""
        return epoch_order(corpus.training_rows(), mined.clusters,
                           seeds.generator(self.seed, "order", self.name, epoch))

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return everything that the loss needs about `rows`."""
        raise NotImplementedError

    def loss(self, model: M, batch: Batch) -> dict[str, torch.Tensor]:
        """Return named terms, each already weighted; the loop minimises their sum."""
        raise NotImplementedError

    def vectors(self, model: M, corpus: Corpus) -> Vectors:
        """Return the vectors that mining and retrieval work on (where the accelerator is): "queries", "labels"."""
        raise NotImplementedError

    def compared(self, model: M, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors of training-side `rows` and of all labels, by what is trained: their products rank labels.

        It is called at the end of an epoch; it draws nothing and leaves the weights as they are.
        """
        raise NotImplementedError

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """Return what a round is to train on, from vectors alone (CPU, pure)."""
        raise NotImplementedError


class EncoderStage(Stage[M]):
    """A stage whose loss is of the vectors of texts, so that further texts can take part in it (RAMEN's anchors)."""

    query_view = QUERY                            # the view of a query that labels are compared with
    query_sides: tuple[str, ...] = ("queries",)   # sides of a batch that are encoded as queries

    def encoder(self, model: M) -> Encoder:
        """Return the encoder of a model: by default that is all it has."""
        return cast(Encoder, model)

    def terms(self, model: M, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the loss, as `loss` does, from the backbone's vectors of the sides of a batch."""
        raise NotImplementedError

    def loss(self, model: M, batch: Batch) -> dict[str, torch.Tensor]:
        """Return what `terms` makes of the sides of a batch, encoded in one pass."""
        return self.terms(model, batch, self.encoder(model).pool(batch.sides, self.query_sides))

    def vectors(self, model: M, corpus: Corpus) -> Vectors:
        """Return the embeddings of the training side's texts, and of the labels'."""
        encoder = self.encoder(model)
        return {"queries": partial(encode_all, encoder, corpus.sides["train"], self.query_view),
                "labels": partial(encode_all, encoder, corpus.sides["label"], LABEL)}

    def compared(self, model: M, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of `rows` and of the labels."""
        encoder = self.encoder(model)
        return (encode_all(encoder, corpus.sides["train"], self.query_view, rows),
                encode_all(encoder, corpus.sides["label"], LABEL))


class RetrieverBuilder(Protocol):
    """What makes a retriever of trained models."""

    @property
    def settings(self) -> Mapping[str, object]:
        """What its result depends on beside the models, by name."""

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever of each stage's model to `out`, an empty folder; return what was measured on the way.

        models: the folder of each stage's last checkpoint. vectors: those that a frozen stage stood on.
        """


@dataclass(frozen=True)
class Method:
    """A published method for one configuration, and what it asks of data and machine."""

    name: str
    seed: int
    stages: Sequence[Stage[Any]]
    build_retriever: RetrieverBuilder
    encoder: EncoderConfig
    dim: int = 0                       # of a label's vector; 0 = as the encoder's
    base: str = ""                     # the method that it regularises, whose steps take as long
    needs_label_texts: bool = True     # something is learned or scored by what labels are called
    needs_graphs: bool = False         # metadata graphs take part

    @property
    def width(self) -> int:
        """How long a label's vector is."""
        return self.dim or self.encoder.dim

    @property
    def timed_as(self) -> str:
        """The method by whose name its rates were measured."""
        return self.base or self.name

    @property
    def rounds(self) -> list[Round]:
        """The rounds of all stages in order."""
        return [round_ for stage in self.stages for round_ in stage.rounds]

    def stage(self, name: str) -> Stage[Any]:
        """Return the stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def round(self, name: str) -> Round:
        """Return the round of a name."""
        return next(round_ for round_ in self.rounds if round_.name == name)
