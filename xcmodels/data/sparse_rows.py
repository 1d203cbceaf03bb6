"""Rows of a sparse matrix: their largest values, and rows at unit length."""

import numpy as np
import scipy.sparse as sp


def heaviest(rows: sp.csr_array, most: int) -> sp.csr_array:
    """Return the `most` largest values of each row, ties by ascending column; the columns of `rows` are sorted."""
    rows.sort_indices()
    lengths, kept = np.diff(rows.indptr), np.ones(len(rows.data), dtype=bool)
    for row in np.flatnonzero(lengths > most):    # most rows are short enough
        own = slice(rows.indptr[row], rows.indptr[row + 1])
        values = rows.data[own]
        least = np.partition(values, -most)[-most]
        chosen = values > least
        chosen[np.flatnonzero(values == least)[:most - chosen.sum()]] = True
        kept[own] = chosen
    bounds = np.concatenate([[0], np.cumsum(np.minimum(lengths, most))]).astype(rows.indptr.dtype)
    return sp.csr_array((rows.data[kept], rows.indices[kept], bounds), shape=rows.shape)


def normalise_rows(rows: sp.csr_array) -> sp.csr_array:
    """Scale the rows to unit length, in place, and return them; a row of zeros stays."""
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data = (rows.data / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))).astype(np.float32)
    return rows
