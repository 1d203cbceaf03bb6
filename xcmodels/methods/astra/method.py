"""ASTRA: encoder and classifiers together, on stale hard negatives of the classifiers and uniform ones (Mehta et al.).

A query has a few labels of its own, some positives and the hard negatives mined for it some epochs ago, and all
queries of a batch share labels drawn uniformly from all. The weights make the sum an unbiased estimate of the binary
cross-entropy over every label (equation 2, Lemma 4.1), so that a step costs the same whatever their number. Renee,
which takes every label for every query, is a setting.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, Entries, epoch_order, own_block, pooled_block, uniform_block
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Round, RowRule, Stage, Vectors
from xcmodels.methods.astra.config import STAGE, AstraConfig
from xcmodels.mining import negatives, schedule
from xcmodels.nn import losses
from xcmodels.nn.encoders import QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all
from xcmodels.nn.row_table import Model, RowTable, drawn
from xcmodels.retrieval import ann
from xcmodels.retrieval.proposers import Proposer
from xcmodels.retrieval.retriever import save_retriever
from xcmodels.retrieval.scorers import CLASSIFIER, InnerProduct
from xcmodels.training.checkpoint import load_model

PRIOR_QUERIES, PRIOR_LABELS = 256, 1 << 14    # of which the first bias is made, and displacement is measured


def first_encoder(config: AstraConfig, corpus: Corpus) -> Encoder:
    """Build the encoder as training begins with it."""
    head = HeadConfig("linear", config.dim, config.dropout)
    return build_encoder(config.encoder, corpus.idf, config.seed, Layout({QUERY: head}, {QUERY: (QUERY,)}))


class OneVsAll(Model):
    """An encoder and a vector a label; the logit of a pair is scale * <x, w> + bias."""

    def __init__(self, config: AstraConfig, corpus: Corpus) -> None:
        super().__init__()
        self.encoder = first_encoder(config, corpus)
        width = self.encoder.width(QUERY)
        self.labels = RowTable.shared(corpus.n_labels, lambda part: drawn(corpus.n_labels, width, part) * 0.02)
        self.scale, self.bias = nn.Parameter(torch.tensor(config.scale)), nn.Parameter(torch.tensor(0.0))

    def tables(self) -> dict[str, RowTable]:
        """The token embeddings of a bag, and the classifiers."""
        return self.encoder.tables() | {"labels": self.labels}

    def classifiers(self) -> np.ndarray:
        """Return the classifiers, (L, d)."""
        return self.labels.weight.cpu().numpy()

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the logits of each block of a batch, (R, C); of no meaning where the weight is 0."""
        queries = self.encoder.heads[QUERY](self.encoder.trunk(batch.sides["queries"].tokens, QUERY))
        rows, place = self.labels.gather(batch.sides["labels"].ids)
        scores = {"pool": queries @ rows[place].T}
        if (own := batch.blocks.get("own")) is not None:
            assert own.columns is not None and own.weights is not None
            asked, slot = torch.nonzero(own.weights, as_tuple=True)
            found = self.labels.score_pairs(queries, asked, own.columns[asked, slot])
            scores["own"] = torch.zeros_like(own.weights).index_put((asked, slot), found)
        return {name: self.scale * of + self.bias for name, of in scores.items()}


def prior_bias(scores: np.ndarray, weight: float, positives: np.ndarray) -> float:
    """Return the bias b at which queries are expected to have as many labels as they have.

    The solution of mean_i sum_l weight * sigmoid(scores[i, l] + b) = mean_i positives[i]; scores (n, m) are scaled
    inner products with a draw of the labels, each of which stands for `weight` of them. With a higher one, all that
    training does at first is to push down every label; with a lower one, no negative is felt.
    """
    wanted, reach = float(positives.mean()), float(np.abs(scores).max()) + 50.0
    low, high = -reach, reach
    for _ in range(40):
        bias = (low + high) / 2
        expected = weight * float(expit(scores + np.float32(bias)).sum(1, dtype=np.float64).mean())
        low, high = (low, bias) if expected > wanted else (bias, high)
    return (low + high) / 2


def displacement(start: np.ndarray, end: np.ndarray, frequencies: np.ndarray) -> dict[str, float]:
    """Return how far training moved classifiers (L, d), ||end - start|| / ||start||, on average of labels.

    Of those with 0, 1, 2 to 9, and 10 and more training queries, as "moved/0", "moved/1", "moved/2", "moved/10"; of a
    group that no label is in, nothing. Classifiers that hardly move are label texts read by an untrained encoder.
    """
    share = np.linalg.norm(end - start, axis=1) / np.maximum(np.linalg.norm(start, axis=1), 1e-12)
    edges = (0, 1, 2, 10)
    group = np.searchsorted(edges, frequencies, side="right") - 1
    return {f"moved/{edge}": float(share[group == at].mean()) for at, edge in enumerate(edges) if (group == at).any()}


