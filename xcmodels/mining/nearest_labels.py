"""The labels that a served index proposes for every training query: negatives of the sparse view."""

from itertools import pairwise

import numpy as np

from xcmodels.data.executor import equal_cuts
from xcmodels.mining import grouped_index
from xcmodels.retrieval import ann
from xcmodels.retrieval.builder import RowVectors
from xcmodels.retrieval.proposers import Proposer

CHUNK = 8192    # queries whose codes are compared at once


def nearest_labels(proposer: Proposer, vectors: RowVectors, rows: np.ndarray, k: int) -> np.ndarray:
    """Return labels that are probably nearest to each query of `rows` (n,), ids (n, k), -1 for none.

    vectors: makes the vectors (n, width) of rows. Positives are not left out. The time of a query by the served codes
    grows with the labels: beyond ann.EXACT_MAX, those of queries that lie together are searched together.
    """
    index = proposer.index
    if len(index) <= ann.EXACT_MAX:
        return np.concatenate([proposer(vectors(rows[low:high]), k) for low, high in pairwise(equal_cuts(
            CHUNK, len(rows)))])
    queries = vectors(rows)[:, :index.dim]
    groups = grouped_index.build(index.vectors, queries, k, seed=0)
    order, out = groups.search_order(queries, np.arange(len(rows))), np.empty((len(rows), k), dtype=np.int32)
    for low, high in pairwise(equal_cuts(groups.chunk, len(rows))):
        out[order[low:high]] = groups.nearest(queries[order[low:high]], k)
    return out
