"""Sparse matrices in files: three files per matrix, mapped when it is read."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import mapped

ARRAYS = ("data", "indices", "indptr")


def save_sparse(folder: Path, name: str, matrix: sp.csr_array) -> None:
    """Write `<name>.data.npy`, `<name>.indices.npy` and `<name>.indptr.npy`."""
    for part in ARRAYS:
        np.save(folder / f"{name}.{part}.npy", getattr(matrix, part))


def load_sparse(folder: Path, name: str, columns: int) -> sp.csr_array:
    """Map a matrix (rows, columns) that `save_sparse` wrote."""
    data, indices, starts = (mapped(folder / f"{name}.{part}.npy") for part in ARRAYS)
    return sp.csr_array((data, indices, starts), shape=(len(starts) - 1, columns))