class Astra:
    """The method, for one configuration."""

    def __init__(self, config: AstraConfig) -> None:
        self.config, self.seed = config, config.seed
        self.name = "renee" if config.every_label else "astra"

    def stages(self) -> list[Stage]:
        """One: encoder by Adam, classifiers by SGD."""
        config = self.config
        tables = {"tokens": RowRule(config.token_lr),
                  "labels": RowRule(config.label_lr, config.momentum, config.weight_decay)}
        return [Stage(STAGE, config.epochs, config.batch_size, config.lr, tables, config.warmup, decay=config.decay,
                      least_steps=config.least_steps)]

    def settings(self, stage: str) -> dict[str, object]:
        """Training depends on everything but how what it made is indexed."""
        own = asdict(self.config)
        index = own.pop("index")
        return {**own, **({"index": index} if stage == "retriever" else {})}

    def rounds(self) -> list[Round]:
        """Uniform negatives alone first, then a round for every refresh, whose vectors were taken `ahead` of it."""
        return schedule.rounds(STAGE, self.config, self.config.mined, self.config.ahead)

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the encoder and the classifiers."""
        return OneVsAll(self.config, corpus)

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """Start each classifier at its label's embedding, the label's text read as a query's, and the bias by it."""
        assert isinstance(model, OneVsAll)
        if self.config.start == "label":
            model.labels.fill(partial(encode_all, model.encoder, corpus.sides["label"], QUERY))
        model.bias.data.fill_(self._prior(model, corpus))

    def _prior(self, model: OneVsAll, corpus: Corpus) -> float:
        """Return `prior_bias` for a draw of the training queries and of the labels."""
        rng, rows, n = seeds.generator(self.seed, "bias"), corpus.training_rows(), corpus.n_labels
        rows = np.sort(rng.choice(rows, min(PRIOR_QUERIES, len(rows)), replace=False))
        labels = np.sort(rng.choice(n, min(PRIOR_LABELS, n), replace=False))
        drawn_ones = model.labels.read(torch.from_numpy(labels).to(model.labels.weight.device)).cpu().numpy()
        scores = encode_all(model.encoder, corpus.sides["train"], QUERY, rows) @ drawn_ones.T
        return prior_bias(self.config.scale * scores, n / len(labels), corpus.pulled.subset(rows).lengths)

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Training rows of an epoch, shuffled."""
        return epoch_order(corpus.training_rows(), None, seeds.generator(self.seed, "order", STAGE, epoch))

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Queries against labels of their own and labels drawn for the batch, or against every label."""
        config, n = self.config, corpus.n_labels
        queries = Entries(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows))
        if config.every_label:
            pool = np.arange(n)
            return Batch({"queries": queries, "labels": Entries(torch.from_numpy(pool))},
                         {"pool": pooled_block(corpus, rows, pool)})
        hard, uniform = config.counts(round_)
        hardest = mined.negatives[rows, :hard] if mined.negatives is not None else np.empty((len(rows), 0), np.int32)
        pool = np.sort(rng.choice(n, min(uniform, n), replace=False))
        weight = n / max(len(pool), 1) if config.unbiased else 1.0
        return Batch({"queries": queries, "labels": Entries(torch.from_numpy(pool))},
                     {"own": own_block(corpus, rows, config.positives, hardest, rng),
                      "pool": uniform_block(corpus, rows, pool, hardest, weight)})

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """The estimate of equation 2, a term a block."""
        return {name: losses.weighted_bce(scores, batch.blocks[name].positives, batch.blocks[name].weights)
                for name, scores in model(batch).items()}

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """Embeddings of the training queries, and what is mined over: the classifiers, or label texts' embeddings."""
        assert isinstance(model, OneVsAll)
        labels: Callable[[], np.ndarray] = partial(encode_all, model.encoder, corpus.sides["label"], QUERY)
        if self.config.source == "classifier":
            labels = model.classifiers
        return {"queries": partial(encode_all, model.encoder, corpus.sides["train"], QUERY), "labels": labels}

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By the classifiers, their decay included."""
        assert isinstance(model, OneVsAll)
        return encode_all(model.encoder, corpus.sides["train"], QUERY, rows), model.labels.all()

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """The labels nearest to each query that are not its own."""
        return negatives.mine(vectors, corpus, round_, seed=self.seed, index=self.config.index)

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """Write one index over the classifiers."""
        model = OneVsAll(self.config, corpus)
        load_model(model, models[STAGE])
        index = ann.build(model.classifiers(), self.config.index, limit=ann.ASKED)
        save_retriever(out, corpus, method=self.name, encoder=model.encoder, indexes={"labels": Proposer(index)},
                       shortlist=0, scores=InnerProduct(index.vectors, {CLASSIFIER: index.dim}))
        if self.config.start != "label":
            return {}
        rng = seeds.generator(self.seed, "displacement")
        labels = np.sort(rng.permutation(corpus.n_labels)[:PRIOR_LABELS])
        start = encode_all(first_encoder(self.config, corpus), corpus.sides["label"], QUERY, labels)
        return displacement(start, index.vectors[labels], corpus.frequencies(corpus.training_rows())[labels])


__all__ = ["STAGE", "Astra", "AstraConfig", "OneVsAll", "displacement", "prior_bias"]
