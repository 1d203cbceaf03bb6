"""Check a folder of tables: `validate(tables_dir, report_dir=...)` gives a Report and a page beside it.

First the footer of every shard (can it be read, has it the schema), then great-expectations' suite on
every piece of every sound shard, then the rules that need a whole table or two. No rule holds more of
a table than one piece (`Thresholds.piece_rows` rows) and a few arrays of 8 bytes a row.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.errors import UsageError
from data_contracts.page import Report, Row, RuleResult, Status, TableSummary, inert, where, write, write_docs
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.suites import MEANING, Outcome, outcomes, references, run_suite, suite_for

__all__ = ["Report", "RuleResult", "TableSummary", "Thresholds", "validate"]

FREQUENCIES = "frequencies.parquet"
_READ_ERRORS = (OSError, pa.ArrowException, EOFError)
_TEXT = ("title", "content")
# The columns that no two rows of a table may share. A repeated filter pair changes nothing, so it only warns.
_KEYS = {"queries": ("id",), "labels": ("id",), "anchors": ("id",), "clusters": ("query",),
         "tokens": ("id", "augmented"), "positives": ("query", "label"), "filters": ("query", "label"),
         "edges": ("node", "anchor"), "walks": ("node", "anchor")}
_NEVER_EMPTY = ("queries", "labels", "positives", "tokens")


@dataclass(frozen=True)
class Thresholds:
    """When a rule warns or fails, and how much of a table is held at once."""

    leak_share: float = .01      # share of test rows whose text is in train, above which the leak fails
    drift_warn: float = .1       # Population Stability Index of the label frequencies
    drift_fail: float = .25
    shown_rows: int = 10         # failing rows kept for each rule
    piece_rows: int = 131_072    # rows handed to great-expectations at once
    verified: int = 50_000       # repeated texts compared character by character; more are counted by their hash


@dataclass
class _Finding:
    """What a rule has found so far; `status` overrides the status that the count alone would give."""

    count: int = 0
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    status: Status | None = None


@dataclass(frozen=True)
class _Rule:
    name: str
    table: str
    meaning: str
    run: Callable[[], _Finding]
    needs: tuple[str, ...]
    severity: Status = "fail"


@dataclass(frozen=True)
class _Shard:
    path: Path
    name: str
    rows: int


@dataclass(frozen=True)
class _Piece:
    """A run of rows of one shard: `start` is its first row in the shard, `position` that in the table."""

    shard: _Shard
    start: int
    position: int
    data: pa.Table


class _Unreadable(Exception):
    def __init__(self, shard: _Shard, error: Exception) -> None:
        super().__init__(str(error))
        self.shard = shard


class _Tables:
    """The shards under a folder, read piece by piece; a row is known by its position in its table."""

    def __init__(self, root: Path, limits: Thresholds) -> None:
        self.root, self.limits = root, limits
        self.damage: dict[str, dict[str, list[Row]]] = {}  # table -> "readable" or "schema" -> shards
        self._shards: dict[str, list[_Shard]] = {}
        self._hashes: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def names(self) -> list[str]:
        """Return the tables there are: every folder that is not hidden."""
        return sorted(p.name for p in self.root.iterdir() if p.is_dir() and p.name[0] not in "._")

    def exists(self, table: str) -> bool:
        """Say whether a table has any shard, sound or not."""
        return self.count(table) > 0

    def shards(self, table: str) -> list[_Shard]:
        """Return the sound shards in order; what is wrong with the others goes into `damage`."""
        if table not in self._shards:
            self.damage[table] = {"readable": [], "schema": []}
            self._shards[table] = [shard for path in sorted((self.root / table).glob("part-*.parquet"))
                                   if (shard := self._open(table, path))]
        return self._shards[table]

    def _open(self, table: str, path: Path) -> _Shard | None:
        name = inert(f"{table}/{path.name}")
        try:
            if not path.is_file():  # opening a pipe would wait for ever
                raise OSError("not a regular file")
            with pq.ParquetFile(path) as file:
                found, rows = file.schema_arrow, file.metadata.num_rows
        except _READ_ERRORS as error:
            self.mark_unreadable(table, name, error)
            return None
        wrong = _difference(found, SCHEMAS[kind_of(table)])
        if wrong:
            self.damage[table]["schema"].append({"shard": name, "error": inert(wrong, 400)})
            return None
        return _Shard(path, name, rows)

    def mark_unreadable(self, table: str, shard: str, error: Exception) -> None:
        """Note that a shard cannot be read, without the folder's own place in the message."""
        message = str(error).replace(f"{self.root}/", "")
        self.damage[table]["readable"].append({"shard": shard, "error": inert(message, 300)})

    def count(self, table: str) -> int:
        """Return the number of shards, sound or not."""
        return len(list((self.root / table).glob("part-*.parquet")))

    def rows(self, table: str) -> int:
        """Return the number of rows in the sound shards."""
        return sum(shard.rows for shard in self.shards(table))

    def unmet(self, needs: Sequence[str]) -> str:
        """Say why tables cannot be relied on, or nothing if they can."""
        for table in needs:
            if not self.exists(table):
                return f"not checked: table {table} is missing"
            self.shards(table)
            if any(self.damage[table].values()):
                return f"not checked: table {table} has a damaged shard"
        return ""

    def read(self, shard: _Shard, position: int, columns: Sequence[str] | None = None, *,
             mended: bool = True) -> Iterator[_Piece]:
        """Yield one shard in pieces; `mended` replaces bytes that are not UTF-8, which other libraries choke on."""
        start = 0
        try:
            with pq.ParquetFile(shard.path) as file:
                for batch in file.iter_batches(self.limits.piece_rows, columns=columns):
                    data = pa.Table.from_batches([batch])
                    yield _Piece(shard, start, position + start, _mend(data) if mended else data)
                    start += len(data)
        except _READ_ERRORS as error:
            raise _Unreadable(shard, error) from error

    def pieces(self, table: str, columns: Sequence[str] | None = None) -> Iterator[_Piece]:
        """Yield a table in pieces, of some columns or of all."""
        position = 0
        for shard in self.shards(table):
            yield from self.read(shard, position, columns)
            position += shard.rows

    def ids(self, table: str, *columns: str) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the position of each piece and its columns as int64, with -1 for what is missing."""
        for piece in self.pieces(table, columns):
            yield piece.position, [pc.fill_null(piece.data[name].cast(pa.int64()), -1).to_numpy() for name in columns]

    def hashes(self, table: str, columns: tuple[str, ...]) -> np.ndarray:
        """Return a 64-bit hash of each row's texts, kept for the next rule that asks: uint64 of shape (rows,)."""
        from pandas.util import hash_array

        if (table, columns) not in self._hashes:
            out = np.zeros(self.rows(table), np.uint64)
            for piece in self.pieces(table, columns):
                part = out[piece.position:piece.position + len(piece.data)]
                for name in columns:
                    texts = pc.fill_null(piece.data[name], "").to_numpy()
                    part[:] = _mix(part) + hash_array(texts.astype(object), categorize=False)
            self._hashes[table, columns] = out
        return self._hashes[table, columns]

    def at(self, table: str, positions: np.ndarray,
           columns: Sequence[str] | None = None) -> dict[int, tuple[_Piece, int]]:
        """Return for each position the piece that holds it, cut to the rows asked for, and its row in that piece."""
        wanted, found, position = np.unique(positions), {}, 0
        for shard in self.shards(table):
            low, high = np.searchsorted(wanted, [position, position + shard.rows])
            if low < high:
                for piece in self.read(shard, position, columns):
                    first, last = np.searchsorted(wanted, [piece.position, piece.position + len(piece.data)])
                    cut = replace(piece, data=piece.data.take(pa.array(wanted[first:last] - piece.position)))
                    found.update({int(p): (cut, i) for i, p in enumerate(wanted[first:last])})
                    if last == high:
                        break
            position += shard.rows
        return found

    def texts(self, table: str, positions: np.ndarray, columns: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Return the texts at some positions."""
        return {position: tuple(piece.data[name][row].as_py() for name in columns)
                for position, (piece, row) in self.at(table, positions, columns).items()}

    def show(self, table: str, positions: np.ndarray, same_as: tuple[str, np.ndarray] | None = None) -> list[Row]:
        """Return the first few rows at some positions to be shown, with the row of `same_as` each is equal to."""
        positions = positions[:self.limits.shown_rows]
        held = self.at(table, positions)
        rows = [_row(piece, offset, p - piece.position + piece.start)
                for p in positions.tolist() for piece, offset in [held[p]]]
        if same_as:
            others = self.show(same_as[0], same_as[1])
            rows = [{**row, "same_as": where(other)} for row, other in zip(rows, others, strict=True)]
        return rows

    def repeats(self, table: str, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows whose texts an earlier row has, and those earlier rows: two arrays of positions.

        Equal hashes only propose a repeat, the texts themselves decide. Beyond `Thresholds.verified`
        proposals the hash decides, which errs once in 10^7 sets of a million rows.
        """
        later, first = _repeats(self.hashes(table, columns))
        near = np.unique(np.concatenate([later[:self.limits.verified], first[:self.limits.verified]]))
        texts = self.texts(table, near, columns)
        seen: dict[tuple[str, ...], int] = {}
        exact = []
        for position in near.tolist():
            earlier = seen.setdefault(texts[position], position)
            if earlier != position:
                exact.append((position, earlier))
        sure = np.array(exact, np.int64).reshape(-1, 2)
        rest = slice(self.limits.verified, None)
        return np.concatenate([sure[:, 0], later[rest]]), np.concatenate([sure[:, 1], first[rest]])


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    """Say how a schema differs; whether nulls are allowed and how a dictionary is indexed do not matter."""
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


def _invalid(column: pa.ChunkedArray) -> list[bytes | None] | None:
    """Return the bytes of a text column where any of them are not UTF-8, or None where all are."""
    try:
        column.validate(full=True)
        return None
    except pa.ArrowInvalid:
        chunks = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in column.chunks]
        return pa.concat_arrays(chunks).cast(pa.binary()).to_pylist()


