"""NGAME: mini-batches clustered so that in-batch negatives are hard.

Module M1 (`ngame_m1.py`) trains a Siamese encoder, module M2 a classifier per label that starts at the label's
embedding with the encoder frozen. Dahiya et al., 2022: Algorithm 1, equation 1, Appendix C.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from xcmodels.data.batching import Batch, BatchSide, padded, pooled_block
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.data.sorted_ids import unique
from xcmodels.method import Mined, Round, Stage, Vectors
from xcmodels.methods.ngame.config import ClassifierModuleConfig, NgameConfig
from xcmodels.methods.ngame_m1 import triplet
from xcmodels.mining import refresh, schedule
from xcmodels.nn.autograd import SparseGradScores, dropout, normalise
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.training_plan import TrainingPlan

STAGE = "classifier"


class Classifiers(Model):
    """One classifier per label, trained by rows over fixed query vectors (module M2)."""

    def __init__(self, start: np.ndarray, config: ClassifierModuleConfig) -> None:
        super().__init__()
        self.table = RowTable.zeros(len(start), start.shape[1], config.table_dtype)
        self.table.set_all(start.__getitem__)
        self.dropout, self.unit = config.dropout, config.unit

    def vectors(self) -> np.ndarray:
        """Return the classifiers as they score, (L, d)."""
        return normalise(self.table.read_all()) if self.unit else self.table.read_all()

    def forward(self, queries: torch.Tensor, labels: torch.Tensor) -> SparseGradScores:
        """Return the scores (R, C) of query vectors (R, d) and label ids (C,), sorted and unique."""
        rows, inverse = self.table.gather(labels)
        if self.unit:
            rows = normalise(rows)
        return SparseGradScores(dropout(queries, self.dropout, self.training), F.embedding(inverse, rows))


class ClassifierModule(Stage[Classifiers]):
    """M2: classifiers, trained on M1's query embeddings against the pool of all their positives."""

    name, on_fixed_vectors = STAGE, True

    def __init__(self, config: NgameConfig) -> None:
        self.module, self.seed = config.m2, config.seed
        self.plan = TrainingPlan.of(self.module, {"labels": self.module.rule(self.module.table_lr)})
        self.rounds = schedule.rounds(STAGE, self.module)
        self.settings = {"seed": config.seed, "m2": self.module}

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Classifiers:
        """Build the classifiers, initialised with the label embeddings."""
        return Classifiers(vectors["labels"], self.module)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return queries against the pool of all their positives, and of the labels rejected for them."""
        chosen = padded(*corpus.train_positives.take(rows))
        pool = unique(np.concatenate([chosen[chosen >= 0], corpus.rejected.take(rows)[0]]))
        sides = {"queries": BatchSide(torch.from_numpy(rows), vectors=torch.from_numpy(mined.vectors["queries"][rows])),
                 "labels": BatchSide(torch.from_numpy(pool))}
        return Batch(sides, {"triplet": pooled_block(corpus, rows, pool, chosen)})

    def loss(self, model: Classifiers, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the triplet loss of equation 1 over the hardest pairs of the batch."""
        scores = model(batch.sides["queries"].vectors, batch.sides["labels"].ids)
        return {"triplet": triplet(self.module, batch, scores)}

    def ranking_vectors(self, model: Classifiers, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fixed embeddings of `rows`, and the classifiers."""
        return mined.vectors["queries"][rows], model.vectors()

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        return refresh.mine(vectors, corpus, round_, seed=self.seed, executor=executor)
