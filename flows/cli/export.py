"""Write embeddings or predictions of many texts to a .npy or .parquet file."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.errors import UsageError
from flows.cli.predict import CHUNK, COLUMNS, Query, answers, blocks, ranked

KINDS = {"embeddings": (".npy", ".parquet"), "predictions": (".parquet",)}
FOUND = pa.schema(zip(COLUMNS, (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string(), pa.float32(),
                              pa.float32()),
                      strict=True))


def check(out: Path, what: str) -> None:
    """Raise UsageError where the suffix of `out` does not suit `what`, it is a folder, or its folder does not exist."""
    if out.suffix not in KINDS[what]:
        raise UsageError(f"--out must be named *{' or *'.join(KINDS[what])}, got {out}", hint=f"--out {what}.parquet")
    if os.path.isdir(out):    # False, not an error, of a name that is too long
        raise UsageError(f"{out} is a folder", hint="name another file: --out")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", hint="make it, or name a file in another one: --out")


def export_embeddings(retriever: Any, queries: Iterable[Query], out: Path) -> int:
    """Write the query vectors of texts, float32, in their order; return how many.

    .npy is one array (n, d); .parquet has a row a text, its uid and its vector.
    """
    embedded = ((block, retriever.embed([query.text for query in block], [query.content for query in block]))
                for block in blocks(queries))
    if out.suffix == ".npy":
        with _complete_file(out) as file:
            return _write_array(file, (vectors for _, vectors in embedded), retriever.encoder.width("query"))
    return _write_table(out, (pa.table({"uid": pa.array([query.uid for query in block], pa.string()),
                                        "vector": _vectors(vectors)}) for block, vectors in embedded))


def export_labels(retriever: Any, out: Path) -> int:
    """Write each label's vector, a row a label and a column an index, as .parquet; return how many.

    Removed labels are left out, and so are indexes of training queries.
    """
    if out.suffix != ".parquet":
        raise UsageError("vectors of labels are several columns", hint="--out labels.parquet")
    labels = np.setdiff1d(np.arange(len(retriever.uids)), retriever.removed)
    columns = {name: proposer.index.vectors for name, proposer in retriever.proposers.items()
               if proposer.labels is None}

    def tables() -> Iterator[pa.Table]:
        for start in range(0, max(len(labels), 1), CHUNK):    # of none one empty table, so that a file has its columns
            ids = labels[start:start + CHUNK]
            names = {"id": pa.array(ids), "uid": pa.array(retriever.uids.take(ids), pa.string()),
                     "text": pa.array(retriever.titles.take(ids), pa.string())}
            yield pa.table(names | {name: _vectors(vectors[ids]) for name, vectors in columns.items()})

    return _write_table(out, tables())


def export_predictions(retriever: Any, queries: Iterable[Query], k: int, out: Path) -> int:
    """Write the best `k` labels of texts, a row a label, and for a text without one its uid; return how many rows."""
    return _write_table(out, (pa.Table.from_pylist([
        dict(zip(COLUMNS, row, strict=False)) for uid, labels in block for row in ranked(uid, labels) or [(uid,)]],
        FOUND) for block in answers(retriever, queries, k)))


def _vectors(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _write_array(file: BinaryIO, blocks: Iterable[np.ndarray], width: int) -> int:
    """Write blocks (m, width) as one array, then its header, which has room for any n, again; return n."""
    n = 0

    def header() -> None:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, width)})

    header()
    for block in blocks:
        file.write(np.ascontiguousarray(block, "<f4").tobytes())
        n += len(block)
    file.seek(0)
    header()
    return n


def _write_table(out: Path, tables: Iterable[pa.Table]) -> int:
    rows = iter(tables)
    first, n = next(rows), 0
    with _complete_file(out) as file, pq.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], rows):
            writer.write_table(table)
            n += len(table)
    return n


@contextmanager
def _complete_file(out: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `out` once all is written, and is removed where that fails.

    Raises UsageError where there can be no file.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        opened = temporary.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}", hint="name another file: --out") from error
    try:
        with opened as file:
            yield file
        temporary.replace(out)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
