"""Labels near each training query, by the served index or by groups of queries: the sparse view's negatives."""

from itertools import pairwise

import numpy as np

from xcmodels.data.executor import equal_cuts
from xcmodels.mining import grouped_index
from xcmodels.mining.refresh import hard_negatives
from xcmodels.retrieval import ann
from xcmodels.retrieval.builder import RowVectors
from xcmodels.retrieval.proposers import Proposer

CHUNK = 8192             # queries for which an index is searched at once
QUERY_BYTES = 1 << 28    # of vectors of queries that are grouped at once


def nearest_labels(proposer: Proposer, vectors: RowVectors, rows: np.ndarray, k: int, *, seed: int) -> np.ndarray:
    """Return labels that are probably nearest to each query of `rows` (n,), ids (n, k), -1 for none.

    vectors: makes the vectors (n, width) of rows. Positives are not left out. The time of a query by the served codes
    grows with the labels: beyond ann.EXACT_MAX, those of queries that lie together are searched together.
    """
    index, by_groups = proposer.index, len(proposer.index) > ann.EXACT_MAX
    together, found = max(QUERY_BYTES // (4 * index.dim), 1) if by_groups else CHUNK, list[np.ndarray]()
    for low, high in pairwise(equal_cuts(together, len(rows))):
        queries = vectors(rows[low:high])
        found.append(_by_groups(index, queries[:, :index.dim], k, seed) if by_groups else proposer(queries, k))
    return np.concatenate(found)


def _by_groups(index: ann.Index, queries: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Return labels that are probably nearest to each query (n, d), ids (n, k) int32, -1 for none."""
    groups = grouped_index.build(index.vectors, queries, k, seed=seed)
    return hard_negatives(groups, queries, None, np.arange(len(queries)), k)
