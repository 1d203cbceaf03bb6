"""Reading of tables in files or on stdin: CSV, TSV, JSON lines, Parquet or plain lines.

A `Layout` says which columns a caller wants, and their names; the kind of file is detected from its name and its first
lines. Columns are identified by name only, or, where the layout allows a table without a header line, by the layout's
order, with a warning.
"""

import csv
import functools
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.files import STDIN, text_lines
from xcmodels.data.text import clean

log = logging.getLogger(__name__)

KINDS = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")
DELIMITERS = (",", ";", "\t")
LOOKED_AT = 100    # lines from which the delimiter of a table is detected
HELD = 10_000    # JSON lines of which one must have each required column
csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Layout:
    """The columns that a caller wants of a table.

    columns: role -> the possible names of its column, in any case; required: roles that each table must have
    unnamed: roles of the columns of a table without a header line, in order; () refuses such a table
    plain: role of the lines of a file that is no table; "" refuses such a file
    closed: whether CSV columns of other names are refused
    """

    columns: Mapping[str, Sequence[str]]
    required: Sequence[str]
    unnamed: Sequence[str] = ()
    plain: str = ""
    closed: bool = False


@dataclass(frozen=True)
class Row:
    """One row; where: "file:line"; number: its line, or its row in a Parquet file, from 1; cells: role -> value.

    A role without a column has no cell. names: role -> name of its column; empty for a plain line.
    """

    where: str
    number: int
    cells: Mapping[str, Any]
    names: Mapping[str, str]

    def text(self, role: str) -> str:
        """Return a cell as clean text, "" where there is none; ContractError where it is neither text nor number."""
        return plain(self.cells.get(role), f"column {self.names.get(role, role)!r}", self.where, "write it as a text")


def plain(value: Any, what: str, where: str, hint: str = "") -> str:
    """Return a value as clean text; whole numbers are written out, as ids often are numbers."""
    if value is None:
        return ""
    if type(value) not in (str, int):
        raise ContractError(f"{what} must be a text, got {repr(value)[:80]}", where=where, hint=hint)
    return clean(str(value))


