"""Codes of 4 bits for one or more dimensions of a vector, which faiss scans in the processor's registers."""

from typing import Any

import numpy as np

_SCANNED = 64          # codes scanned at once: for many queries, 0.7 of the time that 32 take
_SINGLE_CODES = 128    # up to this dimension, every dimension has its own code
_FEW, _WIDE = 64, 4    # codes that a coarse index keeps at least, and dimensions that share one of more
_ADDED = 32768         # vectors coded at once


def codes_of(dim: int) -> int:
    """Return how many 4-bit codes a quantised index keeps of a vector."""
    return dim if dim <= _SINGLE_CODES or dim % 2 else dim // 2


def few_codes_of(dim: int) -> int:
    """Return how many a coarse index keeps: about half where there are many, in time and in bytes."""
    wanted = max(_FEW, dim // _WIDE)
    few = max(codes for codes in range(1, wanted + 1) if dim % codes == 0)
    return few if 2 * few > wanted else codes_of(dim)


def codes_index(vectors: np.ndarray, coarse: bool = False) -> Any:
    """Return a faiss index of 4-bit codes of vectors (L, d), `codes_of` or, where `coarse`, `few_codes_of` for each."""
    import faiss

    d = vectors.shape[1]
    count = few_codes_of(d) if coarse else codes_of(d)
    codes = faiss.IndexPQFastScan(d, count, 4, faiss.METRIC_INNER_PRODUCT, _SCANNED)
    codes.pq.cp.min_points_per_centroid = 1    # no warning: too few vectors are repeated below
    if len(vectors):
        few = len(vectors) < 2 ** codes.nbits
        codes.train(np.ascontiguousarray(np.resize(vectors, (2 ** codes.nbits, d)) if few else vectors, np.float32))
        for start in range(0, len(vectors), _ADDED):
            codes.add(np.ascontiguousarray(vectors[start : start + _ADDED], dtype=np.float32))
    return codes
