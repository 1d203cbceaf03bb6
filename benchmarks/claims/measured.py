"""What is measured of a trained variant: the figures that claims are judged by, by name."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from xcmodels import metrics
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.astra import stages as astra
from xcmodels.methods.ngame.stages import EncoderModule
from xcmodels.methods.siamesexml.stages import SiameseModule
from xcmodels.methods.unidec import stages as unidec
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval import ann
from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.proposers import candidates
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import InnerProduct
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import TrainedMethod
from xcmodels.training.loop import device

JUDGED = 5000      # test queries, at most
Figures = dict[str, float]


def measured(trained: TrainedMethod, *, curve: bool) -> Figures:
    """Return the test figures of what was trained, of its halves where it has any, and what its method is asked."""
    corpus, retriever = trained.corpus, Retriever.load(trained.retriever)
    rows = np.sort(seeds.generator(0, "claims").permutation(len(corpus.sides["test"]))[:JUDGED])
    began = time.process_time()
    ids, _ = predict(retriever, corpus, 10, rows)
    figures = {**trained.measured, "ms a query": 1000 * (time.process_time() - began) / len(rows),
               **_precision(corpus, ids, rows)}
    if curve:
        figures |= _by_epoch(trained, rows)
    stages = [getattr(stage, "base", stage) for stage in trained.method.stages]
    for kind, asked in _ASKED.items():
        if isinstance(stages[0], kind):
            figures |= asked(trained, retriever, rows)
    return figures


def _precision(corpus: Corpus, ids: np.ndarray, rows: np.ndarray, suffix: str = "") -> Figures:
    """Return P and PSP, and the shares of P@5 that come from the tail half of the positives and from the head half."""
    frequencies = corpus.frequencies()
    inverse = 1 / metrics.propensity(frequencies, corpus.n_queries, *corpus.facts["propensity"])
    truth, filters = (pairs["test"].subset(rows) for pairs in (corpus.positives, corpus.filters))
    found = metrics.evaluate(ids, truth, filters, inverse, recall_ks=(ids.shape[1],))
    deciles = [row["P/5"] for row in metrics.by_decile(ids, truth, filters, frequencies, inverse, k=5)]
    figures = {**found, "P/5 tail": sum(deciles[:5]), "P/5 head": sum(deciles[5:])}
    return {name + suffix: value for name, value in figures.items()}


def _halves(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray,
            halves: Mapping[str, InnerProduct]) -> Figures:
    """Return the figures with each of these scores in place of the retriever's."""
    figures, whole = {}, retriever.scorer
    for name, half in halves.items():
        retriever.scorer = half
        figures |= _precision(trained.corpus, predict(retriever, trained.corpus, 10, rows)[0], rows, f" {name}")
    retriever.scorer = whole
    return figures


def _by_epoch(trained: TrainedMethod, rows: np.ndarray) -> Figures:
    """Return P@1 of the embeddings after every round of the first stage."""
    corpus, figures = trained.corpus, {}
    first = trained.method.stages[0]
    for name, round_ in trained.rounds.items():
        if round_.stage == first.name:
            model = read_model(first, corpus, trained.outs[name]).to(device())
            vectors = first.vectors(model, corpus)
            labels = vectors["labels"]()
            encoder = getattr(model, "encoder", model)
            ids = ann.build(labels, "exact").search(encode_all(encoder, corpus.sides["test"], QUERY, rows=rows), 50)[1]
            ids, _ = metrics.drop_filtered(ids, np.zeros(ids.shape), corpus.filters["test"].subset(rows), 10)
            figures[f"P/1 epoch {round_.last}"] = _precision(corpus, ids, rows)["P/1"]
    return figures


