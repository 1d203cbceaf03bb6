"""NGAME's module M1: a Siamese encoder trained on clustered batches; ASTRA can start from it.

Dahiya et al., 2022: Algorithm 1, equation 1, Appendix C.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from xcmodels import checks
from xcmodels.data.batching import (
    Batch,
    BatchSide,
    padded,
    pooled_block,
    sample_negatives,
    sample_positive,
    sample_positives,
)
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.data.sorted_ids import unique
from xcmodels.method import EncoderStage, Mined, Round, Vectors
from xcmodels.methods.table_config import TableConfig
from xcmodels.mining import refresh, schedule
from xcmodels.nn import losses
from xcmodels.nn.autograd import SparseGradScores
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, build_encoder
from xcmodels.training_plan import TrainingPlan

STAGE = "encoder"


@dataclass(frozen=True, kw_only=True)
class ModuleConfig(schedule.ClusterSchedule, TableConfig):
    """The settings that modules M1 and M2 share: schedule, rates, triplet loss."""

    batch_size: int            # rows of a batch, at most; fewer where there are few texts
    table_lr: float            # of token embeddings (M1), of classifiers (M2)
    warmup: int                # steps over which the learning rates rise from 0
    margin: float = 0.3        # by which a positive is to score above a negative (triplet loss)
    positives: int = 1         # positives of a row that are drawn (M1) or kept, hardest first (M2)
    negatives: int = 10        # hardest in-batch negatives of a row
    temperature: float = 0.1   # the kept negatives are weighed by softmax(score / temperature); 0 = equally

    def __post_init__(self) -> None:
        schedule.ClusterSchedule.__post_init__(self)
        TableConfig.__post_init__(self)
        checks.at_least(self, 1, "batch_size", "positives", "negatives")
        checks.at_least(self, 0, "table_lr", "warmup", "margin", "temperature")


@dataclass(frozen=True, kw_only=True)
class EncoderModuleConfig(ModuleConfig):
    """The settings of module M1."""

    lr: float                  # learning rate of dense parameters
    mined: int = 0             # mined hard negatives of a row that join its batch in an epoch; 0 = none

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 0, "mined", "lr")

    @property
    def mines(self) -> bool:
        return super().mines or self.mined > 0


class ConfigWithM1(Protocol):
    """The settings of a method that module M1 depends on."""

    @property
    def m1(self) -> EncoderModuleConfig | None: ...
    @property
    def encoder(self) -> EncoderConfig: ...
    @property
    def seed(self) -> int: ...
    @property
    def index(self) -> str: ...


class EncoderModule(EncoderStage[Encoder]):
    """The encoder, trained on queries against the pool of their drawn positives, one of each in the paper."""

    name = STAGE

    def __init__(self, config: ConfigWithM1) -> None:
        assert config.m1 is not None
        self.module, self.config, self.seed, self.index = config.m1, config.encoder, config.seed, config.index
        self.plan = TrainingPlan.of(self.module, {"tokens": self.module.rule(self.module.table_lr)})
        self.rounds = schedule.rounds(STAGE, self.module, self.module.mined * self.module.epochs_per_refresh)
        self.settings = {"seed": config.seed, "m1": self.module, "encoder": config.encoder}
        if self.module.mined:
            self.settings["index"] = self.index

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Encoder:
        return build_encoder(self.config, corpus.idf, self.seed, table_dtype=self.module.table_dtype)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return queries against the pool of the positives drawn for each, and of their mined negatives.

        Labels that were rejected for a query are in its pool, too.
        """
        if self.module.positives == 1:
            chosen = sample_positive(corpus.train_positives, rows, rng)[:, None]
        else:
            chosen = padded(*sample_positives(corpus.train_positives, rows, self.module.positives, rng))
        picked = [chosen[chosen >= 0], corpus.rejected.take(rows)[0]]
        if mined.negatives is not None:
            picked.append(sample_negatives(mined.negatives[rows], self.module.mined, rng))
        pool = unique(np.concatenate(picked))
        sides = {"queries": BatchSide(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows)),
                 "labels": BatchSide(torch.from_numpy(pool), tokens=corpus.sides["label"].tokens(pool))}
        return Batch(sides, {"triplet": pooled_block(corpus, rows, pool, chosen)})

    def terms(self, model: Encoder, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the triplet loss of equation 1 over the hardest pairs of the batch."""
        scores = SparseGradScores(model.view(pooled["queries"], QUERY), model.view(pooled["labels"], LABEL))
        return {"triplet": triplet(self.module, batch, scores)}

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        return refresh.mine(vectors, corpus, round_, seed=self.seed, index=self.index, executor=executor)


def triplet(module: ModuleConfig, batch: Batch, scores: SparseGradScores) -> torch.Tensor:
    """Return the triplet loss of equation 1 over the hardest pairs of the batch's block "triplet"."""
    block = batch.blocks["triplet"]
    assert block.chosen_positives is not None
    return losses.triplet(
        scores, block.chosen_positives, block.counted_negatives, block.weights, margin=module.margin,
        hard_positives=module.positives, hard_negatives=module.negatives, temperature=module.temperature)
