"""What a method is: stages, and how each of them batches, scores and mines.

Training is a sequence of rounds. A round is a pure step, (checkpoint, corpus, mined files) -> (checkpoint, metrics);
nothing is mined inside it, so a killed run resumes at the last round and a refresh can run anywhere.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from xcmodels.data.batching import Batch
from xcmodels.data.corpus import Corpus
from xcmodels.nn.row_table import Model

# NGAME's CPU preset on the names and descriptions of Debian's packages, 590 tags, P@1 / P@5 on others. On 400 texts,
# batches of 1,024, 128, 64, 32: 42.7 / 30.8, 73.7 / 34.4, 78.7 / 36.5, 78.0 / 34.7; on 2,500: 78.3 / 37.6, 85.7 / 42.0,
# 85.1 / 40.7, 84.5 / 38.5. On 24,235, batches of 1,024 and 256: 90.6 / 46.1, 90.1 / 46.0. With warm-ups cut to a tenth
# of the stage: on 400 76.4 / 33.5, on 2,500 84.9 / 40.3.
LEAST_STEPS, FEWEST_ROWS = 20, 64


@dataclass(frozen=True)
class RowRule:
    """How the rows of a table are trained: by Adam, or by SGD where `momentum` is given."""

    lr: float
    momentum: float | None = None
    weight_decay: float = 0.0     # decoupled (SGD)


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one model, one loss and one schedule; epochs count from 0 in each stage.

    Schedules are made for tens of thousands of rows and more. On fewer, batches are smaller than `batch_size`, down to
    FEWEST_ROWS, for as long as a pass over the rows has less than LEAST_STEPS of them, and an epoch is as many passes
    as it takes for `least_steps`. Otherwise 400 texts would be 8 steps in all, and a model that has learned nothing.
    """

    name: str
    epochs: int
    batch_size: int      # rows of a batch, at most
    lr: float            # of the dense parameters
    tables: Mapping[str, RowRule]  # of each matrix trained by rows, by its name
    warmup: int          # steps of linear warm-up; decay to zero follows
    weight_decay: float = 0.0
    decay: str = "linear"  # linear | cosine
    frozen: bool = False  # works on the vectors of the stage before, whose encoder it leaves as it is
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


class Method(Protocol):
    """A published method, composed of the pieces of this package."""

    seed: int

    def stages(self) -> list[Stage]:
        """The stages in order."""

    def settings(self, stage: str) -> dict[str, object]:
        """The settings that a stage's result depends on; of the retriever's fit for stage "retriever"."""

    def rounds(self) -> list[Round]:
        """The rounds of all stages in order."""

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the model of a stage at its start; `vectors` are those of the stage before."""

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """Set what a stage starts from where that takes work; called once, before the stage's first step.

        before: the folder of the model that the stage before it ended with.
        """

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Training rows in the order of an epoch."""

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Everything the loss of a stage needs about `rows`."""

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """Named terms, each already weighted; the loop minimises their sum."""

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """The vectors that mining and retrieval work on (where the accelerator is): queries (train), labels."""

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of `rows` of the training side and of all labels by what a stage trains: their products rank labels.

        The method is asked at the end of an epoch; it draws nothing and leaves the weights as they are.
        """

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """What a round is to train on, from vectors alone (CPU, pure)."""

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """Write the retriever of every stage's trained model to `out`, and say what was measured on the way."""
