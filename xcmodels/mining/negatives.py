"""Mines clusters of queries and hard negative labels from vectors, for any method."""

from functools import partial
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.shards import IN_PROCESS, Part, Shards, every
from xcmodels.data.sorted_ids import among
from xcmodels.method import Mined, Round, Vectors
from xcmodels.mining import grouped
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.retrieval import ann

Index = ann.Index | grouped.GroupedIndex
CHUNK, GROUPED_CHUNK = 8192, 65_536    # queries searched at once, by either kind of index
RECALL_QUERIES = 256     # queries on which an index is compared with exact search


def mine(vectors: Vectors, corpus: Corpus, round_: Round, *, seed: int, index: str = "auto",
         shards: Shards = IN_PROCESS) -> Mined:
    """Return the clusters and the hard negatives that `round_` needs.

    vectors: "queries", of every row of the training side, and "labels". Clusters are balanced (NGAME, Algorithm 1);
    negatives are the labels of highest inner product that are neither positives nor filter pairs of the query
    (UniDEC, section 3.2; ANCE), best first. shards: who computes it.
    """
    rows, queries = corpus.training_rows(), vectors["queries"]()
    clusters, negatives, measured = None, None, dict[str, float]()
    if round_.cluster_size:
        clusters = balanced_kmeans(queries, round_.cluster_size, seed=seeds.key_of(seed, round_.name), rows=rows,
                                   shards=shards)
    if round_.negatives:
        built = partial(build_index, k=round_.negatives, kind=index, seed=seed)
        labels = shards.call("index of labels", built, vectors["labels"](), queries, rows)
        negatives = _negatives_of_all(labels, queries, corpus, rows, round_.negatives, shards=shards)
        drawn = rows[seeds.generator(seed, "recall", round_.name).permutation(len(rows))[:RECALL_QUERIES]]
        measured["recall"] = 100.0 if labels.kind == "exact" else 100 * ann.recall(
            nearest(labels, queries[drawn], round_.negatives), labels.vectors, queries[drawn], round_.negatives)
    return Mined(clusters, negatives, measured=measured)


def _negatives_of_all(index: Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int, *,
                      shards: Shards) -> np.ndarray:
    """Return (N, k) int32: the negatives of `rows`, and -1 for all others of the training side."""
    if isinstance(index, grouped.GroupedIndex):    # shards of queries that lie together
        order = index.together(queries, rows)
        out = np.full((len(queries), k), -1, dtype=np.int32)
        out[order] = shards.rows("hard negatives", _searched_together, every(GROUPED_CHUNK, len(order)), index, queries,
                                 corpus, order, k)
        return out
    # One row of the training side where a chunk of the searched rows begins, and the first and last of all.
    cuts = [0, *rows[CHUNK::CHUNK].tolist(), len(queries)]
    return shards.rows("hard negatives", _searched, cuts, index, queries, corpus, rows, k)


def _searched(index: Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> Part:
    """Return a function that returns the negatives of low:high of the training side; -1 for what is not in `rows`."""
    def search(low: int, high: int) -> np.ndarray:
        part = rows[slice(*np.searchsorted(rows, [low, high]))]
        out = np.full((high - low, k), -1, dtype=np.int32)
        out[part - low] = hard_negatives(index, queries, corpus, part, k)
        return out

    return search


def _searched_together(index: Index, queries: np.ndarray, corpus: Corpus, order: np.ndarray, k: int) -> Part:
    """Return a function that returns the negatives of order[low:high]."""
    return lambda low, high: hard_negatives(index, queries, corpus, order[low:high], k)


def build_index(labels: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int, *, kind: str, seed: int) -> Index:
    """Return an index of label vectors (L, d) to search for k neighbours of each of `rows` of the queries (N, d).

    "auto" is exact search up to ann.EXACT_MAX_BATCH labels, and search by groups of queries beyond.
    """
    if kind == grouped.KIND or (kind == "auto" and ann.choose(kind, len(labels)) != "exact"):
        return grouped.build(labels, queries, k, rows=rows, seed=seed)
    return ann.build(labels, kind)


def load_index(folder: Path) -> Index:
    """Map an index that its `save` wrote."""
    return grouped.load(folder) if (folder / grouped.FACTS).exists() else ann.load(folder)


def nearest(index: Index, queries: np.ndarray, k: int) -> np.ndarray:
    """Return the labels that a search finds for queries (n, d), int64 (n, k), -1 where there are fewer."""
    return index.search(queries, k) if isinstance(index, grouped.GroupedIndex) else index.search(queries, k)[1]


def hard_negatives(index: Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) int32: the k nearest allowed negatives of each of `rows` (n,), -1 padded.

    queries (N, d) are the vectors of the training side. Rows are gathered chunk by chunk, since a copy of
    all would double the memory. What is found for a row does not depend on the others.
    """
    out = np.full((len(rows), k), -1, dtype=np.int32)
    if isinstance(index, grouped.GroupedIndex):
        for start in range(0, len(rows), GROUPED_CHUNK):
            part = rows[start:start + GROUPED_CHUNK]
            out[start:start + len(part)] = index.search(queries[part], k, partial(_excluded_among, corpus, part))
        return out
    for start in range(0, len(rows), CHUNK):
        part = rows[start:start + CHUNK]
        excluded = excluded_pairs(corpus, part)
        depth = k + int(np.bincount(excluded // corpus.n_labels).max(initial=0))
        ids = index.search(queries[part], depth)[1]
        allowed = not_excluded(ids, excluded, corpus.n_labels)
        rank = np.cumsum(allowed, axis=1) - 1
        row, slot = np.nonzero(allowed & (rank < k))
        out[start + row, rank[row, slot]] = ids[row, slot]
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
