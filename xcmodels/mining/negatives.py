"""Mines clusters of queries and hard negative labels from vectors, for any method."""

from functools import partial

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import among
from xcmodels.method import Mined, Round, Vectors
from xcmodels.mining import grouped
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.retrieval import ann

Index = ann.Index | grouped.GroupedIndex
CHUNK, GROUPED_CHUNK = 8192, 65_536    # queries searched at once, by either kind of index
RECALL_QUERIES = 256     # queries on which an index is compared with exact search


def mine(vectors: Vectors, corpus: Corpus, round_: Round, *, seed: int, index: str = "auto") -> Mined:
    """Return the clusters and the hard negatives that `round_` needs.

    vectors: "queries", of every row of the training side, and "labels". Clusters are balanced (NGAME, Algorithm 1);
    negatives are the labels of highest inner product that are neither positives nor filter pairs of the query
    (UniDEC, section 3.2; ANCE), best first.
    """
    rows, queries = corpus.training_rows(), vectors["queries"]()
    clusters, negatives, measured = None, None, dict[str, float]()
    if round_.cluster_size:
        clusters = balanced_kmeans(queries[rows], round_.cluster_size, seed=seeds.key_of(seed, round_.name))
    if round_.negatives:
        labels = build_index(vectors["labels"](), queries, rows, round_.negatives, kind=index, seed=seed)
        negatives = hard_negatives(labels, queries, corpus, rows, round_.negatives)
        drawn = rows[seeds.generator(seed, "recall", round_.name).permutation(len(rows))[:RECALL_QUERIES]]
        measured["recall"] = 100.0 if labels.kind == "exact" else 100 * ann.recall(
            nearest(labels, queries[drawn], round_.negatives), labels.vectors, queries[drawn], round_.negatives)
    return Mined(clusters, negatives, measured=measured)


def build_index(labels: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int, *, kind: str, seed: int) -> Index:
    """Return an index of label vectors (L, d) to search for k neighbours of each of `rows` of the queries (N, d).

    "auto" is exact search up to ann.EXACT_MAX_BATCH labels, and search by groups of queries beyond.
    """
    if kind == grouped.KIND or (kind == "auto" and ann.choose(kind, len(labels)) != "exact"):
        return grouped.build(labels, queries, k, rows=rows, seed=seed)
    return ann.build(labels, kind)


def nearest(index: Index, queries: np.ndarray, k: int) -> np.ndarray:
    """Return the labels that a search finds for queries (n, d), int64 (n, k), -1 where there are fewer."""
    return index.search(queries, k) if isinstance(index, grouped.GroupedIndex) else index.search(queries, k)[1]


def hard_negatives(index: Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> np.ndarray:
    """Return (N, k) int32: the k nearest allowed negatives of each of `rows`, -1 padded; -1 for other rows.

    queries (N, d) are the vectors of the training side. Rows are gathered chunk by chunk, since a copy of
    all would double the memory. What is found for a row does not depend on the others.
    """
    out = np.full((len(queries), k), -1, dtype=np.int32)
    if isinstance(index, grouped.GroupedIndex):
        rows = index.together(queries, rows)
        for start in range(0, len(rows), GROUPED_CHUNK):
            part = rows[start:start + GROUPED_CHUNK]
            out[part] = index.search(queries[part], k, partial(_excluded_among, corpus, part))
        return out
    for start in range(0, len(rows), CHUNK):
        part = rows[start:start + CHUNK]
        excluded = excluded_pairs(corpus, part)
        depth = k + int(np.bincount(excluded // corpus.n_labels).max(initial=0))
        ids = index.search(queries[part], depth)[1]
        allowed = not_excluded(ids, excluded, corpus.n_labels)
        rank = np.cumsum(allowed, axis=1) - 1
        row, slot = np.nonzero(allowed & (rank < k))
        out[part[row], rank[row, slot]] = ids[row, slot]
    return out


def _excluded_among(corpus: Corpus, rows: np.ndarray, some: np.ndarray) -> np.ndarray:
    return excluded_pairs(corpus, rows[some])


def excluded_pairs(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return i * L + label for every positive and filter pair of rows[i]."""
    # Label texts added as queries come after the queries that have filters.
    filtered = np.flatnonzero(rows < len(corpus.filters["train"]))
    return np.concatenate([corpus.positives["train"].subset(rows).keys(corpus.n_labels),
                           corpus.filters["train"].subset(rows[filtered]).keys(corpus.n_labels, filtered)])


def not_excluded(ids: np.ndarray, excluded: np.ndarray, n_labels: int) -> np.ndarray:
    """Return which of the label ids (n, k), -1 = none, are not in the `excluded` pairs, row * L + id: bool (n, k)."""
    return (ids >= 0) & ~among(np.arange(len(ids))[:, None] * n_labels + ids, np.sort(excluded))


