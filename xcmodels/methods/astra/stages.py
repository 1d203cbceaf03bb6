"""ASTRA: encoder and classifiers trained jointly on stale hard and uniform negatives.

A query has a few labels of its own, some positives and the hard negatives mined for it some epochs ago, and all queries
of a batch share labels drawn uniformly from all. The weights make the sum an unbiased estimate of the binary cross-
entropy over every label (Mehta et al.; equation 2, Lemma 4.1), so that the cost of a step does not depend on their
number. Renee, which scores every label for every query, is a setting.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, BatchSide, shortlist_block, uniform_block, with_rejected
from xcmodels.data.corpus import Corpus
from xcmodels.data.every_label import EveryLabelBatch, every_label_batch
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.method import Mined, Round, SideVectors, Stage, Vectors, embeddings
from xcmodels.methods.astra.config import STAGE, AstraConfig
from xcmodels.mining import refresh, schedule
from xcmodels.nn import losses
from xcmodels.nn.autograd import dropout, recomputed
from xcmodels.nn.encoders import QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all
from xcmodels.nn.row_table import Model, RowTable, normal_rows
from xcmodels.training.checkpoint import load_model
from xcmodels.training_plan import TrainingPlan

PRIOR_QUERIES, PRIOR_LABELS = 256, 1 << 14    # sampled for the initial bias


def untrained_encoder(config: AstraConfig, corpus: Corpus) -> Encoder:
    """Return the untrained encoder: module M1's, or one linear head over the backbone."""
    if config.pretrained:
        return build_encoder(config.encoder, corpus.idf, config.seed, table_dtype=config.table_dtype)
    head = HeadConfig("linear", config.dim)
    return build_encoder(config.encoder, corpus.idf, config.seed, Layout({QUERY: head}, {QUERY: (QUERY,)}),
                         config.table_dtype)


