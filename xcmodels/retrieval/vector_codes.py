"""Codes of 4 bits for a dimension of a vector, or for two, which faiss scans in the processor's registers."""

from typing import Any

import numpy as np

_SCANNED = 64          # codes scanned at once: for many queries, 0.7 of the time that 32 take
_SINGLE_CODES = 128    # up to this dimension, every dimension has its own code
_ADDED = 32768         # vectors coded at once


def codes_of(dim: int) -> int:
    """Return how many 4-bit codes a quantised index keeps of a vector."""
    return dim if dim <= _SINGLE_CODES or dim % 2 else dim // 2


def codes_index(vectors: np.ndarray) -> Any:
    """Return a faiss index of 4-bit codes, one for each dimension of the vectors, or for two where there are many."""
    import faiss

    d = vectors.shape[1]
    codes = faiss.IndexPQFastScan(d, codes_of(d), 4, faiss.METRIC_INNER_PRODUCT, _SCANNED)
    codes.pq.cp.min_points_per_centroid = 1    # no warning: too few vectors are repeated below
    if len(vectors):
        few = len(vectors) < 2 ** codes.nbits
        codes.train(np.ascontiguousarray(np.resize(vectors, (2 ** codes.nbits, d)) if few else vectors, np.float32))
        for start in range(0, len(vectors), _ADDED):
            codes.add(np.ascontiguousarray(vectors[start : start + _ADDED], dtype=np.float32))
    return codes
