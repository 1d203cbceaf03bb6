"""Mines clusters of queries and hard negative labels from vectors, for any method."""

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.shards import IN_PROCESS, Part, Shards
from xcmodels.data.sorted_ids import among
from xcmodels.method import Mined, Round, Vectors
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.retrieval import ann

CHUNK = 8192    # queries searched at once
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
        labels = shards.call("index of labels", ann.build, vectors["labels"](), index)
        # One row of the training side where a chunk of the searched rows begins, and the first and last of all.
        cuts = [0, *rows[CHUNK::CHUNK].tolist(), len(queries)]
        negatives = shards.rows("hard negatives", _searched, cuts, labels, queries, corpus, rows, round_.negatives)
        drawn = rows[seeds.generator(seed, "recall", round_.name).permutation(len(rows))[:RECALL_QUERIES]]
        measured["recall"] = 100.0 if labels.kind == "exact" else 100 * ann.recall(
            labels.search(queries[drawn], round_.negatives)[1], labels.vectors, queries[drawn], round_.negatives)
    return Mined(clusters, negatives, measured=measured)


def _searched(index: ann.Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> Part:
    """Return a function that returns the negatives of low:high of the training side; -1 for what is not in `rows`."""
    def search(low: int, high: int) -> np.ndarray:
        part = rows[slice(*np.searchsorted(rows, [low, high]))]
        out = np.full((high - low, k), -1, dtype=np.int32)
        out[part - low] = hard_negatives(index, queries, corpus, part, k)
        return out

    return search


def hard_negatives(index: ann.Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) int32: the k nearest allowed negatives of each of `rows` (n,), -1 padded.

    queries (N, d) are the vectors of the training side. Rows are gathered chunk by chunk, since a copy of
    all would double the memory.
    """
    out = np.full((len(rows), k), -1, dtype=np.int32)
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


def excluded_pairs(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return i * L + label for every positive and filter pair of rows[i]."""
    # Label texts added as queries come after the queries that have filters.
    filtered = np.flatnonzero(rows < len(corpus.filters["train"]))
    return np.concatenate([corpus.positives["train"].subset(rows).keys(corpus.n_labels),
                           corpus.filters["train"].subset(rows[filtered]).keys(corpus.n_labels, filtered)])


def not_excluded(ids: np.ndarray, excluded: np.ndarray, n_labels: int) -> np.ndarray:
    """Return which of the label ids (n, k), -1 = none, are not in the `excluded` pairs, row * L + id: bool (n, k)."""
    return (ids >= 0) & ~among(np.arange(len(ids))[:, None] * n_labels + ids, np.sort(excluded))
