"""SiameseXML: a Siamese encoder trained on batches of labels, then a classifier a label (Dahiya et al., 2021).

Module I draws labels, not queries, into its batches, by a power of their frequency, so that rare labels are pulled and
mined, too. What it trains is the intermediate embedding, which every later module reads: indexes, centroids, starts of
classifiers.
Module II mines hard negatives from three indexes: of label texts smoothed over correlated labels, of label centroids,
and of training queries, whose labels are proposed. Module III starts classifiers at the smoothed label
embeddings; module IV trains them with a residual layer over the frozen encoder, or in SiameseXML++ with its trunk.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from xcmodels import metrics
from xcmodels.data import seeds
from xcmodels.data.batching import Batch, Entries, drawn_block, own_block, sample_pair
from xcmodels.data.centroids import label_centroids, queries_of, unit
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import distinct
from xcmodels.method import Mined, Round, RowRule, Stage, Vectors
from xcmodels.methods.siamesexml.config import LikelihoodConfig, SiamesexmlConfig
from xcmodels.methods.siamesexml.shortlist import Shortlist, correlation
from xcmodels.mining.negatives import may_be_pushed, spared_pairs
from xcmodels.nn import losses
from xcmodels.nn.autograd import direction
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all, siamese
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.retrieval import ann
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.proposers import Proposer, best_of, candidates
from xcmodels.retrieval.retriever import save_retriever
from xcmodels.retrieval.scorers import InnerProduct
from xcmodels.training.checkpoint import load_model, load_part
from xcmodels.training.loop import device

SIAMESE, EXTREME = "siamese", "extreme"
CHUNK = 2048        # queries whose shortlists are ranked at once
INTERMEDIATE = "intermediate"    # the view of a query before any layer of module IV: what is indexed


def siamese_layout(config: SiamesexmlConfig) -> Layout:
    """Return module I's heads: the intermediate embeddings of queries and labels, on which its loss is."""
    return siamese(config.encoder, None if config.head == "residual" else HeadConfig(config.head))


def extreme_layout(config: SiamesexmlConfig) -> Layout:
    """Return module I's heads and over a query's a residual layer a partition of labels; a query shows all of them."""
    made = siamese_layout(config)
    layer = HeadConfig("residual", dropout=config.dropout, over=QUERY)
    names = tuple(f"{EXTREME}{part}" for part in range(config.partitions))
    return Layout({**made.heads, **dict.fromkeys(names, layer)},
                  {**made.views, QUERY: (QUERY, *names), INTERMEDIATE: (QUERY,), EXTREME: names})


