"""SiameseXML: a Siamese encoder trained on batches of labels, then classifiers.

Dahiya et al., 2021. Module I draws labels, not queries, into its batches, by a power of their frequency, so that rare
labels are trained, too. It trains the intermediate embedding, which every later module uses: in indexes, in centroids,
and to initialise classifiers.
Module II mines hard negatives from three indexes: of label texts smoothed over correlated labels, of label centroids,
and of training queries, whose labels are proposed. Module III starts classifiers at the smoothed label
embeddings; module IV trains them with a residual layer over the frozen encoder, or in SiameseXML++ with its backbone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, BatchSide, label_block, sample_pair, shortlist_block, with_rejected
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor
from xcmodels.method import EncoderStage, Mined, Round, SideVectors, Stage, Vectors, embeddings
from xcmodels.methods.siamesexml.config import SiamesexmlConfig
from xcmodels.methods.siamesexml.shortlist import proposers, shortlists, smoothed
from xcmodels.mining.refresh import excluded_pairs
from xcmodels.nn import losses
from xcmodels.nn.autograd import normalise
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all, siamese
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.retrieval.centroids import queries_of
from xcmodels.retrieval.proposers import best_of
from xcmodels.retrieval.scorers import InnerProduct
from xcmodels.training.checkpoint import load_part
from xcmodels.training_plan import TrainingPlan

SIAMESE, EXTREME = "siamese", "extreme"
CHUNK = 2048        # queries whose shortlists are ranked at once
INTERMEDIATE = "intermediate"    # the view of a query before module IV, which is indexed


def siamese_layout(config: SiamesexmlConfig) -> Layout:
    """Return module I's heads, for the intermediate embeddings of queries and labels, which its loss is over."""
    return siamese(config.encoder, None if config.head == "residual" else HeadConfig(config.head))


def extreme_layout(config: SiamesexmlConfig) -> Layout:
    """Return module I's heads, and over a query's head a residual layer per partition of the labels."""
    base = siamese_layout(config)
    layer = HeadConfig("residual", dropout=config.dropout, over=QUERY)
    names = tuple(f"{EXTREME}{part}" for part in range(config.partitions))
    return Layout({**base.heads, **dict.fromkeys(names, layer)},
                  {**base.views, QUERY: (QUERY, *names), INTERMEDIATE: (QUERY,), EXTREME: names})