class OneVsAll(Model):
    """An encoder and a classifier per label; the logit of a pair is scale * <x, w> + bias."""

    def __init__(self, config: AstraConfig, corpus: Corpus) -> None:
        super().__init__()
        self.encoder = untrained_encoder(config, corpus)
        width = self.encoder.width(QUERY)
        self.labels = RowTable.sharded(corpus.n_labels, lambda part: normal_rows(
            corpus.n_labels, width, part, std=0.02, dtype=config.table_dtype))
        self.labels.in_parts, self.dropout = config.every_label, config.dropout
        self.scale, self.bias = nn.Parameter(torch.tensor(config.scale)), nn.Parameter(torch.tensor(0.0))

    def classifiers(self, low: int = 0, high: int | None = None) -> np.ndarray:
        """Return the classifiers of labels low:high, of all by default, (n, d)."""
        return self.labels.weight[low:high].cpu().to(self.labels.dtype).numpy()

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the logits of each block of a batch, (R, C); meaningless where the weight is 0."""
        queries = self.queries(batch)
        scores = {"pool": queries @ self.labels.vectors(batch.sides["labels"].ids).T}
        if (own := batch.blocks.get("shortlist")) is not None:
            assert own.columns is not None and own.weights is not None
            row, slot = torch.nonzero(own.weights, as_tuple=True)
            products = self.labels.score_pairs(queries, row, own.columns[row, slot])
            scores["shortlist"] = torch.zeros_like(own.weights).index_put((row, slot), products)
        return {name: self.scale * products + self.bias for name, products in scores.items()}

    def queries(self, batch: Batch) -> torch.Tensor:
        """Return the vectors of a batch's queries, (R, d)."""
        vectors = self.encoder.heads[QUERY](self.encoder.backbone(batch.sides["queries"].tokens, QUERY))
        return dropout(vectors, self.dropout, self.training)

    def logits(self, queries: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the logits of queries (R, d) with each of the labels (n,), (R, n)."""
        return self.scale * (queries @ self.labels.vectors(labels).T) + self.bias

    def every_label(self, batch: EveryLabelBatch) -> torch.Tensor:
        """Return the mean over queries of the binary cross-entropy over every label, computed by parts of the labels.

        No part is kept for the backward pass, which computes it again and updates its classifiers at once.
        """
        parts, device = batch.parts(), batch.rows.device

        def loss(queries: torch.Tensor, part: slice) -> torch.Tensor:
            logits = self.logits(queries, torch.arange(part.start, part.stop, device=device))
            block = batch.block(part)
            return losses.weighted_bce(logits, block.positives, block.weights)

        queries = self.queries(batch)
        return torch.stack([loss(queries, part) if len(parts) == 1 else recomputed(partial(loss, part=part), queries)
                            for part in parts]).sum()


def prior_bias(scores: np.ndarray, weight: float, positives: np.ndarray) -> float:
    """Return the bias b at which the expected number of labels of a query is the observed one.

    The solution of mean_i sum_l weight * sigmoid(scores[i, l] + b) = mean_i positives[i]; scores (n, m) are scaled
    inner products with a sample of labels, each of which stands for `weight` of them. With a higher bias, training
    first has to push down every label; with a lower one, negatives have no gradient.
    """
    target, bound = float(positives.mean()), float(np.abs(scores).max()) + 50.0
    low, high = -bound, bound
    for _ in range(40):
        bias = (low + high) / 2
        expected = weight * float(expit(scores + np.float32(bias)).sum(1, dtype=np.float64).mean())
        low, high = (low, bias) if expected > target else (bias, high)
    return (low + high) / 2


class AstraStage(Stage[OneVsAll]):
    """The stage that trains encoder and classifiers together: the encoder by Adam, classifiers by SGD."""

    name = STAGE

    def __init__(self, config: AstraConfig) -> None:
        self.config, self.seed = config, config.seed
        tables = {"tokens": config.rule(config.token_lr),
                  "labels": config.rule(config.label_lr, config.momentum, config.weight_decay)}
        self.plan = TrainingPlan.of(config, tables)
        # uniform negatives alone first, then a round for every refresh, mined with the model of `ahead` epochs before
        self.rounds = schedule.rounds(STAGE, config, config.mined, config.ahead)
        self.settings = config.training

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> OneVsAll:
        return OneVsAll(self.config, corpus)

    def begin(self, model: OneVsAll, corpus: Corpus, before: Path | None) -> None:
        """Load module M1's encoder where there is one; start each classifier at its label's embedding, and the bias."""
        if self.config.pretrained:
            assert before is not None
            load_model(model.encoder, before)
        if self.config.start != "random":
            model.labels.set_all(partial(encode_all, model.encoder, corpus.sides["label"], self.config.label_view))
        model.bias.data.fill_(self._prior(model, corpus))

    def _prior(self, model: OneVsAll, corpus: Corpus) -> float:
        """Return `prior_bias` for a draw of the training queries and of the labels."""
        rng, rows, n = seeds.generator(self.seed, "bias"), corpus.training_rows(), corpus.n_labels
        rows = np.sort(rng.choice(rows, min(PRIOR_QUERIES, len(rows)), replace=False))
        labels = np.sort(rng.choice(n, min(PRIOR_LABELS, n), replace=False))
        classifiers = model.labels.read(torch.from_numpy(labels).to(model.labels.weight.device)).cpu().numpy()
        scores = self._start_vectors(model, corpus, rows) @ classifiers.T
        return prior_bias(self.config.scale * scores, n / len(labels), corpus.train_positives.subset(rows).lengths)

    @torch.no_grad()
    def _start_vectors(self, model: OneVsAll, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of training rows (n, d) as the loss has them before its first step."""
        if self.config.pretrained or not (self.config.dim or self.config.encoder.kind == "both"):    # at unit length
            return encode_all(model.encoder, corpus.sides["train"], QUERY, rows)
        tokens = corpus.sides["train"].tokens(rows).to(model.scale.device)
        return model.eval().queries(Batch({"queries": BatchSide(torch.from_numpy(rows), tokens)}, {})).cpu().numpy()

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return queries against their own labels and labels shared by the batch, or against every label."""
        config, n = self.config, corpus.n_labels
        queries = BatchSide(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows))
        if config.every_label:
            return every_label_batch(corpus, rows, Batch({"queries": queries}, {}))
        hard, uniform = config.counts(round_)
        hardest = mined.negatives[rows, :hard] if mined.negatives is not None else np.empty((len(rows), 0), np.int32)
        hardest = with_rejected(corpus, rows, hardest)
        pool = np.sort(rng.choice(n, min(uniform, n), replace=False))
        weight = n / max(len(pool), 1) if config.unbiased else 1.0
        return Batch({"queries": queries, "labels": BatchSide(torch.from_numpy(pool))},
                     {"shortlist": shortlist_block(corpus, rows, config.positives, hardest, rng),
                      "pool": uniform_block(corpus, rows, pool, hardest, weight)})

    def loss(self, model: OneVsAll, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the estimate of equation 2, one term per block: its mean over the queries, or its sum."""
        factor = len(batch.sides["queries"].ids) if self.config.summed else 1
        if isinstance(batch, EveryLabelBatch):
            return {"pool": factor * model.every_label(batch)}
        return {name: factor * losses.weighted_bce(scores, batch.blocks[name].positives, batch.blocks[name].weights)
                for name, scores in model(batch).items()}

    def vectors(self, model: OneVsAll, corpus: Corpus) -> Mapping[str, SideVectors]:
        """Return the queries' embeddings, and as labels the classifiers or the embeddings of label texts."""
        labels = SideVectors(corpus.n_labels, model.classifiers) if self.config.source == "classifier" else \
            embeddings(model.encoder, corpus.sides["label"], self.config.label_view)
        return {"queries": embeddings(model.encoder, corpus.sides["train"], QUERY), "labels": labels}

    def ranking_vectors(self, model: OneVsAll, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of `rows` and the classifiers, pending weight decay applied."""
        return encode_all(model.encoder, corpus.sides["train"], QUERY, rows), model.labels.read_all()

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        return refresh.mine(vectors, corpus, round_, seed=self.seed, index=self.config.index, executor=executor)