class Extreme(Model):
    """Module IV: residual layers over module I's embeddings, and the classifiers N(z + eta), kept as z + eta."""

    def __init__(self, config: SiamesexmlConfig, corpus: Corpus) -> None:
        super().__init__()
        self.partitions, self.joint = config.partitions, config.joint
        self.encoder = build_encoder(config.encoder, corpus.idf, config.seed, extreme_layout(config))
        self.labels = RowTable.zeros(corpus.n_labels, self.encoder.trunk.dim)
        # Queries and labels share the trunk and not the heads: of those, module IV would train the queries' alone.
        for name in siamese_layout(config).heads:
            self.encoder.heads[name].requires_grad_(False)
        if not config.joint:
            self.encoder.trunk.requires_grad_(False)

    def tables(self) -> dict[str, RowTable]:
        """The classifiers, and in SiameseXML++ the token embeddings."""
        return {"labels": self.labels} | (self.encoder.tables() if self.joint else {})

    def forward(self, batch: Batch, kappa: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines (R, C) of queries with classifiers, and which of them count (R, C) bool.

        Those of positives do, and of each query's hardest labels, `kappa` for each of its positives.
        """
        block, side = batch.blocks["own"], batch.sides["queries"]
        assert block.columns is not None and block.weights is not None
        inner = side.vectors if side.vectors is not None else \
            self.encoder.view(self.encoder.pool(batch.sides)["queries"], INTERMEDIATE)
        layers = [self.encoder.heads[name] for name in self.encoder.layout.views[EXTREME]]
        embedded = torch.stack([direction(layer(inner)) for layer in layers], 1).flatten(0, 1)
        with torch.no_grad():   # a label that is not among the hardest is read, and not trained
            every = self._cosines(embedded, block.columns, block.weights > 0)
            pushed = every.masked_fill(block.positives | (block.weights == 0), -torch.inf)
            rank = pushed.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            most = kappa * block.positives.sum(1, keepdim=True)
            counts = (block.weights > 0) & (block.positives | (rank < most))
        return self._cosines(embedded, block.columns, counts), counts

    def _cosines(self, embedded: torch.Tensor, columns: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the cosines that are wanted, (R, C), 0 elsewhere; label l is scored by part l mod partitions."""
        row, slot = torch.nonzero(wanted, as_tuple=True)
        labels = columns[row, slot]
        found = self.labels.score_pairs(embedded, row * self.partitions + labels % self.partitions, labels, unit=True)
        return embedded.new_zeros(columns.shape).index_put((row, slot), found)


class Siamesexml:
    """The method, for one configuration."""

    def __init__(self, config: SiamesexmlConfig) -> None:
        self.config, self.seed = config, config.seed
        self.name = "siamesexml++" if config.joint else "siamesexml"

    def stages(self) -> list[Stage]:
        """Module I, then module IV."""
        one, four = self.config.siamese, self.config.extreme
        tables = {"labels": RowRule(four.table_lr), **({"tokens": RowRule(self.config.token_lr)} if self.config.joint
                                                       else {})}
        return [Stage(SIAMESE, one.epochs, one.batch_size, one.lr, {"tokens": RowRule(one.table_lr)}, one.warmup,
                      least_steps=one.least_steps),
                Stage(EXTREME, four.epochs, four.batch_size, four.lr, tables, four.warmup,
                      frozen=not self.config.joint, least_steps=four.least_steps)]

    def settings(self, stage: str) -> dict[str, object]:
        """Module I depends on its own settings, IV on its own and what is mined, the retriever on the shortlist."""
        config = self.config
        mined = {"correlation": config.correlation, "shortlist": config.shortlist}
        own: dict[str, dict[str, object]] = {
            SIAMESE: {"siamese": config.siamese, "encoder": config.encoder, "head": config.head,
                      "power": config.power, "centroid": config.centroid},
            EXTREME: {"extreme": config.extreme, "mined": config.mined, "positives": config.positives,
                      "partitions": config.partitions, "joint": config.joint, "token_lr": config.token_lr,
                      "dropout": config.dropout, **mined},
            "retriever": {"index": config.index, "scored_centroid": config.scored_centroid, **mined}}
        return {"seed": self.seed, **own[stage]}

    def rounds(self) -> list[Round]:
        """One each; module IV mines once, with what module I made."""
        return [Round(SIAMESE, 0, 0, self.config.siamese.epochs),
                Round(EXTREME, 0, 0, self.config.extreme.epochs, negatives=self.config.mined)]

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the Siamese encoder (I), or residual layers and classifiers (IV)."""
        if stage == EXTREME:
            return Extreme(self.config, corpus)
        return build_encoder(self.config.encoder, corpus.idf, self.seed, siamese_layout(self.config))

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """Module III: take over the encoder, and start classifiers at the smoothed label embeddings."""
        if isinstance(model, Extreme):
            assert before is not None
            load_part(model.encoder, before)
            inner = encode_all(model.encoder, corpus.sides["label"], LABEL)
            model.labels.fill(self._smoothed(corpus, inner).__getitem__)

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Labels drawn by frequency^power, as many as there are (I); training rows, shuffled (IV)."""
        rng = seeds.generator(self.seed, "order", round_.stage, epoch)
        if round_.stage == EXTREME:
            return rng.permutation(corpus.training_rows())
        frequencies = queries_of(corpus).lengths
        known = np.flatnonzero(frequencies)
        share = frequencies[known] ** self.config.power
        return rng.choice(known, len(known), p=share / share.sum())

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Labels against one query of each, and a second one for its centroid (I); queries and their shortlist (IV)."""
        if round_.stage == EXTREME:
            assert mined.negatives is not None
            asked = Entries(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows)) if self.config.joint \
                else Entries(torch.from_numpy(rows), vectors=torch.from_numpy(mined.vectors["queries"][rows]))
            return Batch({"queries": asked},
                         {"own": own_block(corpus, rows, self.config.positives, mined.negatives[rows], rng)})
        queries = queries_of(corpus)
        first, second = sample_pair(queries, rows, rng)
        text, block = corpus.sides["train"].tokens, drawn_block(corpus, rows, first)
        # The centroid of a single query is that query, which cannot be pulled to itself but would be pushed.
        assert block.weights is not None
        several = replace(block, weights=block.weights & torch.from_numpy(first != second)[:, None])
        return Batch({"labels": Entries(torch.from_numpy(rows), tokens=corpus.sides["label"].tokens(rows)),
                      "queries": Entries(torch.from_numpy(first), tokens=text(first)),
                      "seconds": Entries(torch.from_numpy(second), tokens=text(second))},
                     {"text": block, "centroid": several})

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """Equation 6 (I), or the incomplete negative log-likelihood over classifiers (IV)."""
        if isinstance(model, Extreme):
            config, block = self.config.extreme, batch.blocks["own"]
            scores, counts = model(batch, config.negatives)
            assert block.weights is not None
            return {"nll": losses.bounded_nll(scores, block.positives, block.weights * counts, c=config.c, d=config.d,
                                              hard_negatives=counts.sum(1))}
        assert isinstance(model, Encoder)
        config, share = self.config.siamese, self.config.centroid
        pooled = model.pool(batch.sides, ("queries", "seconds"))
        queries, seconds = model.view(pooled["queries"], QUERY), model.view(pooled["seconds"], QUERY)
        against = {"text": (1 - share, model.view(pooled["labels"], LABEL)),
                   "centroid": (share, direction(queries + seconds))}
        most = torch.full((len(queries),), config.negatives, device=queries.device)
        return {name: part * losses.bounded_nll(labels @ queries.T, block.positives, block.weights, c=config.c,
                                                d=config.d, hard_negatives=most)
                for name, (part, labels) in against.items() if part for block in (batch.blocks[name],)}

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """Intermediate embeddings of the training queries and of the labels."""
        encoder, view = (model.encoder, INTERMEDIATE) if isinstance(model, Extreme) else (model, QUERY)
        assert isinstance(encoder, Encoder)
        return {"queries": partial(encode_all, encoder, corpus.sides["train"], view),
                "labels": partial(encode_all, encoder, corpus.sides["label"], LABEL)}

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By the intermediate embeddings (I), or the classifiers, each under its partition's residual layer (IV)."""
        train = corpus.sides["train"]
        if not isinstance(model, Extreme):
            assert isinstance(model, Encoder)
            return encode_all(model, train, QUERY, rows), encode_all(model, corpus.sides["label"], LABEL)
        labels, parts = unit(model.labels.all()), model.partitions
        apart = np.zeros((len(labels), parts, labels.shape[1]), np.float32)
        apart[np.arange(len(labels)), np.arange(len(labels)) % parts] = labels
        return encode_all(model.encoder, train, EXTREME, rows), apart.reshape(len(labels), -1)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """Module II: the best labels of each training query's shortlist that are none of its own."""
        queries, labels = vectors["queries"](), vectors["labels"]()
        proposers = self._proposers(corpus, queries, labels)
        shortlist = Shortlist(proposers, InnerProduct(labels + proposers["centroids"].index.vectors))
        rows = corpus.training_rows()
        negatives = np.full((len(queries), round_.negatives), -1, dtype=np.int32)
        for start in range(0, len(rows), CHUNK):
            part = rows[start:start + CHUNK]
            negatives[part] = shortlist.best(queries[part], spared_pairs(corpus, part), self.config.shortlist,
                                             round_.negatives)
        return Mined(negatives=negatives)

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """Write the three indexes and the classifiers, mixed by the alpha that is best on the validation split.

        Once that is found, the validation queries propose labels and count in centroids as the others do.
        """
        model = Extreme(self.config, corpus)
        load_model(model, models[EXTREME])
        if self.config.joint:
            vectors = {side: make() for side, make in self.vectors(model.to(device()), corpus).items()}
            model.cpu()
        classifiers = direction(model.labels.weight).numpy()
        queries, labels = vectors["queries"], vectors["labels"]
        held = self._proposers(corpus, queries, labels)
        alpha, measured = self._best_alpha(self._mix(classifiers, labels, held), held, model.encoder, corpus)
        served = self._proposers(corpus, queries, labels, every=True)
        save_retriever(out, corpus, method=self.name, encoder=model.encoder, indexes=served,
                       shortlist=self.config.shortlist, scores=self._mix(classifiers, labels, served, alpha))
        return measured

    def _mix(self, classifiers: np.ndarray, labels: np.ndarray, proposers: Mapping[str, Proposer],
             alpha: float = 0.5) -> CentroidMix:
        """Return the score by classifiers, label embeddings and the centroids that `proposers` has an index of."""
        share, centroids = self.config.scored_centroid, proposers["centroids"].index.vectors
        return CentroidMix(classifiers, labels + np.float32(share) * centroids, centroids, self.config.partitions,
                           alpha, share)

    def _best_alpha(self, mix: CentroidMix, proposers: Mapping[str, Proposer], encoder: Encoder,
                    corpus: Corpus) -> tuple[float, dict[str, float]]:
        """Return the alpha of the highest P@1 on the validation split, and what it reached; a half without a split."""
        rows = corpus.validation
        if not len(rows):
            return mix.alpha, {}
        queries = encode_all(encoder, corpus.sides["train"], QUERY, rows=rows)
        ids = candidates(proposers.values(), queries, self.config.shortlist)
        ids[~may_be_pushed(ids, corpus.filters["train"].subset(rows).keys(corpus.n_labels), corpus.n_labels)] = -1
        # Minus infinity, the score of no label, times an alpha of 0 would be no number.
        classified, similar = (np.maximum(replace(mix, alpha=alpha)(queries, ids), -1e9) for alpha in (1.0, 0.0))
        truth, reached = corpus.positives["train"].subset(rows), {}
        for alpha in np.linspace(0, 1, 11).round(1).tolist():
            best, _ = best_of(ids, np.where(ids >= 0, alpha * classified + (1 - alpha) * similar, -np.inf), 1)
            reached[alpha] = 100 * float(metrics.judge(best, truth, None, corpus.n_labels).hits.mean())
        alpha = max(reached, key=reached.__getitem__)
        return alpha, {"alpha": alpha, "validation/P/1": reached[alpha], "validation/P/1/classifiers": reached[1.0],
                       "validation/P/1/embeddings": reached[0.0]}

    def _smoothed(self, corpus: Corpus, inner: np.ndarray) -> np.ndarray:
        """Return the label embeddings averaged over correlated labels, at unit length (module II)."""
        return unit(correlation(corpus, self.seed) @ inner) if self.config.correlation else inner

    def _proposers(self, corpus: Corpus, queries: np.ndarray, labels: np.ndarray,
                   every: bool = False) -> dict[str, Proposer]:
        """Return the three indexes over intermediate embeddings.

        every: also of the queries of the validation split.
        """
        rows = distinct(queries_of(corpus, every).values)
        centroids = label_centroids(corpus, queries, every)
        index = partial(ann.build, kind=self.config.index, limit=ann.ASKED)
        return {"texts": Proposer(index(self._smoothed(corpus, labels))), "centroids": Proposer(index(centroids)),
                "queries": Proposer(index(queries[rows]), corpus.pulled.subset(rows))}


__all__ = ["EXTREME", "INTERMEDIATE", "SIAMESE", "LikelihoodConfig", "Siamesexml", "SiamesexmlConfig"]