class Extreme(Model):
    """Module IV: residual layers over module I's embeddings, and the classifiers N(z + eta), kept as z + eta."""

    def __init__(self, config: SiamesexmlConfig, corpus: Corpus) -> None:
        super().__init__()
        self.partitions = config.partitions
        module = config.extreme if config.joint else config.siamese    # which trained the token embeddings last
        self.encoder = build_encoder(config.encoder, corpus.idf, config.seed, extreme_layout(config),
                                     module.table_dtype)
        self.labels = RowTable.zeros(corpus.n_labels, self.encoder.backbone.dim, config.extreme.table_dtype)
        # queries and labels share the backbone, not the heads, of which module IV would train only the queries'
        for name in siamese_layout(config).heads:
            self.encoder.heads[name].requires_grad_(False)
        if not config.joint:
            self.encoder.backbone.requires_grad_(False)

    def forward(self, batch: Batch, kappa: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines (R, C) of queries with classifiers, and which of them count (R, C) bool.

        Positives count, and each query's hardest negatives, `kappa` for each positive that it has, drawn or not.
        """
        block, side = batch.blocks["shortlist"], batch.sides["queries"]
        assert block.columns is not None and block.weights is not None and block.n_positives is not None
        intermediate = side.vectors if side.vectors is not None else \
            self.encoder.view(self.encoder.pool(batch.sides)["queries"], INTERMEDIATE)
        layers = [self.encoder.heads[name] for name in self.encoder.layout.views[EXTREME]]
        embedded = torch.stack([normalise(layer(intermediate)) for layer in layers], 1).flatten(0, 1)
        with torch.no_grad():   # other labels are read, but not trained
            cosines = self._cosines(embedded, block.columns, block.weights > 0)
            hardness = cosines.masked_fill(block.positives | (block.weights == 0), -torch.inf)
            rank = hardness.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            most = kappa * block.n_positives[:, None]
            counts = (block.weights > 0) & (block.positives | (rank < most))
        return self._cosines(embedded, block.columns, counts), counts

    def _cosines(self, embedded: torch.Tensor, columns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the cosines where `mask`, (R, C), 0 elsewhere; label l is scored by part l mod partitions."""
        row, slot = torch.nonzero(mask, as_tuple=True)
        labels = columns[row, slot]
        cosines = self.labels.score_pairs(embedded, row * self.partitions + labels % self.partitions, labels, unit=True)
        return embedded.new_zeros(columns.shape).index_put((row, slot), cosines)


class SiameseModule(EncoderStage[Encoder]):
    """Module I: trains the encoder on batches of labels."""

    name, query_sides = SIAMESE, ("queries", "seconds")

    def __init__(self, config: SiamesexmlConfig) -> None:
        module = config.siamese
        self.config, self.seed = config, config.seed
        self.plan = TrainingPlan.of(module, {"tokens": module.rule(module.table_lr)})
        self.rounds = [Round(SIAMESE, 0, 0, module.epochs)]
        self.settings = {"seed": config.seed, "siamese": module, "encoder": config.encoder, "head": config.head,
                         "power": config.power, "centroid": config.centroid}

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Encoder:
        config = self.config
        return build_encoder(config.encoder, corpus.idf, self.seed, siamese_layout(config), config.siamese.table_dtype)

    def order(self, corpus: Corpus, mined: Mined, epoch: int) -> np.ndarray:
        """Return labels drawn by frequency^power, as many as have a training query."""
        rng = seeds.generator(self.seed, "order", SIAMESE, epoch)
        frequencies = queries_of(corpus, with_validation=False).lengths
        labels = np.flatnonzero(frequencies)
        share = frequencies[labels] ** self.config.power
        return rng.choice(labels, len(labels), p=share / share.sum())

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Return labels against one query of each, and a second one for its centroid."""
        queries = queries_of(corpus, with_validation=False)
        first, second = sample_pair(queries, rows, rng)
        train, block = corpus.sides["train"], label_block(corpus, rows, first)
        # the centroid of a single query is that query: it has no positive, but would have negatives
        assert block.weights is not None
        with_two = replace(block, weights=block.weights.masked_fill(torch.from_numpy(first == second)[:, None], 0))
        return Batch({"labels": BatchSide(torch.from_numpy(rows), tokens=corpus.sides["label"].tokens(rows)),
                      "queries": BatchSide(torch.from_numpy(first), tokens=train.tokens(first)),
                      "seconds": BatchSide(torch.from_numpy(second), tokens=train.tokens(second))},
                     {"text": block, "centroid": with_two})

    def terms(self, model: Encoder, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return equation 6: the bounded likelihood of queries with label texts, and with label centroids."""
        config, share = self.config.siamese, self.config.centroid
        queries, seconds = model.view(pooled["queries"], QUERY), model.view(pooled["seconds"], QUERY)
        against = {"text": (1 - share, model.view(pooled["labels"], LABEL)),
                   "centroid": (share, normalise(queries + seconds))}
        most = torch.full((len(queries),), config.negatives, device=queries.device)
        return {name: weight * losses.bounded_nll(
            labels @ queries.T, batch.blocks[name].positives, batch.blocks[name].weights, c=config.c, d=config.d,
            hard_negatives=most) for name, (weight, labels) in against.items() if weight}


class ExtremeModule(Stage[Extreme]):
    """Modules II to IV: mine, then train classifiers and residual layers; in SiameseXML++ also the backbone."""

    name = EXTREME

    def __init__(self, config: SiamesexmlConfig) -> None:
        module = config.extreme
        self.config, self.seed, self.on_fixed_vectors = config, config.seed, not config.joint
        tokens = {"tokens": module.rule(config.token_lr)} if config.joint else {}
        self.plan = TrainingPlan.of(module, {"labels": module.rule(module.table_lr), **tokens})
        self.rounds = [Round(EXTREME, 0, 0, module.epochs, n_negatives=config.mined)]
        self.settings = {"seed": config.seed, "extreme": module, **{name: getattr(config, name) for name in (
            "mined", "positives", "partitions", "joint", "token_lr", "dropout", "correlation", "shortlist", "index")}}

    def build(self, corpus: Corpus, vectors: Mapping[str, np.ndarray]) -> Extreme:
        return Extreme(self.config, corpus)

    def begin(self, model: Extreme, corpus: Corpus, before: Path | None) -> None:
        """Load the encoder, and initialise classifiers with the smoothed label embeddings (module III)."""
        assert before is not None
        load_part(model.encoder, before)
        embeddings = encode_all(model.encoder, corpus.sides["label"], LABEL)
        model.labels.set_all(smoothed(self.config, corpus, embeddings).__getitem__)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        assert mined.negatives is not None
        queries = BatchSide(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows)) if self.config.joint \
            else BatchSide(torch.from_numpy(rows), vectors=torch.from_numpy(mined.vectors["queries"][rows]))
        hard = with_rejected(corpus, rows, mined.negatives[rows])
        return Batch({"queries": queries},
                     {"shortlist": shortlist_block(corpus, rows, self.config.positives, hard, rng)})

    def loss(self, model: Extreme, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the incomplete negative log-likelihood over classifiers."""
        config, block = self.config.extreme, batch.blocks["shortlist"]
        scores, counts = model(batch, config.negatives)
        assert block.weights is not None
        return {"nll": losses.bounded_nll(scores, block.positives, block.weights * counts, c=config.c, d=config.d,
                                          hard_negatives=counts.sum(1))}

    def vectors(self, model: Extreme, corpus: Corpus) -> Mapping[str, SideVectors]:
        """Return the intermediate embeddings of the training queries and of the labels."""
        return {"queries": embeddings(model.encoder, corpus.sides["train"], INTERMEDIATE),
                "labels": embeddings(model.encoder, corpus.sides["label"], LABEL)}

    def ranking_vectors(self, model: Extreme, corpus: Corpus, mined: Mined,
                        rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return queries under all residual layers, concatenated, and classifiers at their partition's dimensions."""
        labels, parts = normalise(model.labels.read_all()), model.partitions
        spread = np.zeros((len(labels), parts, labels.shape[1]), np.float32)
        spread[np.arange(len(labels)), np.arange(len(labels)) % parts] = labels
        return encode_all(model.encoder, corpus.sides["train"], EXTREME, rows), spread.reshape(len(labels), -1)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round, executor: Executor = IN_PROCESS) -> Mined:
        """Return the best labels of each training query's shortlist, without its own labels (module II)."""
        queries, labels = vectors["queries"](), vectors["labels"]()
        indexes = proposers(self.config, corpus, queries, labels)
        scores = InnerProduct(labels + indexes["centroids"].index.vectors)
        rows = corpus.training_rows()
        negatives = np.full((len(queries), round_.n_negatives), -1, dtype=np.int32)
        for start in range(0, len(rows), CHUNK):
            part = rows[start:start + CHUNK]
            excluded = excluded_pairs(corpus, part)
            ids = shortlists(indexes, queries[part], self.config.shortlist, excluded, corpus.n_labels)
            best, _ = best_of(ids, scores(queries[part], ids), round_.n_negatives)
            negatives[part, :best.shape[1]] = best
        return Mined(negatives=negatives)
