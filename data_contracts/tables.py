"""Tables stored as Parquet shards: read piece by piece, hashed, searched for repeats."""

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
    """A sound file of a table; name: as reports show it."""

    path: Path
    name: str
    rows: int


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one shard; start, position: its first row in the shard, and in the table."""

    shard: Shard
    start: int
    position: int
    data: pa.Table


class Unreadable(Exception):
    """A shard cannot be read although its footer is sound."""

    def __init__(self, shard: Shard, error: Exception) -> None:
        super().__init__(str(error))
        self.shard = shard


class Tables:
    """The tables under a folder, read piece by piece; a row is identified by its position in its table."""

    def __init__(self, root: Path, limits: Thresholds | None = None) -> None:
        self.root, self.limits = root, limits or Thresholds()
        self.damage: dict[str, dict[str, list[Row]]] = {}  # table -> "readable" or "schema" -> shards
        self._shards: dict[str, list[Shard]] = {}
        self._hashes: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def names(self) -> list[str]:
        """Return the names of the tables: every folder that is not hidden."""
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and path.name[0] not in "._")

    def exists(self, table: str) -> bool:
        """Return whether a table has any shard, sound or not."""
        return self.count(table) > 0

    def shards(self, table: str) -> list[Shard]:
        """Return the sound shards in order; record what is wrong with the others in `damage`."""
        if table not in self._shards:
            self.damage[table] = {"readable": [], "schema": []}
            self._shards[table] = [shard for path in sorted((self.root / table).glob("part-*.parquet"))
                                   if (shard := self._open(table, path))]
        return self._shards[table]

    def _open(self, table: str, path: Path) -> Shard | None:
        name = escape_text(f"{table}/{path.name}")
        try:
            if not path.is_file():  # opening a pipe would wait for ever
                raise OSError("not a regular file")
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except _READ_ERRORS as error:
            self.mark_unreadable(table, name, error)
            return None
        wrong = _difference(schema, SCHEMAS[kind_of(table)])
        if wrong:
            self.damage[table]["schema"].append({"shard": name, "error": escape_text(wrong, 400)})
            return None
        return Shard(path, name, rows)

    def mark_unreadable(self, table: str, shard: str, error: Exception) -> None:
        """Record in `damage` that a shard cannot be read, with the folder's path cut from the message."""
        message = str(error).replace(f"{self.root}/", "")
        self.damage[table]["readable"].append({"shard": shard, "error": escape_text(message, 300)})

    def count(self, table: str) -> int:
        """Return the number of shards, sound or not."""
        return len(list((self.root / table).glob("part-*.parquet")))

    def rows(self, table: str) -> int:
        """Return the number of rows in the sound shards."""
        return sum(shard.rows for shard in self.shards(table))

    def unmet(self, needs: Sequence[str]) -> str:
        """Return why tables cannot be relied on, "" where they can."""
        for table in needs:
            if not self.exists(table):
                return f"not checked: table {table} is missing"
            self.shards(table)
            if any(self.damage[table].values()):
                return f"not checked: table {table} has a damaged shard"
        return ""

    def unmet_status(self, needs: Sequence[str], names: Sequence[str]) -> Status:
        """Return "warn" where the damaged table fails under its own name in the same report, else "fail"."""
        return "warn" if all(table in names for table in needs if self.unmet([table])) else "fail"

    def read(self, shard: Shard, position: int, columns: Sequence[str] | None = None, *,
             mended: bool = True) -> Iterator[Piece]:
        """Yield one shard in pieces; mended: replace bytes that are not UTF-8, on which other libraries fail."""
        start = 0
        try:
            with pq.ParquetFile(shard.path) as file:
                for batch in file.iter_batches(self.limits.piece_rows, columns=columns):
                    data = pa.Table.from_batches([batch])
                    yield Piece(shard, start, position + start, mend(data) if mended else data)
                    start += len(data)
        except _READ_ERRORS as error:
            raise Unreadable(shard, error) from error

    def pieces(self, table: str, columns: Sequence[str] | None = None) -> Iterator[Piece]:
        """Yield a table in pieces, with some columns or all."""
        position = 0
        for shard in self.shards(table):
            yield from self.read(shard, position, columns)
            position += shard.rows

    def ids(self, table: str, *columns: str) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the position of each piece and its columns as int64, with -1 for what is missing."""
        for piece in self.pieces(table, columns):
            yield piece.position, [pc.fill_null(piece.data[name].cast(pa.int64()), -1).to_numpy() for name in columns]

    def hashes(self, table: str, columns: tuple[str, ...]) -> np.ndarray:
        """Return a 64-bit hash of each row's texts, cached for the next rule: uint64 of shape (rows,)."""
        from pandas.util import hash_array

        if (table, columns) not in self._hashes:
            out = np.zeros(self.rows(table), np.uint64)
            for piece in self.pieces(table, columns):
                part = out[piece.position:piece.position + len(piece.data)]
                for name in columns:
                    texts = pc.fill_null(piece.data[name], "").to_numpy()
                    part[:] = mix(part) + hash_array(texts.astype(object), categorize=False)
            self._hashes[table, columns] = out
        return self._hashes[table, columns]

    def at(self, table: str, positions: np.ndarray,
           columns: Sequence[str] | None = None) -> dict[int, tuple[Piece, int]]:
        """Return for each position its piece, cut to the requested rows, and its row in that piece."""
        wanted, out, position = np.unique(positions), {}, 0
        for shard in self.shards(table):
            low, high = np.searchsorted(wanted, [position, position + shard.rows])
            if low < high:
                for piece in self.read(shard, position, columns):
                    first, last = np.searchsorted(wanted, [piece.position, piece.position + len(piece.data)])
                    cut = replace(piece, data=piece.data.take(pa.array(wanted[first:last] - piece.position)))
                    out.update({int(p): (cut, row) for row, p in enumerate(wanted[first:last])})
                    if last == high:
                        break
            position += shard.rows
        return out

    def texts(self, table: str, positions: np.ndarray, columns: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Return the texts at some positions."""
        return {position: tuple(piece.data[name][row].as_py() for name in columns)
                for position, (piece, row) in self.at(table, positions, columns).items()}

    def show(self, table: str, positions: np.ndarray, same_as: tuple[str, np.ndarray] | None = None) -> list[Row]:
        """Return the first few rows at some positions, for a report; same_as: the table and rows they are equal to."""
        positions = positions[:self.limits.shown_rows]
        pieces = self.at(table, positions)
        rows = [shown_row(piece, offset, p - piece.position + piece.start)
                for p in positions.tolist() for piece, offset in [pieces[p]]]
        if same_as:
            others = self.show(same_as[0], same_as[1])
            rows = [{**row, "same_as": where(other)} for row, other in zip(rows, others, strict=True)]
        return rows

    def repeats(self, table: str, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows whose texts an earlier row has, and those earlier rows: two arrays of positions.

        Rows with equal hashes are compared by their texts; beyond the first `Thresholds.verified` of them the hash
        decides, which errs once in 10^7 sets of a million rows.
        """
        later, first = repeated(self.hashes(table, columns))
        candidates = np.unique(np.concatenate([later[:self.limits.verified], first[:self.limits.verified]]))
        texts = self.texts(table, candidates, columns)
        seen: dict[tuple[str, ...], int] = {}
        exact = []
        for position in candidates.tolist():
            earlier = seen.setdefault(texts[position], position)
            if earlier != position:
                exact.append((position, earlier))
        verified = np.array(exact, np.int64).reshape(-1, 2)
        rest = slice(self.limits.verified, None)
        return np.concatenate([verified[:, 0], later[rest]]), np.concatenate([verified[:, 1], first[rest]])


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    """Return how a schema differs, "" where it does not; nullability and dictionaries' index types do not count."""
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
    """Return the bytes of a text column that is not all UTF-8, None for one that is."""
    try:
        column.validate(full=True)
        return None
    except pa.ArrowInvalid:
        chunks = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in column.chunks]
        return pa.concat_arrays(chunks).cast(pa.binary()).to_pylist()


