"""The figures of a trained variant by which claims are tested: test metrics, and more for each family of methods."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from xcmodels import metrics
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.method import Mined
from xcmodels.methods.astra import stages as astra
from xcmodels.methods.ngame.stages import ClassifierModule
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.methods.siamesexml.stages import ExtremeModule
from xcmodels.methods.unidec import stages as unidec
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.devices import device
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.predictions import drop_filtered
from xcmodels.retrieval import ann
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.proposers import candidates
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import InnerProduct, Scorer
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import TrainedMethod, embed

MAX_TEST_QUERIES = 5000
Figures = dict[str, float]


def test_figures(trained: TrainedMethod, *, curve: bool) -> Figures:
    """Return the test metrics of a trained method, and the figures of its family by name."""
    corpus, retriever = trained.corpus, Retriever.load(trained.retriever)
    rows = np.sort(seeds.generator(0, "claims").permutation(len(corpus.sides["test"]))[:MAX_TEST_QUERIES])
    start = time.process_time()
    ids, _ = predict(retriever, corpus, 10, rows)
    figures = {**trained.measured, "ms a query": 1000 * (time.process_time() - start) / len(rows),
               **_precision(corpus, ids, rows)}
    if curve:
        figures |= _by_epoch(trained, rows)
    for kind, more_figures in _BY_LAST_STAGE.items():
        if isinstance(trained.method.stages[-1], kind):
            figures |= more_figures(trained, retriever, rows)
    return figures


def _precision(corpus: Corpus, ids: np.ndarray, rows: np.ndarray, suffix: str = "") -> Figures:
    """Return all metrics, and the parts of P@5 that come from the tail and the head half of the positives."""
    frequencies = corpus.frequencies()
    inverse = inverse_propensity(corpus)
    truth, filters = (pairs["test"].subset(rows) for pairs in (corpus.positives, corpus.filters))
    values = metrics.evaluate(ids, truth, filters, inverse, recall_ks=(ids.shape[1],))
    deciles = [row["P/5"] for row in metrics.by_decile(ids, truth, filters, frequencies, inverse, k=5)]
    figures = {**values, "P/5 tail": sum(deciles[:5]), "P/5 head": sum(deciles[5:])}
    return {name + suffix: value for name, value in figures.items()}


def _with_scorers(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray,
                  scorers: Mapping[str, Scorer]) -> Figures:
    """Return the metrics with each of these scorers in place of the retriever's own."""
    figures, own_scorer = {}, retriever.scorer
    for name, scorer in scorers.items():
        retriever.scorer = scorer
        figures |= _precision(trained.corpus, predict(retriever, trained.corpus, 10, rows)[0], rows, f" {name}")
    retriever.scorer = own_scorer
    return figures


def _by_epoch(trained: TrainedMethod, rows: np.ndarray) -> Figures:
    """Return P@1 of the embeddings after each round of the first stage."""
    corpus, figures = trained.corpus, {}
    first = trained.method.stages[0]
    for name, round_ in trained.rounds.items():
        if round_.stage == first.name:
            model = read_model(first, corpus, trained.outs[name]).to(device())
            vectors = first.vectors(model, corpus)
            labels = vectors["labels"]()
            encoder = getattr(model, "encoder", model)
            ids = ann.build(labels, "exact").search(encode_all(encoder, corpus.sides["test"], QUERY, rows=rows), 50)[1]
            ids, _ = drop_filtered(ids, np.zeros(ids.shape), corpus.filters["test"].subset(rows), 10)
            figures[f"P/1 epoch {round_.stop}"] = _precision(corpus, ids, rows)["P/1"]
    return figures


