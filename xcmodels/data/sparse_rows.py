"""Rows of a sparse matrix: their largest values, and their lengths."""

import numpy as np
import scipy.sparse as sp

from xcmodels.data.sorted_ids import ranks


def heaviest(rows: sp.csr_array, most: int) -> sp.csr_array:
    """Return the `most` largest values of each row, ties by ascending column."""
    lengths = np.diff(rows.indptr)
    kept = np.ones(len(rows.data), dtype=bool)
    longer = np.flatnonzero(np.repeat(lengths > most, lengths))    # most rows are short enough
    row = np.repeat(np.arange(len(lengths)), lengths)[longer]
    order = np.lexsort((rows.indices[longer], -rows.data[longer], row))
    kept[longer[order[ranks(row) >= most]]] = False
    bounds = np.concatenate([[0], np.cumsum(np.minimum(lengths, most))]).astype(rows.indptr.dtype)
    out = sp.csr_array((rows.data[kept], rows.indices[kept], bounds), shape=rows.shape)
    out.sort_indices()
    return out


def normalise_rows(rows: sp.csr_array) -> sp.csr_array:
    """Scale the rows to unit length, in place, and return them; a row of zeros stays."""
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data = (rows.data / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))).astype(np.float32)
    return rows