def mend(data: pa.Table) -> pa.Table:
    """Replace bytes that are not UTF-8 in every text column."""
    for i, name in enumerate(data.column_names):
        if is_text(data.schema.field(i).type) and (raw := invalid_bytes(data.column(i))) is not None:
            texts = [None if value is None else value.decode("utf-8", "replace") for value in raw]
            data = data.set_column(i, name, pa.array(texts, pa.string()))
    return data


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, plain or dictionary-encoded."""
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def mix(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values over all 64 bits (the finaliser of splitmix64)."""
    values = (values + np.uint64(0x9E3779B97F4A7C15))
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def repeated(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions whose key occurs earlier, in order, and the position of each key's first occurrence."""
    in_order = np.sort(keys)
    if not (in_order[1:] == in_order[:-1]).any():    # the usual case; sorting positions takes three times the memory
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), bool), in_order[1:] != in_order[:-1]]))
    first = order[np.repeat(starts, np.diff(np.append(starts, len(keys))))]
    later = np.flatnonzero(order != first)
    later = later[np.argsort(order[later])]
    return order[later], first[later]


def shown_row(piece: Piece, offset: int, row: int) -> Row:
    """Return one row for a report: texts escaped and short, with its shard where the table has no file column."""
    shown: Row = {}
    for name in piece.data.column_names:
        value = piece.data[name][offset].as_py()
        if isinstance(value, bool) or value is None:
            value = "null" if value is None else str(value).lower()
        elif isinstance(value, float):  # JSON has no word for NaN
            value = float(f"{value:.7g}") if np.isfinite(value) else str(value)
        shown[name] = value if isinstance(value, int | float) else escape_text(value)
    return shown if "file" in shown else {**shown, "shard": piece.shard.name, "row": row}