def _of_ngame(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the figures of both halves, and both sides of Theorem 1."""
    assert isinstance(retriever.scorer, TreeFusion)
    halves = {f"{name}s": InnerProduct(retriever.scorer.terms[term].matrix)
              for name, term in (("embedding", "encoder"), ("classifier", "classifier"))}
    plain = isinstance(trained.method.stages[0], EncoderModule)
    return _halves(trained, retriever, rows, halves) | (theorem_1(trained) if plain else {})


def theorem_1(trained: TrainedMethod, asked: int = 2000) -> Figures:
    """Return the share of (query, label) pairs that are r-hard and missed, and what bounds it (NGAME, Theorem 1).

    r is the distance within which half of the positive pairs lie; clusters are as large as the last ones of
    the first module, made of its last embeddings; a query is offered the positives of its cluster. Shares are of
    `asked` queries against all.
    """
    corpus, module = trained.corpus, trained.method.stages[0].module
    rows = corpus.training_rows()
    queries, labels = trained.vectors["queries"][rows], trained.vectors["labels"]
    positives = corpus.positives["train"].subset(rows)
    owner = np.repeat(np.arange(len(rows)), positives.lengths)
    apart = np.linalg.norm(queries[owner] - labels[positives.values], axis=1)
    radius = float(np.quantile(apart, 0.5))
    clusters = balanced_kmeans(queries, module.cluster_max, seed=0)
    drawn = seeds.generator(0, "theorem 1").permutation(len(rows))[:asked]
    offered = np.zeros((int(clusters.max()) + 1, corpus.n_labels), dtype=bool)
    offered[clusters[owner], positives.values] = True
    hard = _near(queries[drawn], labels, radius)
    for i, row in enumerate(drawn):
        hard[i, positives[row]] = False
    split = _near(queries[drawn], queries, 2 * radius) & (clusters[drawn][:, None] != clusters)
    missed, epsilon_1, epsilon_2 = (hard & ~offered[clusters[drawn]]).mean(), (apart > radius).mean(), split.mean()
    c_1, c_2 = theorem_constants(positives.lengths, np.bincount(positives.values, minlength=corpus.n_labels))
    return {"hard %": 100 * hard.mean(), "missed %": 100 * missed, "e1 %": 100 * epsilon_1, "e2 %": 100 * epsilon_2,
            "bound %": 100 * (c_1 * epsilon_1 + c_2 * epsilon_2), "c1": c_1, "c2": c_2}


def theorem_constants(of_query: np.ndarray, of_label: np.ndarray) -> tuple[float, float]:
    """Return c_1 and c_2 (NGAME, Theorem 4) of the positives of each query (N,) and each label (L,) that has any."""
    p, q = of_query, of_label[of_label > 0]
    n, n_labels = len(p), len(q)
    odds = (n - q) / q
    c_1 = q.mean() * (odds.mean() + odds.std() * n_labels**0.5) / n
    return float(c_1), float((p.mean() + p.std() * n**0.5) * n / (q.min() * n_labels))


def _near(first: np.ndarray, second: np.ndarray, radius: float) -> np.ndarray:
    """Return (n, m) bool: which of two sets of vectors of unit length lie within a distance."""
    return first @ second.T >= 1 - radius**2 / 2


def _of_unidec(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the figures of both halves end to end, of either, and the positives that a batch holds of a query."""
    (index,) = retriever.indexes.values()
    vectors, half = index.vectors, retriever.encoder.width(LABEL)
    figures = _positives_in_batches(trained) if isinstance(trained.method.stages[0], unidec.JointStage) else {}
    if vectors.shape[1] > half:
        first, second = vectors.copy(), vectors.copy()
        first[:, half:], second[:, :half] = 0, 0
        figures |= _halves(trained, retriever, rows, {
            "both": InnerProduct(vectors), "encoder": InnerProduct(first), "classifier": InnerProduct(second)})
    return figures


def _positives_in_batches(trained: TrainedMethod, beta: int = 1) -> Figures:
    """Return how many positives of a query stand in a batch where `beta` of each are picked (UniDEC, Figure 2b)."""
    stage, corpus = trained.method.stages[0], trained.corpus
    stage = unidec.JointStage(replace(stage.config, positives=beta, negatives=0))
    last = list(trained.rounds.values())[-1]
    figures = {}
    for name, mined in (("clustered", Mined(trained.mined[last.name].clusters)), ("random", Mined())):
        order = stage.order(corpus, mined, 0)
        size = stage.plan.rows(len(order))
        order = order[:4 * size]
        held = [stage.batch(corpus, last, mined, part, seeds.generator(0, "claims", "batch")).blocks["pool"].positives
                for part in np.split(order, range(size, len(order), size))]
        figures[f"positives, {name}"] = float(np.concatenate([each.sum(1).numpy() for each in held]).mean())
    return figures


def _of_astra(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the recall of the index that negatives are mined with, at as many as are mined."""
    classifiers = retriever.indexes["labels"].vectors
    queries = encode_all(retriever.encoder, trained.corpus.sides["test"], QUERY, rows=rows[:2000])
    index = ann.build(np.ascontiguousarray(classifiers), trained.method.stages[0].config.index)
    k = max(trained.method.stages[0].config.hard, 1)
    return {"recall of the index": 100 * ann.recall(index.search(queries, k)[1], classifiers, queries, k)}


def _of_siamesexml(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray, depth: int = 50) -> Figures:
    """Return the share of test positives that each index finds, and those of texts and centroids together."""
    corpus = trained.corpus
    queries = encode_all(retriever.encoder, corpus.sides["test"], QUERY, rows=rows)
    proposers, truth = retriever.proposers, corpus.positives["test"].subset(rows)
    wanted, figures = truth.keys(corpus.n_labels), {}
    for name, used, most in (("texts", ["texts"], depth), ("centroids", ["centroids"], depth),
                             ("both", ["texts", "centroids"], depth // 2), ("all three", list(proposers), depth)):
        ids = candidates([proposers[each] for each in used], queries, most)
        row, slot = np.nonzero(ids >= 0)
        figures[f"recall of {name}"] = 100 * float(np.isin(wanted, row * corpus.n_labels + ids[row, slot]).mean())
    return figures


_ASKED: Mapping[type, Callable[[TrainedMethod, Retriever, np.ndarray], Figures]] = {
    EncoderModule: _of_ngame, unidec.JointStage: _of_unidec, astra.JointStage: _of_astra,
    SiameseModule: _of_siamesexml}

__all__ = ["measured", "theorem_1", "theorem_constants"]
