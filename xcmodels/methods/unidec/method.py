"""UniDEC: a dual encoder and a classifier on one pass, over some picked labels a batch (Kharbanda et al., 2025).

A batch is made of clusters of queries; its labels are up to beta positives of each query and eta of its mined hard
negatives, and every positive that a query finds among them counts: pick-some-labels (section 3.1). The dual encoder
scores with one pair of heads, the classifier with a third head and a vector a label; either may be served, or both
end to end. DEPSL is the dual encoder alone; DPR, ANCE and DEXML are settings of it.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.batching import Batch, Block, Entries, epoch_order, pooled_block, sample_columns, sample_some
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import distinct
from xcmodels.method import Mined, Round, RowRule, Stage, Vectors
from xcmodels.methods.unidec.config import LOSSES, UnidecConfig
from xcmodels.mining import negatives, schedule
from xcmodels.nn import losses
from xcmodels.nn.autograd import direction
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, HeadConfig, Layout, build_encoder, encode_all, siamese
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.retrieval import ann
from xcmodels.retrieval.fusion import fit_fusion
from xcmodels.retrieval.proposers import Proposer, candidates
from xcmodels.retrieval.retriever import save_retriever
from xcmodels.retrieval.scorers import CLASSIFIER, ENCODER, Combine, InnerProduct
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import device

STAGE = "joint"
DUAL = "dual"


class Joint(Model):
    """An encoder with the heads of both, and a vector a label where there is a classifier."""

    def __init__(self, config: UnidecConfig, corpus: Corpus) -> None:
        super().__init__()
        self.encoder = build_encoder(config.encoder, corpus.idf, config.seed, layout(config))
        width = config.dim or self.encoder.trunk.dim
        self.labels = RowTable.zeros(corpus.n_labels, width) if config.classifies else None

    def tables(self) -> dict[str, RowTable]:
        """The token embeddings of a bag, and the classifiers."""
        return self.encoder.tables() | ({} if self.labels is None else {"labels": self.labels})


def layout(config: UnidecConfig) -> Layout:
    """Return the heads of the dual encoder, and the classifier's; a query is served as `config.serve` says."""
    dual = siamese(config.encoder, HeadConfig(config.head, config.dim if config.head == "tanh" else 0,
                                              config.dropout if config.head == "tanh" else 0.0))
    if not config.classifies:
        return Layout(dual.heads, {**dual.views, DUAL: (QUERY,)})
    names = {"both": (QUERY, CLASSIFIER), "encoder": (QUERY,), "classifier": (CLASSIFIER,)}[config.serve]
    return Layout({**dual.heads, CLASSIFIER: HeadConfig("linear", config.dim, config.dropout)},
                  {**dual.views, QUERY: names, DUAL: (QUERY,)})


