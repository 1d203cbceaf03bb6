"""The interface of a method: a list of training stages, and a retriever builder.

Training is a sequence of rounds. A round is a pure step, (checkpoint, corpus, mined files) -> (checkpoint, metrics);
mining happens between rounds, so a killed run resumes at the last round and mining can run anywhere.
"""

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
from xcmodels.training_plan import TrainingPlan

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Round:
    """Epochs first to stop - 1 of a stage, trained on files mined before it.

    cluster_size: size of the clusters of training queries that batches are made of; 0 = no clusters.
    n_negatives: how many hard negative labels are mined for each training query; 0 = none.
    mined_by: index of the round whose model mines, -1 = the model before the stage; rounds that one model mines for
    share the mining result.
    """

    stage: str
    index: int
    first: int
    stop: int
    cluster_size: int = 0
    n_negatives: int = 0
    mined_by: int = -1

    @property
    def mines(self) -> bool:
        """Whether clusters or negatives are mined before the round."""
        return self.cluster_size > 0 or self.n_negatives > 0

    @property
    def name(self) -> str:
        """The name of its training, `encoder round 2`; its mining draws at random by a key with this name."""
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

    settings: every setting that its result depends on, by name. on_fixed_vectors: it trains on the vectors that the
    stage before ends with, and leaves that stage's encoder unchanged.
    """

    name: str
    seed: int
    plan: TrainingPlan
    rounds: Sequence[Round]
    settings: Mapping[str, object]
    on_fixed_vectors = False

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
        """Return the terms of the loss by name, () each, already weighted; the training loop minimises their sum."""
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
        """Return the terms of the loss from the backbone's vectors of each batch side, (n, sums * dim)."""
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

        models: the folder of each stage's last checkpoint. vectors: the fixed vectors that a stage trained on, if any.
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
