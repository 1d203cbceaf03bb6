"""Vectors and predictions of many texts as a file for other programs, written block by block; whole, or not there."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.errors import UsageError
from flows.cli.predict import CHUNK, Query

KINDS = {"embeddings": (".npy", ".parquet"), "predictions": (".parquet",)}
FOUND = pa.schema([("uid", pa.string()), ("rank", pa.int32()), ("label_id", pa.int64()), ("label_uid", pa.string()),
                   ("label_text", pa.string()), ("score", pa.float32())])


def checked(out: Path, what: str) -> Path:
    """Return `out`; UsageError where no file of its kind holds what is to be exported, or it has no folder."""
    if out.suffix not in KINDS[what]:
        raise UsageError(f"--out must be named *{' or *'.join(KINDS[what])}, got {out}", hint=f"--out {what}.parquet")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", hint="make it, or name a file in another one: --out")
    return out


def export_embeddings(retriever: Any, queries: Iterable[Query], out: Path) -> int:
    """Write the query vectors of texts, float32, in their order; return how many.

    .npy is one array (n, d); .parquet has a row a text, its uid and its vector.
    """
    vectors = ((part, retriever.embed([query.text for query in part], [query.content for query in part]))
               for part in _blocks(queries))
    if out.suffix == ".npy":
        with _whole(out) as file:
            return _write_array(file, (found for _, found in vectors), retriever.encoder.width("query"))
    return _write_table(out, (_vector_table([query.uid for query in part], found) for part, found in vectors))


def export_labels(retriever: Any, out: Path) -> int:
    """Write each label's vector, a row a label and a column an index, as .parquet; return how many.

    Removed labels are left out, and so are indexes of training queries.
    """
    if out.suffix != ".parquet":
        raise UsageError("vectors of labels are several columns", hint="--out labels.parquet")
    kept = np.setdiff1d(np.arange(len(retriever.uids)), retriever.removed)
    columns = {name: each.index.vectors for name, each in retriever.proposers.items() if each.labels is None}

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(kept), CHUNK):
            ids = kept[start:start + CHUNK]
            named = {"id": pa.array(ids), "uid": pa.array(retriever.uids.take(ids)),
                     "text": pa.array(retriever.titles.take(ids))}
            yield pa.table(named | {name: _vectors(each[ids]) for name, each in columns.items()})

    return _write_table(out, tables())


def export_predictions(retriever: Any, queries: Iterable[Query], k: int, out: Path) -> int:
    """Write the best `k` labels of texts, a row a label; return how many rows."""
    def tables() -> Iterator[pa.Table]:
        for part in _blocks(queries):
            found = retriever.predict([query.text for query in part], k, [query.content for query in part])
            rows = [{"uid": query.uid, "rank": rank, "label_id": label.id, "label_uid": label.uid,
                     "label_text": label.text, "score": label.score}
                    for query, labels in zip(part, found, strict=True) if (query.text + query.content).strip()
                    for rank, label in enumerate(labels, 1)]
            yield pa.Table.from_pylist(rows, FOUND)

    return _write_table(out, tables())


def _blocks(queries: Iterable[Query]) -> Iterator[list[Query]]:
    """Yield the texts a block at a time; of none at all, one empty block, so that a file has its columns."""
    rows = iter(queries)
    yield list(islice(rows, CHUNK))
    while part := list(islice(rows, CHUNK)):
        yield part


def _vectors(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _vector_table(uids: list[str], vectors: np.ndarray) -> pa.Table:
    return pa.table({"uid": pa.array(uids, pa.string()), "vector": _vectors(vectors)})


def _write_array(file: BinaryIO, blocks: Iterable[np.ndarray], width: int) -> int:
    """Write blocks (m, width) as one array; its header, which has room for any n, is written last as well."""
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
    with _whole(out) as file, pq.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], rows):
            writer.write_table(table)
            n += len(table)
    return n


@contextmanager
def _whole(out: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `out` once all is written, and is gone where it is not."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(out)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
