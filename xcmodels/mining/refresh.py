"""A refresh: clusters of queries and hard negative labels, mined from vectors, for any method."""

from functools import partial
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor, RowFunction, equal_cuts
from xcmodels.method import Mined, Round, Vectors
from xcmodels.mining import gpu_index, grouped_index
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.gpu_index import GpuIndex
from xcmodels.mining.label_index import LabelIndex, nothing_excluded
from xcmodels.mining.per_query_index import PerQueryIndex
from xcmodels.retrieval import ann

RECALL_QUERIES = 256     # queries on which an index is compared with exact search


def mine(vectors: Vectors, corpus: Corpus, round_: Round, *, seed: int, index: str = "auto",
         executor: Executor = IN_PROCESS) -> Mined:
    """Return the clusters and the hard negatives that `round_` needs.

    vectors: "queries", of every row of the training side, and "labels". Clusters are balanced (NGAME, Algorithm 1);
    negatives are the labels of highest inner product that are neither positives nor filter pairs of the query
    (UniDEC, section 3.2; ANCE), best first. executor: where arrays are computed.
    """
    rows, queries = corpus.training_rows(), vectors["queries"]()
    clusters, negatives, measured = None, None, dict[str, float]()
    if round_.cluster_size:
        clusters = balanced_kmeans(queries, round_.cluster_size, seed=seeds.key_of(seed, round_.name), rows=rows,
                                   executor=executor)
    if round_.n_negatives:
        built = partial(build_index, k=round_.n_negatives, kind=index, seed=seed)
        labels = executor.call("index of labels", built, vectors["labels"](), queries, rows)
        negatives = hard_negatives(labels, queries, corpus, rows, round_.n_negatives, executor=executor)
        drawn = rows[seeds.generator(seed, "recall", round_.name).permutation(len(rows))[:RECALL_QUERIES]]
        measured["recall"] = 100.0 if labels.kind == "exact" else 100 * ann.recall(
            labels.nearest(queries[drawn], round_.n_negatives), labels.vectors, queries[drawn], round_.n_negatives)
    return Mined(clusters, negatives, measured=measured)


def hard_negatives(index: LabelIndex, queries: np.ndarray, corpus: Corpus | None, rows: np.ndarray, k: int, *,
                   executor: Executor = IN_PROCESS) -> np.ndarray:
    """Return (N, k) int32: the k nearest allowed negatives of `rows`, -1 padded, and -1 for all others.

    queries (N, d) are the vectors of the training side; without a `corpus` all labels are allowed. What is found for a
    row does not depend on where it is computed; by codes or a graph it may on the others of its chunk, all searched as
    deep as one of them needs.
    """
    order = index.search_order(queries, rows)
    out = np.full((len(queries), k), -1, dtype=np.int32)
    out[order] = executor.compute_rows("hard negatives", _negatives_of_ranges, equal_cuts(index.chunk, len(order)),
                                       index, queries, corpus, order, k)
    return out


def _negatives_of_ranges(index: LabelIndex, queries: np.ndarray, corpus: Corpus | None, order: np.ndarray,
                         k: int) -> RowFunction:
    """Return a function that returns the negatives of order[low:high]."""
    return lambda low, high: nearest_negatives(index, queries, corpus, order[low:high], k)


def nearest_negatives(index: LabelIndex, queries: np.ndarray, corpus: Corpus | None, rows: np.ndarray,
                      k: int) -> np.ndarray:
    """Return (n, k) int32: the k nearest allowed negatives of each of `rows` (n,), searched at once, -1 padded."""
    excluded = nothing_excluded if corpus is None else lambda some: excluded_pairs(corpus, rows[some])
    return index.nearest(queries[rows], k, excluded).astype(np.int32)


def build_index(labels: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int, *, kind: str,
                seed: int) -> LabelIndex:
    """Return an index of label vectors (L, d) to search for k neighbours of each of `rows` of the queries (N, d).

    "auto" is exact search on a GPU that has room for the labels; else on the processor, up to ann.EXACT_MAX labels,
    and search by groups of queries beyond: 83,000 queries of WordNet, 67,892 labels, d = 384, take 4.3 s in place of
    33.3, and find 95% of the 6 nearest.
    """
    if kind == "auto" and gpu_index.has_room(labels):
        return GpuIndex(ann.build(labels, "exact"))
    if (kind := index_kind_on_cpu(kind, len(labels))) == grouped_index.KIND:
        return grouped_index.build(labels, queries, k, rows=rows, seed=seed)
    return PerQueryIndex(ann.build(labels, kind))


def index_kind_on_cpu(kind: str, labels: int) -> str:
    """Return the kind of index that `build_index` makes of so many labels where no GPU has room for them."""
    if kind == "auto":
        return "exact" if ann.choose(kind, labels) == "exact" else grouped_index.KIND
    return kind


def load_index(folder: Path) -> LabelIndex:
    """Map an index that its `save` wrote."""
    if (folder / grouped_index.FACTS).exists():
        return grouped_index.load(folder)
    index = ann.load(folder)
    on_gpu = (folder / gpu_index.MARK).exists() and gpu_index.has_room(index.vectors)
    return GpuIndex(index) if on_gpu else PerQueryIndex(index)


def excluded_pairs(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return i * L + label for every positive and filter pair of rows[i]."""
    return np.concatenate([pairs["train"].subset(rows).keys(corpus.n_labels)
                           for pairs in (corpus.positives, corpus.filters)])