def _of_ngame(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the metrics of embeddings and of classifiers alone."""
    assert isinstance(retriever.scorer, TreeFusion)
    return _with_scorers(trained, retriever, rows, {
        f"{name}s": InnerProduct(retriever.scorer.terms[term].matrix)
        for name, term in (("embedding", "encoder"), ("classifier", "classifier"))})


def _of_module_m1(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return both sides of NGAME's Theorem 1."""
    return theorem_1(trained)


def theorem_1(trained: TrainedMethod, max_queries: int = 2000) -> Figures:
    """Return the share of r-hard (query, label) pairs that clustered batches miss, and its bound (NGAME, Theorem 1).

    r is the median distance of positive pairs. Clusters have the final size of module I and are made of its final
    embeddings; the labels of a batch are the positives of a cluster. Shares are over `max_queries` queries.
    """
    corpus, stage = trained.corpus, trained.method.stages[0]
    rows, vectors = corpus.training_rows(), embed(corpus, stage, trained.models[stage.name])
    queries, labels = vectors["queries"][rows], vectors["labels"]
    positives = corpus.positives["train"].subset(rows)
    owner = np.repeat(np.arange(len(rows)), positives.lengths)
    distances = np.linalg.norm(queries[owner] - labels[positives.values], axis=1)
    radius = float(np.quantile(distances, 0.5))
    clusters = balanced_kmeans(queries, stage.module.cluster_max, seed=0)
    drawn = seeds.generator(0, "theorem 1").permutation(len(rows))[:max_queries]
    offered = np.zeros((int(clusters.max()) + 1, corpus.n_labels), dtype=bool)
    offered[clusters[owner], positives.values] = True
    hard = _near(queries[drawn], labels, radius)
    for i, row in enumerate(drawn):
        hard[i, positives[row]] = False
    split = _near(queries[drawn], queries, 2 * radius) & (clusters[drawn][:, None] != clusters)
    missed, epsilon_1, epsilon_2 = (hard & ~offered[clusters[drawn]]).mean(), (distances > radius).mean(), split.mean()
    c_1, c_2 = theorem_constants(positives.lengths, np.bincount(positives.values, minlength=corpus.n_labels))
    return {"hard %": 100 * hard.mean(), "missed %": 100 * missed, "e1 %": 100 * epsilon_1, "e2 %": 100 * epsilon_2,
            "bound %": 100 * (c_1 * epsilon_1 + c_2 * epsilon_2), "c1": c_1, "c2": c_2}


def theorem_constants(query_counts: np.ndarray, label_counts: np.ndarray) -> tuple[float, float]:
    """Return c_1 and c_2 (NGAME, Theorem 4) from the number of positives of each query (N,) and each label (L,)."""
    p, q = query_counts, label_counts[label_counts > 0]
    n, n_labels = len(p), len(q)
    odds = (n - q) / q
    c_1 = q.mean() * (odds.mean() + odds.std() * n_labels**0.5) / n
    return float(c_1), float((p.mean() + p.std() * n**0.5) * n / (q.min() * n_labels))


def _near(first: np.ndarray, second: np.ndarray, radius: float) -> np.ndarray:
    """Return (n, m) bool: which pairs of unit vectors are at most `radius` apart."""
    return first @ second.T >= 1 - radius**2 / 2


def _of_unidec(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the metrics of both halves, of each alone, and the positives of a query in a batch."""
    (index,) = retriever.indexes.values()
    vectors, half = index.vectors, retriever.encoder.width(LABEL)
    figures = _positives_in_batches(trained) if isinstance(trained.method.stages[0], unidec.UnidecStage) else {}
    if vectors.shape[1] > half:
        first, second = vectors.copy(), vectors.copy()
        first[:, half:], second[:, :half] = 0, 0
        figures |= _with_scorers(trained, retriever, rows, {
            "both": InnerProduct(vectors), "encoder": InnerProduct(first), "classifier": InnerProduct(second)})
    return figures


def _positives_in_batches(trained: TrainedMethod) -> Figures:
    """Return how many positives of a query are in a batch that picks one for each (UniDEC, Figure 2b; beta = 1)."""
    stage, corpus = trained.method.stages[0], trained.corpus
    stage = unidec.UnidecStage(replace(stage.config, positives=1, negatives=0))
    last = list(trained.rounds.values())[-1]
    figures = {}
    for name, mined in (("clustered", Mined(trained.mined[last.name].clusters)), ("random", Mined())):
        order = stage.order(corpus, mined, 0)
        blocks = [stage.batch(corpus, last, mined, part, seeds.generator(0, "claims", "batch")).blocks["pool"].positives
                  for part in stage.plan.batches(order)[:4]]
        figures[f"positives, {name}"] = float(np.concatenate([positives.sum(1).numpy() for positives in blocks]).mean())
    return figures


def _of_astra(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray) -> Figures:
    """Return the recall@k of the index that mines negatives, for the number k that it mines."""
    classifiers = retriever.indexes["labels"].vectors
    queries = encode_all(retriever.encoder, trained.corpus.sides["test"], QUERY, rows=rows[:2000])
    config = trained.method.stages[-1].config
    index, k = ann.build(np.ascontiguousarray(classifiers), config.index), max(config.hard, 1)
    return {"recall of the index": 100 * ann.recall(index.search(queries, k)[1], classifiers, queries, k)}


def _of_siamesexml(trained: TrainedMethod, retriever: Retriever, rows: np.ndarray, depth: int = 50) -> Figures:
    """Return the metrics before and after module IV, and the share of the test pairs that count which indexes propose.

    depth: labels that an index proposes, half as many of two together.
    """
    scorer = retriever.scorer
    assert isinstance(scorer, CentroidMix)
    similar = scorer.embeddings + (1 - scorer.share) * scorer.centroids    # z + v, scored against x of module I
    padding = np.zeros((len(similar), scorer.classifiers.shape[1] * scorer.partitions), np.float32)
    figures = _with_scorers(trained, retriever, rows, {
        "z + v": InnerProduct(np.hstack([similar, padding])), "w": replace(scorer, alpha=1.0)})
    corpus, proposers = trained.corpus, retriever.proposers
    queries = encode_all(retriever.encoder, corpus.sides["test"], QUERY, rows=rows)
    # as the metrics have it, a filter pair is not missing
    true_pairs = np.setdiff1d(*(pairs["test"].subset(rows).keys(corpus.n_labels)
                                for pairs in (corpus.positives, corpus.filters)))
    for name, indexes, k in (("texts", ["texts"], depth), ("centroids", ["centroids"], depth),
                             ("both", ["texts", "centroids"], depth // 2), ("all three", list(proposers), depth)):
        ids = candidates([proposers[index] for index in indexes], queries, k)
        row, slot = np.nonzero(ids >= 0)
        figures[f"recall of {name}"] = 100 * float(np.isin(true_pairs, row * corpus.n_labels + ids[row, slot]).mean())
    return figures


_BY_LAST_STAGE: Mapping[type, Callable[[TrainedMethod, Retriever, np.ndarray], Figures]] = {
    EncoderModule: _of_module_m1, ClassifierModule: _of_ngame, unidec.UnidecStage: _of_unidec,
    astra.AstraStage: _of_astra, ExtremeModule: _of_siamesexml}
