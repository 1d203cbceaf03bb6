"""Inner products of chosen pairs, exact top k, and single-threaded faiss."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def put(matrix: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a copy of the matrix with `values` at `rows`: existing rows are replaced, the next ones added."""
    shape = (max(len(matrix), int(rows.max(initial=-1)) + 1), *matrix.shape[1:])
    out = np.empty(shape, dtype=matrix.dtype)
    out[:len(matrix)] = matrix
    out[rows] = values
    return out


def pair_scores(queries: np.ndarray, matrix: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return queries[rows] . matrix[labels], (p,) float32; queries (n, d), matrix (L, d) float32.

    A pair's score does not depend on the other pairs. The matrix is copied where faiss cannot read it in place. Raises
    IndexError for a row or label out of range.
    """
    import faiss

    for name, ids, count in (("row", rows, len(queries)), ("label", labels, len(matrix))):
        if len(ids) and not (ids.min() >= 0 and ids.max() < count):
            raise IndexError(f"{name}s {ids.min()} to {ids.max()} are asked for, there are {count}")
    out, dim = np.empty(len(rows), dtype=np.float32), matrix.shape[1]
    stride, rest = divmod(matrix.strides[0], matrix.itemsize * dim)
    # copied where rows are not a whole number of vectors apart, or faiss cannot read them in place
    if rest or matrix.strides[1] != matrix.itemsize or matrix.dtype != np.float32:
        matrix, stride = np.ascontiguousarray(matrix, np.float32), 1
    queries, rows = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows, np.int64)
    labels = np.ascontiguousarray(labels if stride == 1 else labels * stride, np.int64)
    faiss.pairwise_indexed_inner_product(    # type: ignore[attr-defined]
        dim, len(rows), faiss.swig_ptr(queries), faiss.swig_ptr(rows),
        faiss.cast_integer_to_float_ptr(matrix.__array_interface__["data"][0]),
        faiss.swig_ptr(labels), faiss.swig_ptr(out))
    return out


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run faiss in this thread alone, where others search at the same time or there is too little work to share.

    Its threads spin while they wait for work, and torch's threads wait for the cores that they spin on: on two cores
    one of three queries took 3 ms.
    """
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def largest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest of each row and their columns, ties by ascending column."""
    # one more than k shows where the cut falls between equal scores, of which topk may have taken any
    values, columns = scores.topk(min(k + 1, scores.shape[1]))
    cut = values[:, -1] == values[:, -2] if values.shape[1] > k else torch.zeros(0, dtype=torch.bool)
    columns = columns[:, :k]
    for row in torch.nonzero(cut).ravel().tolist():
        last = values[row, k]
        above, equal = torch.nonzero(scores[row] > last).ravel(), torch.nonzero(scores[row] == last).ravel()
        columns[row] = torch.cat([above, equal[: k - len(above)]])
    columns = columns.sort(1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)
