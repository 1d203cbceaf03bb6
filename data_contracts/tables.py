"""Tables stored as Parquet shards: reading in pieces, hashes of rows, search for duplicates."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.findings import Thresholds
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.verdict import Row, Status, escape_text, where

TEXT = ("title", "content")     # the columns of a text
_READ_ERRORS = (OSError, pa.ArrowException, EOFError)


@dataclass(frozen=True)
class Shard:
    """A readable file of a table with the right schema; name: as in reports."""

    path: Path
    name: str
    rows: int


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one shard; start, position: index of the first row in the shard, and in the table."""

    shard: Shard
    start: int
    position: int
    data: pa.Table


class Unreadable(Exception):
    """A shard whose footer is valid, but whose rows cannot be read."""

    def __init__(self, shard: Shard, error: Exception) -> None:
        super().__init__(str(error))
        self.shard = shard


class Tables:
    """The tables in a folder, read in pieces; a row is identified by its position in its table."""

    def __init__(self, root: Path, limits: Thresholds | None = None) -> None:
        self.root, self.limits = root, limits or Thresholds()
        self.damage: dict[str, dict[str, list[Row]]] = {}  # table -> "readable" or "schema" -> shards
        self._shards: dict[str, list[Shard]] = {}
        self._hashes: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def names(self) -> list[str]:
        """Return the names of the tables: all folders that are not hidden."""
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and path.name[0] not in "._")

    def exists(self, table: str) -> bool:
        """Return whether a table has any shard, damaged or not."""
        return self.count(table) > 0

    def shards(self, table: str) -> list[Shard]:
        """Return the undamaged shards in order; record the errors of the others in `damage`."""
        if table not in self._shards:
            self.damage[table] = {"readable": [], "schema": []}
            self._shards[table] = [shard for path in sorted((self.root / table).glob("part-*.parquet"))
                                   if (shard := self._open(table, path))]
        return self._shards[table]

    def _open(self, table: str, path: Path) -> Shard | None:
        name = escape_text(f"{table}/{path.name}")
        try:
            if not path.is_file():  # opening a pipe would block
                raise OSError("not a regular file")
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except _READ_ERRORS as error:
            self.mark_unreadable(table, name, error)
            return None
        if wrong := _difference(schema, SCHEMAS[kind_of(table)]):
            self.damage[table]["schema"].append({"shard": name, "error": escape_text(wrong, 400)})
            return None
        return Shard(path, name, rows)

    def mark_unreadable(self, table: str, shard: str, error: Exception) -> None:
        """Record in `damage` that a shard cannot be read; the path of the folder is cut out of the message."""
        message = str(error).replace(f"{self.root}/", "")
        self.damage[table]["readable"].append({"shard": shard, "error": escape_text(message, 300)})

    def count(self, table: str) -> int:
        """Return the number of shards, damaged or not."""
        return len(list((self.root / table).glob("part-*.parquet")))

    def rows(self, table: str) -> int:
        """Return the number of rows in the undamaged shards."""
        return sum(shard.rows for shard in self.shards(table))

    def not_checkable(self, needs: Sequence[str]) -> str:
        """Return why a rule on these tables cannot run (one is missing or damaged), "" if it can."""
        for table in needs:
            if not self.exists(table):
                return f"not checked: table {table} is missing"
            self.shards(table)
            if any(self.damage[table].values()):
                return f"not checked: table {table} has a damaged shard"
        return ""

    def not_checkable_status(self, needs: Sequence[str], names: Sequence[str]) -> Status:
        """Return "warn" if the damaged table is among the checked `names`, and so fails by itself, else "fail"."""
        return "warn" if all(table in names for table in needs if self.not_checkable([table])) else "fail"

    def read(self, shard: Shard, position: int, columns: Sequence[str] | None = None, *,
             repaired: bool = True) -> Iterator[Piece]:
        """Yield a shard in pieces; repaired: with invalid UTF-8 replaced, on which other libraries fail."""
        start = 0
        try:
            with pq.ParquetFile(shard.path) as file:
                for batch in file.iter_batches(self.limits.piece_rows, columns=columns):
                    data = pa.Table.from_batches([batch])
                    yield Piece(shard, start, position + start, replace_invalid_utf8(data) if repaired else data)
                    start += len(data)
        except _READ_ERRORS as error:
            raise Unreadable(shard, error) from error

    def pieces(self, table: str, columns: Sequence[str] | None = None) -> Iterator[Piece]:
        """Yield a table in pieces, with the named columns or all."""
        position = 0
        for shard in self.shards(table):
            yield from self.read(shard, position, columns)
            position += shard.rows

    def ids(self, table: str, *columns: str) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the position of each piece and its columns as int64 arrays, with -1 for missing values."""
        for piece in self.pieces(table, columns):
            yield piece.position, [pc.fill_null(piece.data[name].cast(pa.int64()), -1).to_numpy() for name in columns]

    def hashes(self, table: str, columns: tuple[str, ...]) -> np.ndarray:
        """Return a hash of the texts of each row, uint64 of shape (rows,), cached for the next rule."""
        from pandas.util import hash_array

        if (table, columns) not in self._hashes:
            out = np.zeros(self.rows(table), np.uint64)
            for piece in self.pieces(table, columns):
                part = out[piece.position:piece.position + len(piece.data)]
                for name in columns:
                    texts = pc.fill_null(piece.data[name], "").to_numpy()
                    part[:] = mix_bits(part) + hash_array(texts.astype(object), categorize=False)
            self._hashes[table, columns] = out
        return self._hashes[table, columns]

    def pieces_at(self, table: str, positions: np.ndarray,
                  columns: Sequence[str] | None = None) -> dict[int, tuple[Piece, int]]:
        """Return, for each position, a piece that has only the requested rows, and the row in that piece."""
        positions, out, position = np.unique(positions), {}, 0
        for shard in self.shards(table):
            low, high = np.searchsorted(positions, [position, position + shard.rows])
            if low < high:
                for piece in self.read(shard, position, columns):
                    first, last = np.searchsorted(positions, [piece.position, piece.position + len(piece.data)])
                    cut = replace(piece, data=piece.data.take(pa.array(positions[first:last] - piece.position)))
                    out.update({int(p): (cut, row) for row, p in enumerate(positions[first:last])})
                    if last == high:
                        break
            position += shard.rows
        return out

    def texts(self, table: str, positions: np.ndarray, columns: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Return the texts at positions, by position."""
        return {position: tuple(piece.data[name][row].as_py() for name in columns)
                for position, (piece, row) in self.pieces_at(table, positions, columns).items()}

    def report_rows(self, table: str, positions: np.ndarray,
                    same_as: tuple[str, np.ndarray] | None = None) -> list[Row]:
        """Return the first few of these rows for a report; same_as: table and positions of rows equal to them."""
        positions = positions[:self.limits.shown_rows]
        pieces = self.pieces_at(table, positions)
        rows = [report_row(piece, offset, p - piece.position + piece.start)
                for p in positions.tolist() for piece, offset in [pieces[p]]]
        if same_as:
            others = self.report_rows(same_as[0], same_as[1])
            rows = [{**row, "same_as": where(other)} for row, other in zip(rows, others, strict=True)]
        return rows

    def duplicate_texts(self, table: str, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows with the texts of an earlier row, and those earlier rows: two arrays of positions.

        The texts of the first `Thresholds.compared_texts` rows with equal hashes are compared. Of further ones the hash
        decides; it is wrong in one of 10^7 data sets of a million rows.
        """
        later, first = find_duplicates(self.hashes(table, columns))
        candidates = np.unique(np.concatenate([later[:self.limits.compared_texts], first[:self.limits.compared_texts]]))
        texts = self.texts(table, candidates, columns)
        seen: dict[tuple[str, ...], int] = {}
        exact = []
        for position in candidates.tolist():
            earlier = seen.setdefault(texts[position], position)
            if earlier != position:
                exact.append((position, earlier))
        compared = np.array(exact, np.int64).reshape(-1, 2)
        rest = slice(self.limits.compared_texts, None)
        return np.concatenate([compared[:, 0], later[rest]]), np.concatenate([compared[:, 1], first[rest]])


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    """Return how a schema differs, "" if it does not; nullability and index types of dictionaries do not count."""
    def kind(type_: pa.DataType) -> pa.DataType:
        return type_.value_type if pa.types.is_dictionary(type_) else type_

    def text(type_: pa.DataType) -> str:
        return re.sub(r"list<\w+: (\w+)[^>]*>", r"list<\1>", str(kind(type_)))

    extra = [f"column {name} is not in the schema" for name in found.names if name not in wanted.names]
    twice = [f"column {name} is there twice" for name in wanted.names if found.names.count(name) > 1]
    gone = [f"column {name} is missing" for name in wanted.names if name not in found.names]
    other = [f"column {f.name} is {text(found.field(f.name).type)}, not {text(f.type)}" for f in wanted
             if found.names.count(f.name) == 1 and text(found.field(f.name).type) != text(f.type)]
    return "; ".join(gone + twice + other + extra)


def invalid_bytes(column: pa.ChunkedArray) -> list[bytes | None] | None:
    """Return the bytes of a text column with invalid UTF-8, None for a valid column."""
    try:
        column.validate(full=True)
        return None
    except pa.ArrowInvalid:
        chunks = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in column.chunks]
        return pa.concat_arrays(chunks).cast(pa.binary()).to_pylist()


def replace_invalid_utf8(data: pa.Table) -> pa.Table:
    """Replace bytes that are not UTF-8 in all text columns."""
    for i, name in enumerate(data.column_names):
        if is_text(data.schema.field(i).type) and (raw := invalid_bytes(data.column(i))) is not None:
            texts = [None if value is None else value.decode("utf-8", "replace") for value in raw]
            data = data.set_column(i, name, pa.array(texts, pa.string()))
    return data


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, plain or dictionary-encoded."""
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Hash uint64 values (the finaliser of splitmix64)."""
    values = (values + np.uint64(0x9E3779B97F4A7C15))
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def find_duplicates(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions whose key has occurred before, and the position of its first occurrence."""
    in_order = np.sort(keys)
    if not (in_order[1:] == in_order[:-1]).any():    # usually; sorting positions takes three times the memory
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], in_order[1:] != in_order[:-1]]))
    first = order[np.repeat(starts, np.diff(np.append(starts, len(keys))))]
    later = np.flatnonzero(order != first)
    later = later[np.argsort(order[later])]
    return order[later], first[later]


def report_row(piece: Piece, offset: int, row: int) -> Row:
    """Return a row for a report: texts escaped and cut, with shard and row if the table has no file column."""
    shown: Row = {}
    for name in piece.data.column_names:
        value = piece.data[name][offset].as_py()
        if isinstance(value, bool) or value is None:
            value = "null" if value is None else str(value).lower()
        elif isinstance(value, float):  # JSON has no NaN
            value = float(f"{value:.7g}") if np.isfinite(value) else str(value)
        shown[name] = value if isinstance(value, int | float) else escape_text(value)
    return shown if "file" in shown else {**shown, "shard": piece.shard.name, "row": row}