def _mend(data: pa.Table) -> pa.Table:
    """Replace bytes that are not UTF-8 in every text column."""
    for i, name in enumerate(data.column_names):
        if _is_text(data.schema.field(i).type) and (raw := _invalid(data.column(i))) is not None:
            texts = [None if value is None else value.decode("utf-8", "replace") for value in raw]
            data = data.set_column(i, name, pa.array(texts, pa.string()))
    return data


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def _mix(values: np.ndarray) -> np.ndarray:
    """Scatter uint64 values over all 64 bits (the finaliser of splitmix64)."""
    values = (values + np.uint64(0x9E3779B97F4A7C15))
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _repeats(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions whose key occurs earlier, in order, and the position of each key's first occurrence."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), bool), ranked[1:] != ranked[:-1]]))
    first = order[np.repeat(starts, np.diff(np.append(starts, len(keys))))]
    later = np.flatnonzero(order != first)
    later = later[np.argsort(order[later])]
    return order[later], first[later]


def _row(piece: _Piece, offset: int, row: int) -> Row:
    """Return one row to be shown: texts inert and short, with its shard where the table knows no file."""
    shown: Row = {}
    for name in piece.data.column_names:
        value = piece.data[name][offset].as_py()
        if isinstance(value, bool) or value is None:
            value = "null" if value is None else str(value).lower()
        elif isinstance(value, float):  # JSON has no word for NaN
            value = float(f"{value:.7g}") if np.isfinite(value) else str(value)
        shown[name] = value if isinstance(value, int | float) else inert(value)
    return shown if "file" in shown else {**shown, "shard": piece.shard.name, "row": row}


# --- rules on rows -----------------------------------------------------------------------------


def _row_rules(tables: _Tables, table: str, names: Sequence[str], kept: list[Any] | None) -> list[RuleResult]:
    """Run great-expectations' suite on every piece of every shard and gather the answers by rule.

    One asset a piece, since a checkpoint over several files of one asset reports the last one only.
    `kept` collects great-expectations' own results where its pages are wanted.
    """
    pointed = references(table)
    unmet = {column: tables.unmet(needs) for column, needs in pointed.items()}
    suite = suite_for(table, {column: sum(map(tables.rows, needs)) for column, needs in pointed.items()
                              if not unmet[column]})
    found = {expectation.meta["rule"]: _Finding() for expectation in suite.expectations if expectation.meta}
    if any(_is_text(f.type) for f in SCHEMAS[kind_of(table)]):
        found["utf8"] = _Finding()
    position = 0
    for shard in tables.shards(table):
        try:
            judged = 0
            for piece in tables.read(shard, position, mended=False):
                broken = _not_utf8(piece, found["utf8"], tables.limits.shown_rows) if "utf8" in found else False
                answer = run_suite(suite, _mend(piece.data) if broken else piece.data, detailed=kept is not None,
                                   shown=tables.limits.shown_rows)
                for outcome in outcomes(suite, answer):
                    _gather(found[outcome.rule], outcome, piece, tables.limits.shown_rows)
                if kept is not None:
                    kept.append((piece.shard.name, answer))
                judged += len(piece.data)
            if judged != shard.rows:
                raise RuntimeError(f"{shard.name}: {judged} rows were judged, the footer says {shard.rows}")
        except _Unreadable as error:
            tables.mark_unreadable(table, shard.name, error)
        position += shard.rows
    for column, reason in unmet.items():
        finding = found["id_range" if pointed[column] == (table,) else "reference"]
        if reason and not finding.count:
            status = _unmet_status(tables, pointed[column], names)
            finding.note = f"{finding.note}; {reason}" if finding.note else reason
            finding.status = "fail" if "fail" in (status, finding.status) else status
    return [_result(name, table, MEANING[name], finding) for name, finding in found.items()]


def _gather(finding: _Finding, outcome: Outcome, piece: _Piece, most: int) -> None:
    """Add what one expectation said of one piece to its rule."""
    if outcome.ok:
        return
    finding.count += outcome.count
    finding.note = finding.note or inert(outcome.error, 300)
    rows = [{"column": outcome.column, **_row(piece, i, piece.start + i)} for i in outcome.rows]
    finding.rows += (rows or [{"shard": piece.shard.name, "column": outcome.column}])[:most - len(finding.rows)]


def _not_utf8(piece: _Piece, finding: _Finding, most: int) -> bool:
    """Add the texts of a piece that are not UTF-8 to a finding and say whether there are any.

    Parquet readers take such texts as they come; a lone surrogate is one of them.
    """
    before, mended = finding.count, None
    for name in piece.data.column_names:
        if not _is_text(piece.data.schema.field(name).type) or (raw := _invalid(piece.data[name])) is None:
            continue
        mended = mended or replace(piece, data=_mend(piece.data))
        bad = [i for i, value in enumerate(raw) if value and value != value.decode("utf-8", "replace").encode()]
        finding.count += len(bad)
        finding.rows += [{"column": name, **_row(mended, i, piece.start + i)} for i in bad[:most - len(finding.rows)]]
    return finding.count > before


def _shard_rules(tables: _Tables, table: str) -> list[RuleResult]:
    """Tell what the footers said of a table: there, readable, of the right schema, not empty."""
    there = tables.exists(table)
    found = [_result("present", table, "the table has at least one shard", _Finding(count=not there))]
    if not there:
        return found
    rows, damage, most = tables.rows(table), tables.damage[table], tables.limits.shown_rows
    for name, meaning in (("readable", "every shard is a whole Parquet file"),
                          ("schema", "every shard has the columns and types of the schema")):
        found.append(_result(name, table, meaning, _Finding(len(damage[name]), damage[name][:most])))
    if kind_of(table) in _NEVER_EMPTY and not any(damage.values()):
        found.append(_result("not_empty", table, "the table has at least one row", _Finding(count=rows == 0)))
    return found


# --- rules on whole tables ---------------------------------------------------------------------


def _whole_rules(tables: _Tables, table: str, previous: Path | None) -> Iterator[_Rule]:
    """Yield the rules that no single piece can answer for a table of this name."""
    kind, _, side = table.partition(".")
    key = " and ".join(_KEYS[kind])
    yield _Rule("pair_unique" if "label" in key or "anchor" in key else "id_unique", table,
                f"no two rows have the same {key}", partial(_same_key, tables, table), (table,),
                "warn" if kind == "filters" else "fail")
    if kind in ("walks", "tokens", "clusters"):
        if kind == "tokens":
            yield _Rule("token_range", table, "token numbers are 0 or more",
                        partial(_negative_token, tables, table), (table,))
        return
    if kind in ("queries", "labels"):
        yield _Rule("uid_unique", table, "no two rows have the same uid",
                    partial(_same_text, tables, table, ("uid",)), (table,))
    if table in ("queries.train", "labels"):
        yield _Rule("duplicate_text", table, "no two rows have the same title and content",
                    partial(_same_text, tables, table, _TEXT), (table,), "warn")
    if kind == "positives" and tables.exists(f"queries.{side}"):
        yield _Rule("queries_without_label", table, "every query has a label",
                    partial(_without_label, tables, table, f"queries.{side}"), (table, f"queries.{side}"), "warn")
    if table == "queries.train" and tables.exists("positives.train"):
        yield _Rule("conflicting_labels", table, "the same title and content always has the same labels",
                    partial(_conflicts, tables), (table, "positives.train"), "warn")
    if table == "queries.test" and tables.exists("queries.train"):
        yield _Rule("split_disjointness", table, "no text of the test set is in the training set",
                    partial(_leak, tables), (table, "queries.train"))
    if table == "positives.train" and tables.exists("labels"):
        yield _Rule("label_drift", table, "labels are as frequent as in the run before",
                    partial(_drift, tables, previous), (table, "labels"))


def _same_key(tables: _Tables, table: str) -> _Finding:
    """Find rows with the key of an earlier row; an int64 a row is held, `first << 31 | second` for a pair.

    Ids out of range break `id_range` or `reference` already; here each counts as different from all.
    """
    keys = np.empty(tables.rows(table), np.int64)
    for position, columns in tables.ids(table, *_KEYS[kind_of(table)]):
        one, two = columns[0], columns[1] if len(columns) > 1 else np.zeros_like(columns[0])
        sound = (one >= 0) & (one < 2**32) & (two >= 0) & (two < 2**31)
        place = np.arange(position, position + len(one))
        keys[position:position + len(one)] = np.where(sound, (one << 31) | two, -1 - place)
    later, first = _repeats(keys)
    return _Finding(len(later), tables.show(table, later, (table, first)))


def _same_text(tables: _Tables, table: str, columns: tuple[str, ...]) -> _Finding:
    """Find rows with the texts of an earlier row."""
    later, first = tables.repeats(table, columns)
    return _Finding(len(later), tables.show(table, later, (table, first)))


def _negative_token(tables: _Tables, table: str) -> _Finding:
    """Find rows with a token below 0, which would read the last row of an embedding table."""
    finding = _Finding()
    for piece in tables.pieces(table, _TEXT):
        for name in _TEXT:
            column = piece.data[name].combine_chunks()
            below = pc.less(pc.list_flatten(column), 0).to_numpy(False)
            bad = np.unique(pc.list_parent_indices(column).to_numpy()[below])
            finding.count += len(bad)
            room = bad[:tables.limits.shown_rows - len(finding.rows)]
            finding.rows += [{"column": name, **row} for row in tables.show(table, piece.position + room)]
    return finding


def _without_label(tables: _Tables, table: str, queries: str) -> _Finding:
    """Count queries that no positive names: allowed, but they teach and measure nothing."""
    seen = np.zeros(tables.rows(queries), bool)
    for _, (query,) in tables.ids(table, "query"):
        seen[query[(query >= 0) & (query < len(seen))]] = True
    bare = np.flatnonzero(~seen)
    return _Finding(len(bare), tables.show(queries, bare))


def _conflicts(tables: _Tables) -> _Finding:
    """Find repeated texts whose label sets differ, by a sum of mixed label ids: 8 bytes a query."""
    sums = np.zeros(tables.rows("queries.train"), np.uint64)
    for _, (query, label) in tables.ids("positives.train", "query", "label"):
        sound = (query >= 0) & (query < len(sums)) & (label >= 0)
        np.add.at(sums, query[sound], _mix(label[sound].astype(np.uint64)))
    later, first = tables.repeats("queries.train", _TEXT)
    differ = sums[later] != sums[first]
    return _Finding(int(differ.sum()), tables.show("queries.train", later[differ], ("queries.train", first[differ])))


def _leak(tables: _Tables) -> _Finding:
    """Find test rows whose text is in train; hashes propose, the texts decide, as in `_Tables.repeats`."""
    test, train = tables.hashes("queries.test", _TEXT), tables.hashes("queries.train", _TEXT)
    both, first, _ = np.intersect1d(train, test, return_indices=True)
    shared = np.flatnonzero(np.isin(test, both))
    twin = first[np.searchsorted(both, test[shared])]
    few = slice(tables.limits.verified)
    here, there = tables.texts("queries.test", shared[few], _TEXT), tables.texts("queries.train", twin[few], _TEXT)
    same = np.ones(len(shared), bool)
    same[few] = [here[a] == there[b] for a, b in zip(shared[few].tolist(), twin[few].tolist(), strict=True)]
    shared, twin = shared[same], twin[same]
    share, most = len(shared) / max(len(test), 1), tables.limits.leak_share
    return _Finding(len(shared), tables.show("queries.test", shared, ("queries.train", twin)),
                    f"{share:.2%} of the test rows; more than {most:.2%} fails" if len(shared) else "",
                    "fail" if share > most else "warn" if len(shared) else "ok")


def _label_counts(tables: _Tables) -> np.ndarray:
    """Return how many training positives each label has: int64 of shape (labels,)."""
    counts = np.zeros(tables.rows("labels"), np.int64)
    for _, (label,) in tables.ids("positives.train", "label"):
        counts += np.bincount(label[(label >= 0) & (label < len(counts))], minlength=len(counts))
    return counts


def _drift(tables: _Tables, previous: Path | None) -> _Finding:
    """Compare the label frequencies with an earlier run's, labels matched by uid.

    A shift that chance alone explains at these sizes is no drift, however small the tables.
    """
    if previous is None:
        return _Finding(note="no earlier run to compare with")
    earlier = pq.read_table(previous / FREQUENCIES if previous.is_dir() else previous, columns=["uid", "count"])
    known, before = earlier["uid"].to_numpy(), earlier["count"].to_numpy()
    uids, now = tables.hashes("labels", ("uid",)), _label_counts(tables)
    if not before.sum() or not now.sum() or before.min() < 0:
        return _Finding(note="not checked: no positives in this run or in the earlier one")
    psi, chance = stability_index(known, before, uids, now)
    limits = tables.limits
    status: Status = ("fail" if psi > max(limits.drift_fail, chance) else
                      "warn" if psi > max(limits.drift_warn, chance) else "ok")
    new, gone = int((~np.isin(uids, known)).sum()), int((~np.isin(known, uids)).sum())
    note = (f"Population Stability Index {psi:.3f} ({limits.drift_warn} warns, {limits.drift_fail} fails); "
            f"{new} labels new, {gone} gone")
    if status == "ok":
        return _Finding(note=note, status=status)
    rank = np.argsort(known)
    place = rank[np.searchsorted(known, uids, sorter=rank).clip(max=len(known) - 1)]
    old = np.where(known[place] == uids, before[place], 0) / before.sum()
    most = np.argsort(-abs(now / now.sum() - old), kind="stable")[:limits.shown_rows]
    rows = [{**row, "share_before": f"{old[i]:.3%}", "share_now": f"{now[i] / now.sum():.3%}"}
            for i, row in zip(most, tables.show("labels", most), strict=True)]
    return _Finding(len(rows), rows, note, status)


def stability_index(known: np.ndarray, before: np.ndarray, uids: np.ndarray, now: np.ndarray) -> tuple[float, float]:
    """Return the Population Stability Index of label frequencies, and what chance reaches once in a thousand.

    Bins hold a tenth of the earlier positives each, from frequent labels to rare ones, and one more holds
    the labels that are new. sum((a - e) ln(a / e)) over bins; without drift it is about chi-squared with
    as many degrees of freedom as bins less one, times (1/n + 1/m) (Yurdakul, Naranjo 2020).
    """
    order = np.lexsort((known, -before))
    cumulated = np.cumsum(before[order]) - before[order]
    bins = np.empty(len(known), np.int64)
    bins[order] = np.minimum(cumulated * 10 // before.sum(), 9)
    rank = np.argsort(known)
    place = rank[np.searchsorted(known, uids, sorter=rank).clip(max=len(known) - 1)]
    mine = np.where(known[place] == uids, bins[place], 10)
    expected = np.bincount(bins, before, 11) / before.sum()
    actual = np.bincount(mine, now, 11) / now.sum()
    expected, actual = expected.clip(min=1e-4), actual.clip(min=1e-4)  # an empty bin would be infinite
    psi = float(np.sum((actual - expected) * np.log(actual / expected)))
    return psi, float(29.6 * (1 / before.sum() + 1 / now.sum()))  # chi-squared with 10 degrees: .999 at 29.6


# --- all together ------------------------------------------------------------------------------


def _result(name: str, table: str, meaning: str, finding: _Finding, severity: Status = "fail") -> RuleResult:
    status = finding.status or (severity if finding.count else "ok")
    return RuleResult(name, table, status, meaning, int(finding.count), finding.note, tuple(finding.rows))


def _unmet_status(tables: _Tables, needs: Sequence[str], names: Sequence[str]) -> Status:
    """Warn where the damaged table fails under its own name in the same report, and fail where it does not."""
    return "warn" if all(table in names for table in needs if tables.unmet([table])) else "fail"


def _apply(tables: _Tables, rule: _Rule, names: Sequence[str]) -> RuleResult:
    """Run one rule; an exception in it is a failing rule."""
    reason = tables.unmet(rule.needs)
    if reason:
        finding = _Finding(note=reason, status=_unmet_status(tables, rule.needs, names))
    else:
        finding = _guarded(rule.run, rule.table)
    return _result(rule.name, rule.table, rule.meaning, finding, rule.severity)


def _guarded(run: Callable[[], _Finding], table: str) -> _Finding:
    try:
        return run()
    except Exception as error:  # data decides what can go wrong here, and no data may end a validation
        place = error.shard.name if isinstance(error, _Unreadable) else table
        return _Finding(1, [{"shard": place, "error": inert(error, 300)}], f"{type(error).__name__}", "fail")


def _chosen(tables: _Tables, only: Sequence[str] | None) -> tuple[list[str], list[RuleResult]]:
    """Return the tables to check and a warning for each folder that is none."""
    names, rules = [], []
    for name in dict.fromkeys(tables.names() if only is None else only):
        try:
            references(name)
        except ValueError as error:
            if only is not None:
                raise UsageError(inert(error, 300)) from error
            rules.append(_result("known_table", inert(name), "the folder is named after a kind of table",
                                 _Finding(1, note=inert(error, 300)), "warn"))
        else:
            names.append(name)
    if not names:
        rules.append(_result("present", "all tables", "there is at least one table", _Finding(1)))
    return names, rules


def _row_results(tables: _Tables, table: str, names: Sequence[str], kept: list[Any] | None) -> list[RuleResult]:
    """Run the rules on rows; where the suite itself cannot run, that is the failing rule."""
    try:
        return _row_rules(tables, table, names, kept)
    except Exception as error:
        broken = _Finding(1, [{"shard": table, "error": inert(error, 300)}], type(error).__name__, "fail")
        return [_result("suite", table, "great-expectations answers every expectation on every row", broken)]


def validate(tables_dir: Path, *, only: Sequence[str] | None = None, previous: Path | None = None, report_dir: Path,
             thresholds: Thresholds | None = None, data_docs: bool = False) -> Report:
    """Check every table under a folder, or `only` some, and write a report; a broken rule is no exception.

    `previous` is an earlier report's folder, or the `frequencies.parquet` in it, to measure drift from.
    `data_docs` builds great-expectations' own pages too. Raises UsageError for a folder that is not
    there or a table of no known kind; `Report.raise_for_failure` raises what the data breaks.
    """
    if not tables_dir.is_dir():
        raise UsageError(f"there is no folder of tables at {tables_dir}")
    tables = _Tables(tables_dir, thresholds or Thresholds())
    names, rules = _chosen(tables, only)
    kept: list[Any] | None = [] if data_docs else None
    for table in names:
        found = _row_results(tables, table, names, kept) if tables.exists(table) else []
        rules += _shard_rules(tables, table) + found
    rules += [_apply(tables, rule, names) for table in names if tables.exists(table)
              for rule in _whole_rules(tables, table, previous)]
    order = {name: i for i, name in enumerate(["known_table", "present", "readable", "schema", "not_empty"])}
    rules.sort(key=lambda rule: order.get(rule.rule, len(order)))
    report = Report(tuple(TableSummary(name, tables.rows(name), tables.count(name)) for name in names), tuple(rules),
                    report_dir / "index.html")
    report_dir.mkdir(parents=True, exist_ok=True)
    if "positives.train" in names:
        _write_frequencies(tables, report_dir)
    if kept is not None:
        write_docs(kept, report_dir / "gx")
    write(report, docs=kept is not None and (report_dir / "gx" / "index.html").exists())
    return report


def _write_frequencies(tables: _Tables, folder: Path) -> None:
    """Leave the label frequencies for the next run to compare with, unless the tables are damaged."""
    if tables.unmet(("positives.train", "labels")):
        return
    with suppress(_Unreadable):  # damage in labels is not yet known where they were not asked for
        counted = pa.table({"uid": tables.hashes("labels", ("uid",)), "count": _label_counts(tables)})
        pq.write_table(counted.sort_by("uid"), folder / FREQUENCIES)