class Unidec:
    """The method, for one configuration."""

    query_view = DUAL

    def __init__(self, config: UnidecConfig, name: str = "unidec") -> None:
        self.config, self.seed, self.name = config, config.seed, name

    def stages(self) -> list[Stage]:
        """One: both learn together."""
        config = self.config
        tables = {"tokens": RowRule(config.token_lr), "labels": RowRule(config.label_lr)}
        return [Stage(STAGE, config.epochs, config.batch_size, config.lr, tables, config.warmup, decay=config.decay,
                      least_steps=config.least_steps)]

    def settings(self, stage: str) -> dict[str, object]:
        """Training depends on everything but what is served and how it is indexed."""
        own = asdict(self.config)
        served = {name: own.pop(name) for name in ("serve", "unit", "fused", "fusion", "index")}
        return {**own, **({**served, "name": self.name} if stage == "retriever" else {})}

    def rounds(self) -> list[Round]:
        """Random epochs first, then a round for every refresh of clusters and hard negatives."""
        return schedule.rounds(STAGE, self.config, self.config.negatives * self.config.refresh_every)

    def build(self, corpus: Corpus, stage: str, vectors: dict[str, np.ndarray]) -> Model:
        """Build the encoder and the classifiers."""
        return Joint(self.config, corpus)

    def begin(self, model: Model, corpus: Corpus, before: Path | None) -> None:
        """Start each classifier at its label's embedding; most labels are too rare to learn one from nothing."""
        assert isinstance(model, Joint)
        if model.labels is not None:
            model.labels.fill(partial(encode_all, model.encoder, corpus.sides["label"], LABEL))

    def order(self, corpus: Corpus, round_: Round, mined: Mined, epoch: int) -> np.ndarray:
        """Training rows of an epoch: shuffled one by one, or by clusters."""
        rng = seeds.generator(self.seed, "order", round_.stage, epoch)
        return epoch_order(corpus.training_rows(), mined.clusters, rng)

    def batch(self, corpus: Corpus, round_: Round, mined: Mined, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """Queries against the pool of their picked positives and hard negatives."""
        picked = [sample_some(corpus.pulled, rows, self.config.positives, rng)[0]]
        if mined.negatives is not None:
            picked.append(sample_columns(mined.negatives[rows], self.config.negatives, rng))
        pool = np.arange(corpus.n_labels) if self.config.every_label else distinct(np.concatenate(picked))
        return Batch({"queries": Entries(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows)),
                      "labels": Entries(torch.from_numpy(pool), tokens=corpus.sides["label"].tokens(pool))},
                     {"pool": pooled_block(corpus, rows, pool)})

    def loss(self, model: Model, batch: Batch, stage: str) -> dict[str, torch.Tensor]:
        """The losses of the dual encoder and of the classifier, each both ways (sections 3.2 and 3.3)."""
        return self.terms(model, batch, self.encoder(model).pool(batch.sides))

    def encoder(self, model: Model) -> Encoder:
        """Return the encoder of a model."""
        assert isinstance(model, Joint)
        return model.encoder

    def terms(self, model: Model, batch: Batch, pooled: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The losses from the trunk's vectors of queries and labels."""
        assert isinstance(model, Joint)
        config, block, encoder = self.config, batch.blocks["pool"], model.encoder
        terms = {}
        if config.balance > 0:
            scores = encoder.view(pooled["queries"], DUAL) @ encoder.view(pooled["labels"], LABEL).T
            terms["encoder"] = config.balance * self._both_ways(scores / config.temperature, block)
        if model.labels is not None:
            rows, place = model.labels.gather(batch.sides["labels"].ids)
            scores = encoder.heads[CLASSIFIER](pooled["queries"]) @ rows[place].T / config.temperature
            terms["classifier"] = (1 - config.balance) * self._both_ways(scores, block)
            if config.bce:
                terms["bce"] = (1 - config.balance) * config.bce * losses.weighted_bce(
                    scores, block.positives, block.weights)
        return terms

    def _both_ways(self, scores: torch.Tensor, block: Block) -> torch.Tensor:
        """Return the loss of queries over labels and, for the share `symmetric`, of labels over queries."""
        loss, share = LOSSES[self.config.loss], self.config.symmetric
        there = loss(scores, block.positives, block.weights)
        if share == 0:
            return there
        weights = None if block.weights is None else block.weights.T
        return (1 - share) * there + share * loss(scores.T, block.positives.T, weights)

    def vectors(self, model: Model, corpus: Corpus) -> Vectors:
        """Embeddings of the training queries and of the labels by the dual encoder."""
        assert isinstance(model, Joint)
        return {"queries": partial(encode_all, model.encoder, corpus.sides["train"], DUAL),
                "labels": partial(encode_all, model.encoder, corpus.sides["label"], LABEL)}

    def judged(self, model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By the dual encoder, or the classifiers where they alone are trained."""
        assert isinstance(model, Joint)
        train = corpus.sides["train"]
        if model.labels is not None and self.config.serve == "classifier":
            return encode_all(model.encoder, train, QUERY, rows), model.labels.all()
        return encode_all(model.encoder, train, DUAL, rows), encode_all(model.encoder, corpus.sides["label"], LABEL)

    def mine(self, vectors: Vectors, corpus: Corpus, round_: Round) -> Mined:
        """Clusters of queries and hard negatives of each, by the embeddings of the dual encoder."""
        return negatives.mine(vectors, corpus, round_, seed=self.seed, index=self.config.index)

    def retriever(self, models: dict[str, Path], corpus: Corpus, vectors: dict[str, np.ndarray],
                  out: Path) -> dict[str, float]:
        """Write one index over what is served: label embeddings, classifiers, or both end to end (section 3.4)."""
        model = Joint(self.config, corpus)
        load_model(model, models[STAGE])
        model.to(device())
        halves = {}
        if self.config.serve != CLASSIFIER:
            halves[ENCODER] = encode_all(model.encoder, corpus.sides["label"], LABEL)
        if model.labels is not None and self.config.serve != ENCODER:
            weight = model.labels.weight.cpu()
            halves[CLASSIFIER] = (direction(weight) if self.config.unit else weight).numpy()
        index = ann.build(np.ascontiguousarray(np.concatenate(list(halves.values()), axis=1)), self.config.index,
                          limit=ann.ASKED)
        proposer, depth = Proposer(index), 0
        scores: Combine = InnerProduct(index.vectors, {name: half.shape[1] for name, half in halves.items()})
        measured: dict[str, float] = {}
        if self.config.fused and self.config.serve == "both":
            depth = self.config.fusion.shortlist
            queries = encode_all(model.encoder, corpus.sides["train"], QUERY, rows=corpus.validation)
            scores, measured = fit_fusion(corpus, queries, candidates([proposer], queries, depth),
                                          embeddings=halves[ENCODER], classifiers=halves[CLASSIFIER],
                                          trained=self.vectors(model, corpus)["queries"], config=self.config.fusion)
        save_retriever(out, corpus, method=self.name, encoder=model.cpu().encoder, indexes={"labels": proposer},
                       shortlist=depth, scores=scores)
        return measured


__all__ = ["CLASSIFIER", "STAGE", "Unidec", "UnidecConfig"]