def read_rows(source: Path | str, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a file, or of stdin where `source` is "-", in order.

    Raises UsageError for a missing file or column and for an unknown kind of file, ContractError with file and line of
    a row that cannot be read.
    """
    suffix = "" if source == STDIN else file_kind(Path(source))
    if suffix not in KINDS and source != STDIN and not layout.plain and not layout.unnamed:
        raise UsageError(f"{source} is of no kind that can be read as a table",
                         hint=f"known are {', '.join(KINDS)}, texts also with .gz; save a spreadsheet as CSV UTF-8")
    if source != STDIN and not Path(source).exists():
        raise UsageError(f"{source} does not exist", hint="check the path")
    name = "stdin" if source == STDIN else str(source)
    if suffix == ".parquet":
        yield from _parquet_rows(Path(source), name, layout)
        return
    lines = text_lines(source)
    head = list(islice(lines, LOOKED_AT))
    lines = chain(head, lines)
    first = next((line for _, line in head if line.strip()), "")
    if "\0" in first:
        raise ContractError("it holds bytes of value 0, so it is no text", where=f"{name}:1",
                            hint="save it as UTF-8, a spreadsheet as CSV UTF-8; a Parquet file's name ends in .parquet")
    if suffix in (".jsonl", ".json") or (suffix not in (".csv", ".tsv") and first.lstrip().startswith("{")):
        yield from _json_rows(lines, name, layout)
        return
    dialect = _dialect(name, layout, [line for _, line in head], ("\t",) if suffix == ".tsv" else DELIMITERS)
    if layout.plain and suffix not in (".csv", ".tsv"):
        if not set(layout.required) <= _match_columns(name, layout, dialect.header).keys():
            yield from (Row(f"{name}:{number}", number, {layout.plain: line}, {}) for number, line in lines)
            return
        log.warning("%s is read as a table: its first line names the columns %s", name,
                    ", ".join(map(repr, dialect.header)))
    yield from _table_rows((line for _, line in lines), name, layout, dialect)


def file_kind(path: Path) -> str:
    """Return the last suffix of a file's name but .gz, in lower case, "" for none."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


# ---- columns

def _match_columns(name: str, layout: Layout, present: Sequence[str]) -> dict[str, str]:
    """Return role -> name of its column, for the roles that have one. Raises UsageError where two columns match."""
    matched = {}
    for role, names in layout.columns.items():
        folded = {column.casefold() for column in names}
        hits = [column for column in present if column in names] or [
            column for column in present if column.casefold() in folded]
        if len(hits) > 1:
            what = f"{len(hits)} columns {hits[0]!r}" if len(set(hits)) == 1 else \
                f"columns {' and '.join(map(repr, hits))} for {role}"
            raise UsageError(f"{name} has {what}", hint="rename all but one")
        if hits:
            matched[role] = hits[0]
    return matched


def required_columns(name: str, layout: Layout, present: Sequence[str]) -> dict[str, str]:
    """Return role -> name of its column, for the roles that have one; UsageError where a required one has none."""
    matched = _match_columns(name, layout, present)
    for role in layout.required:
        if role not in matched:
            column = layout.columns[role][0]
            free = [each for each in present if each not in matched.values()]
            near = get_close_matches(column, free, n=1, cutoff=0.5)
            hint = f"the columns are {', '.join(layout.columns)}" if layout.closed else \
                f"did you mean {near[0]!r}?" if near else f"name one of these columns: --{role} COLUMN"
            raise UsageError(f"{name} has no column {column!r}{f' for {role}' if role != column else ''}; "
                             f"it has {', '.join(map(repr, present)) or 'none'}", hint=hint)
    return matched


# ---- kinds of file

@dataclass(frozen=True)
class _Dialect:
    """The dialect of a CSV file: its delimiter, its header if it has one, and how many lines precede the table."""

    delimiter: str
    header: Sequence[str] = ()
    skipped: int = 0


def _dialect(name: str, layout: Layout, head: Sequence[str], delimiters: Sequence[str]) -> _Dialect:
    """Detect the dialect of a table; a header line is one that names a column of the layout.

    csv.Sniffer does not know the columns: it goes by how often a mark occurs in a line, which texts full of commas and
    cells of several labels mislead.
    """
    if head and (match := re.fullmatch(r'"?sep=(.)"?', head[0].strip())):    # Excel's own first line
        return replace(_dialect(name, layout, head[1:], match[1]), skipped=1)
    records = {mark: [cells for _, cells in _records(head, mark, name, strict=False)] for mark in delimiters}
    first = {mark: [cell.strip() for cell in rows[0]] for mark, rows in records.items() if rows}
    matched = {mark: len(_match_columns(name, layout, cells)) for mark, cells in first.items()}
    best = max(matched, key=lambda mark: matched[mark], default=delimiters[0])
    if not matched.get(best):
        if layout.unnamed:
            whole = slice(None) if len(head) < LOOKED_AT else slice(-1)    # the last row may be incomplete
            return _Dialect(_fitting(name, layout, {mark: rows[whole] for mark, rows in records.items()}))
        # such a table is refused later, with the names of these columns
        best = max(first, key=lambda mark: len(first[mark]), default=delimiters[0])
    return _Dialect(best, first.get(best, ()))


def _fitting(name: str, layout: Layout, records: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Return the only delimiter by which all rows have a valid number of cells for a table without a header."""
    most = len(layout.unnamed)
    fits = [mark for mark, rows in records.items() if rows and all(2 <= len(cells) <= most for cells in rows)]
    if len(fits) > 1:
        raise ContractError(f"the cells may be separated by {' or by '.join(map(repr, fits))}", where=f"{name}:1",
                            hint=f"begin with a header line: {fits[0].join(layout.required)}")
    return fits[0] if fits else next(iter(records))


def _table_rows(lines: Iterable[str], name: str, layout: Layout, dialect: _Dialect) -> Iterator[Row]:
    """Yield the rows of a delimited table, each with the line where it begins."""
    header = dialect.header
    records = _records(islice(lines, dialect.skipped, None), dialect.delimiter, name, dialect.skipped)
    if not header and not layout.unnamed:
        raise UsageError(f"{name} is empty", hint="a table begins with a line that names its columns")
    if header:
        names = required_columns(name, layout, header)
        if layout.closed and (unknown := [cell for cell in header if cell not in names.values()]):
            raise ContractError(f"there is no place for a column {unknown[0]!r}", where=f"{name}:1",
                                hint=f"the columns are {', '.join(layout.columns)}")
        places = {role: header.index(column) for role, column in names.items()}
        next(records, None)
    else:
        names, places = {}, {role: place for place, role in enumerate(layout.unnamed)}
    for number, cells in records:
        if len(cells) == 1 < len(header or places) and not cells[0].strip():    # a line of blanks
            continue
        if len(cells) > len(header or places) or len(cells) < len(header):
            most = f"the header {len(header)}" if header else f"without a header there are at most {len(places)}"
            raise ContractError(f"the row has {len(cells)} cells and {most}", where=f"{name}:{number}",
                                hint=f"write {dialect.delimiter!r} for each empty cell, too" if len(cells) < len(header)
                                else f"put a cell that holds {dialect.delimiter!r} in quotes")
        values = {role: cells[place] for role, place in places.items() if place < len(cells)}
        if not names:
            log.warning("%s has no header line: its first row is taken for %s", name,
                        ", ".join(f"{role} {cell[:60]!r}" for role, cell in values.items()))
            names = {role: role for role in places}
        yield Row(f"{name}:{number}", number, values, names)


def _records(lines: Iterable[str], delimiter: str, name: str, skipped: int = 0, *,
             strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, cells) of each row that is not blank; `skipped` lines precede `lines`."""
    # strict, as an unclosed quote would otherwise swallow the rest of the file silently
    reader = csv.reader(_with_line_ends(lines), delimiter=delimiter, strict=strict, skipinitialspace=True)
    begin = 1
    try:
        for cells in reader:
            if cells:
                yield skipped + begin, cells
            begin = reader.line_num + 1
    except csv.Error as error:
        raise ContractError(f"the row is not CSV: {error}", where=f"{name}:{skipped + begin}",
                            hint='a quote inside a quoted cell is written twice: "5"" disk"') from error


def _with_line_ends(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with a line end; a lone carriage return (old Macs) ends a line too."""
    for line in lines:
        if "\r" in line:
            yield from io.StringIO(line + "\n", newline="")
        else:
            yield line + "\n"


def _json_rows(lines: Iterable[tuple[int, str]], name: str, layout: Layout) -> Iterator[Row]:
    """Yield the objects of JSON lines; each may lack columns, but one of the first must have each required column."""
    match_columns = functools.lru_cache(maxsize=64)(lambda keys: _match_columns(name, layout, keys))
    lacking = set(layout.required)    # in all rows so far
    held: list[Row] = []    # while a required column is lacking
    keys: dict[str, None] = {}    # of these rows
    for number, cells in _json_objects(lines, name):
        names = match_columns(tuple(cells))
        held.append(Row(f"{name}:{number}", number, {role: cells[key] for role, key in names.items()}, names))
        lacking -= names.keys()
        if not lacking:
            yield from held
            held.clear()
            continue
        keys |= dict.fromkeys(cells)
        if len(held) == HELD:
            required_columns(f"{name} (its first {HELD:,} rows)", layout, [*keys])
    if held:
        required_columns(name, layout, [*keys])


def _json_objects(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object of each line that is not blank, with the line's number."""
    for number, line in lines:
        if not line.strip():
            continue
        hint = 'each line is one object: {"text": "...", "labels": ["..."]}; jq -c ".[]" makes such lines of a list'
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"the line is not JSON: {error}", where=f"{name}:{number}", hint=hint) from error
        if not isinstance(cells, dict):
            raise ContractError(f"the line is JSON but not an object: {line[:80]}", where=f"{name}:{number}", hint=hint)
        yield number, cells


def _parquet_rows(file: Path, name: str, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a Parquet file, one batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            names = required_columns(name, layout, table.schema_arrow.names)
            batches = table.iter_batches(batch_size=4096, columns=sorted(set(names.values())))
            for number, cells in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
                yield Row(f"{name}:{number}", number, {role: cells[key] for role, key in names.items()}, names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ContractError(f"it is not a Parquet file that can be read: {error}", where=name,
                            hint="write it again, or end its name by what it is: .csv") from error
