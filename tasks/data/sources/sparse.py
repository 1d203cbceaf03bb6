"""Parsers of sparse matrices (positives and edges, text or .npz) and of filter pairs."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_contracts.errors import ContractError, UsageError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.data.sources.files import lines, whole_file
from tasks.data.sources.shards import Ids, ShardBuffer, TablePart, check_relevance, rows_in, shard, short


def sparse_rows(path: Path, size: int, table: str, rows: Ids, columns: Ids, *, sha256: str = "") -> Iterator[TablePart]:
    """Yield shards of positives or edges from a sparse file: a header "N L", then "id:value id:value" a row.

    Raises ContractError when the header, `rows` and `columns` do not agree, and for a pair that is invalid.
    """
    buffer = ShardBuffer(table, path.name, size)
    stream = lines(path, sha256)
    _, header = next(stream, (1, b""))
    _check_header(path, header, rows, columns)
    row = -1
    for row, (number, line) in enumerate(stream):
        if line:
            ids, values = _pairs(line, columns, f"{path.name}:{number}")
            buffer.extend([row] * len(ids), ids, values, [number] * len(ids))
            yield from buffer.full()
    if row + 1 != rows.count:
        hint = "remove the lines after the last row" if row + 1 > rows.count else \
            "the file is cut short, or rows without an entry were left out: write a blank line for each"
        raise ContractError(f"the header says {rows.count} rows, which {rows.file} has too, but {row + 1} follow",
                            where=f"{path.name}:1", hint=hint)
    yield from buffer.rest()


def _check_header(path: Path, header: bytes, rows: Ids, columns: Ids) -> None:
    where = f"{path.name}:1"
    fields = header.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
        text = short(header.decode("latin-1"))
        raise ContractError(f"the header must be two numbers, rows and columns, got {text!r}", where=where,
                            hint=f"for these files it is: {rows.count} {columns.count}")
    if [int(field) for field in fields] != [rows.count, columns.count]:
        raise ContractError(
            f"the header says {int(fields[0])} rows and {int(fields[1])} columns, but {rows.file} has {rows.count} "
            f"lines and {columns.file} has {columns.count}", where=where,
            hint=f"look which of the three files belongs to another data set; the right header is: "
                 f"{rows.count} {columns.count}")


def _pairs(line: bytes, columns: Ids, where: str) -> tuple[list[int], list[float]]:
    """Return the ids and values of a row "id:value id:value"."""
    ids, values = [], []
    for pair in line.split():
        name, colon, text = pair.partition(b":")
        try:
            if not colon or b"_" in pair:  # Python would read 1_0 as a number
                raise ValueError
            column, value = int(name), float(text)
        except ValueError as error:
            raise ContractError(f"{short(pair.decode('latin-1'))!r} is not a pair id:value", where=where,
                                hint="a row is written as: 12:1.0 40:1.0") from error
        if not 0 <= column < columns.count:
            columns.refuse(column, where)
        check_relevance(value, where)
        ids.append(column)
        values.append(value)
    return ids, values


def sparse_matrix(path: Path, size: int, table: str, rows: Ids, columns: Ids, *,
                  sha256: str = "") -> Iterator[TablePart]:
    """Yield shards of positives or edges from a scipy sparse matrix (.npz); a row's `line` is its number from 1.

    The whole matrix is in memory (12 bytes per entry), as its arrays are compressed one after the other.
    Raises ContractError for a file that is no such matrix, and where `sparse_rows` does.
    """
    matrix = _load_matrix(path, sha256)
    if matrix.shape != (rows.count, columns.count):
        raise ContractError(f"the matrix has {matrix.shape[0]} rows and {matrix.shape[1]} columns, but {rows.file} "
                            f"has {rows.count} lines and {columns.file} has {columns.count}", where=path.name,
                            hint="look which of the three files belongs to another data set")
    ids, size = matrix.indices, rows_in(table, size)
    for start in range(0, max(1, len(ids)), size):
        part = slice(start, min(start + size, len(ids)))
        # the last row whose entries begin at or before this one; other such rows are empty
        row = np.searchsorted(matrix.indptr, np.arange(part.start, part.stop), side="right") - 1
        for bad in np.flatnonzero((ids[part] < 0) | (ids[part] >= columns.count))[:1]:
            columns.refuse(int(ids[part][bad]), f"{path.name}:{row[bad] + 1}")
        with np.errstate(over="ignore"):
            values = matrix.data[part].astype(np.float32)
        for bad in np.flatnonzero(~np.isfinite(values))[:1]:
            check_relevance(float(matrix.data[part][bad]), f"{path.name}:{row[bad] + 1}")
        yield table, shard(SCHEMAS[kind_of(table)], path.name, [row, ids[part], values, row + 1])


def _load_matrix(path: Path, sha256: str = "") -> Any:
    """Load a CSR matrix without unpickling, and check that its arrays are consistent.

    Other kinds of matrix are refused: scipy adds up duplicates in some, and does not check ids in others.
    """
    import zipfile
    import zlib

    from scipy import sparse

    hint = "write it with scipy.sparse.save_npz(path, matrix.tocsr())"
    try:
        matrix = sparse.load_npz(io.BytesIO(whole_file(path, sha256)))  # passes allow_pickle=False to numpy
        if matrix.format != "csr" or not np.can_cast(matrix.dtype, np.float64, "same_kind"):
            raise ValueError(f"it is of kind {matrix.format} with values of type {matrix.dtype}")
        if (np.diff(matrix.indptr) < 0).any() or matrix.indptr[-1] != len(matrix.indices):
            raise ValueError("its row starts do not fit its entries")
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist") from error
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError, EOFError, OSError, IndexError,
            MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ContractError(f"{path.name} is not a sparse matrix of rows (CSR): {short(str(error))}",
                            where=path.name, hint=hint) from error
    return matrix


def filter_pairs(path: Path, size: int, table: str, rows: Ids, labels: Ids, *, sha256: str = "") -> Iterator[TablePart]:
    """Yield shards of filter pairs from lines "row label", both 0-based; blank lines are skipped."""
    buffer = ShardBuffer(table, path.name, size)
    for number, line in lines(path, sha256):
        fields = line.split()
        if not fields:
            continue
        where = f"{path.name}:{number}"
        try:
            if b"_" in line:  # Python would read 1_0 as a number
                raise ValueError
            query, label = map(int, fields)
        except ValueError as error:
            raise ContractError(f"{short(line.decode('latin-1'))!r} is not a pair of numbers, row and label",
                                where=where, hint="a line is written as: 12 40") from error
        for ids, value in ((rows, query), (labels, label)):
            if not 0 <= value < ids.count:
                ids.refuse(value, where)
        buffer.add(query, label, number)
        yield from buffer.full()
    yield from buffer.rest()
