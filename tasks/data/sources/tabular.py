"""Rows of the tables that people have: CSV, TSV, JSON lines, Parquet or plain lines, in a file or on stdin.

A caller says which columns it wants and by which names, a `Layout`; how the file is made is found out from its name
and its first lines. Columns are told apart by their names alone, or, where a table may be without a header line, taken
in the order that the layout has, with a notice.
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
LOOKED_AT = 100    # lines by which the delimiter of a table is found
csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Layout:
    """What a caller wants of a table.

    columns: by role, the names that its column may have, in any case; required: roles that each table must have
    unnamed: roles of the columns of a table without a header line, in their order; () refuses such a table
    plain: role of the lines of a file that is no table; "" where there must be a table
    closed: a CSV column of another name is refused
    """

    columns: Mapping[str, Sequence[str]]
    required: Sequence[str]
    unnamed: Sequence[str] = ()
    plain: str = ""
    closed: bool = False


@dataclass(frozen=True)
class Row:
    """One row; where: file:line; number: its line, or its place in a Parquet file, from 1; cells: values by role.

    A role that the row has no column for is not among the cells. names: of the columns, by role; none of a plain line.
    """

    where: str
    number: int
    cells: Mapping[str, Any]
    names: Mapping[str, str]

    def text(self, role: str) -> str:
        """Return a cell as clean text, "" where there is none; ContractError where it is neither text nor number."""
        return plain(self.cells.get(role), f"column {self.names.get(role, role)!r}", self.where)


def plain(value: Any, what: str, where: str) -> str:
    """Return a value as clean text; whole numbers are written out, as ids often are numbers."""
    if value is None:
        return ""
    if type(value) not in (str, int):
        raise ContractError(f"{what} must be a text, got {value!r}", where=where)
    return clean(str(value))


def read_rows(source: Path | str, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a file, or of stdin where `source` is "-", in their order.

    Raises UsageError for a file or a column that is not there and for a kind of file that is not known, ContractError
    naming file and line of a row that cannot be read.
    """
    suffix = "" if source == STDIN else _suffix(Path(source))
    if suffix not in KINDS and source != STDIN and not layout.plain and not layout.unnamed:
        raise UsageError(f"{source} is of no kind that can be read as a table",
                         hint=f"known are {', '.join(KINDS)}; save a spreadsheet as CSV UTF-8")
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
        if not set(layout.required) <= _found(name, layout, dialect.header).keys():
            yield from (Row(f"{name}:{number}", number, {layout.plain: line}, {}) for number, line in lines)
            return
        log.warning("%s is read as a table: its first line names the columns %s", name,
                    ", ".join(map(repr, dialect.header)))
    yield from _table_rows((line for _, line in lines), name, layout, dialect)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


# ---- columns

def _found(name: str, layout: Layout, present: Sequence[str]) -> dict[str, str]:
    """Return the name of each role's column, of the roles that have one; UsageError where two columns could be it."""
    found = {}
    for role, names in layout.columns.items():
        like = {each.casefold() for each in names}
        hits = [each for each in present if each in names] or [each for each in present if each.casefold() in like]
        if len(hits) > 1:
            what = f"{len(hits)} columns {hits[0]!r}" if len(set(hits)) == 1 else \
                f"columns {' and '.join(map(repr, hits))} for {role}"
            raise UsageError(f"{name} has {what}", hint="rename all but one")
        if hits:
            found[role] = hits[0]
    return found


def _checked(name: str, layout: Layout, present: Sequence[str]) -> dict[str, str]:
    """Return what `_found` does; UsageError where a required column is not there."""
    found = _found(name, layout, present)
    for role in layout.required:
        if role not in found:
            wanted = layout.columns[role][0]
            near = get_close_matches(wanted, present, n=1, cutoff=0.5)
            hint = f"the columns are {', '.join(layout.columns)}" if layout.closed else \
                f"did you mean {near[0]!r}?" if near else f"name one of these columns: --{role} COLUMN"
            raise UsageError(f"{name} has no column {wanted!r}{f' for {role}' if role != wanted else ''}; "
                             f"it has {', '.join(map(repr, present)) or 'none'}", hint=hint)
    return found


# ---- kinds of file

@dataclass(frozen=True)
class _Dialect:
    """How a table is written: its delimiter, the cells of its header line if it has one, the lines before that."""

    mark: str
    header: Sequence[str] = ()
    skipped: int = 0


def _dialect(name: str, layout: Layout, head: Sequence[str], marks: Sequence[str]) -> _Dialect:
    """Find out how a table is written: a header line is one that names a wanted column by one of the delimiters."""
    if head and (said := re.fullmatch(r'"?sep=(.)"?', head[0].strip())):    # Excel's own first line
        return replace(_dialect(name, layout, head[1:], said[1]), skipped=1)
    records = {mark: [cells for _, cells in _records(head, mark, name, strict=False)] for mark in marks}
    first = {mark: [cell.strip() for cell in found[0]] for mark, found in records.items() if found}
    known = {mark: len(_found(name, layout, cells)) for mark, cells in first.items()}
    best = max(known, key=lambda mark: known[mark], default=marks[0])
    if not known.get(best):
        if layout.unnamed:
            whole = slice(None) if len(head) < LOOKED_AT else slice(-1)    # the last row may be cut
            return _Dialect(_fitting(name, layout, {mark: found[whole] for mark, found in records.items()}))
        # it will be refused with what is there
        best = max(first, key=lambda mark: len(first[mark]), default=marks[0])
    return _Dialect(best, first.get(best, ()))


def _fitting(name: str, layout: Layout, records: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Return the only delimiter by which all rows have as many cells as rows without a header can have."""
    most = len(layout.unnamed)
    fits = [mark for mark, found in records.items() if found and all(2 <= len(cells) <= most for cells in found)]
    if len(fits) > 1:
        raise ContractError(f"the cells may be separated by {' or by '.join(map(repr, fits))}", where=f"{name}:1",
                            hint=f"begin with a header line: {fits[0].join(layout.required)}")
    return fits[0] if fits else next(iter(records))


def _table_rows(lines: Iterable[str], name: str, layout: Layout, dialect: _Dialect) -> Iterator[Row]:
    """Yield the rows of a table of cells between delimiters, each with the line where it begins."""
    header = dialect.header
    records = _records(islice(lines, dialect.skipped, None), dialect.mark, name, dialect.skipped)
    if header or not layout.unnamed:
        names = _checked(name, layout, header)
        if layout.closed and (strange := [cell for cell in header if cell not in names.values()]):
            raise ContractError(f"there is no place for a column {strange[0]!r}", where=f"{name}:1",
                                hint=f"the columns are {', '.join(layout.columns)}")
        places = {role: header.index(column) for role, column in names.items()}
        next(records, None)
    else:
        names, places = {}, {role: place for place, role in enumerate(layout.unnamed)}
    for number, cells in records:
        where = f"{name}:{number}"
        if len(cells) > len(header or places) or len(cells) < len(header):
            most = f"the header {len(header)}" if header else f"without a header there are at most {len(places)}"
            raise ContractError(f"the row has {len(cells)} cells and {most}", where=where,
                                hint=f"put a cell that holds {dialect.mark!r} in quotes")
        found = {role: cells[place] for role, place in places.items() if place < len(cells)}
        if not names:
            _say_unnamed(name, found)
            names = {role: role for role in places}
        yield Row(where, number, found, names)


def _say_unnamed(name: str, found: Mapping[str, str]) -> None:
    log.warning("%s has no header line: its first row is taken for %s", name,
                ", ".join(f"{role} {cell[:60]!r}" for role, cell in found.items()))


def _records(lines: Iterable[str], mark: str, name: str, before: int = 0, *,
             strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each row that has any; the line is the one where it begins, `before` being passed over."""
    # strict, as a quote that is not closed would otherwise swallow the rest of the file in silence
    reader = csv.reader(_ended(lines), delimiter=mark, strict=strict, skipinitialspace=True)
    begin = 1
    try:
        for cells in reader:
            if cells:
                yield before + begin, cells
            begin = reader.line_num + 1
    except csv.Error as error:
        raise ContractError(f"the row is not CSV: {error}", where=f"{name}:{before + begin}",
                            hint='a quote inside a quoted cell is written twice: "5"" disk"') from error


def _ended(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends, also where they end as on old Macs."""
    for line in lines:
        if "\r" in line:
            yield from io.StringIO(line + "\n", newline="")
        else:
            yield line + "\n"


def _json_rows(lines: Iterable[tuple[int, str]], name: str, layout: Layout) -> Iterator[Row]:
    """Yield the objects of JSON lines; the first must have every column that is required, a later one may not."""
    first = True
    found = functools.lru_cache(maxsize=64)(lambda keys: _found(name, layout, keys))
    for number, line in lines:
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
            if not isinstance(cells, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            raise ContractError(f"the line is not a JSON object: {error}", where=f"{name}:{number}",
                                hint='each line is one object: {"text": "...", "labels": ["..."]}') from error
        names = _checked(name, layout, list(cells)) if first else found(tuple(cells))
        first = False
        yield Row(f"{name}:{number}", number, {role: cells[column] for role, column in names.items()}, names)


def _parquet_rows(file: Path, name: str, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a Parquet file, batch by batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            names = _checked(name, layout, table.schema_arrow.names)
            number = 0
            for batch in table.iter_batches(batch_size=4096, columns=sorted(set(names.values()))):
                for cells in batch.to_pylist():
                    number += 1
                    yield Row(f"{name}:{number}", number, {role: cells[it] for role, it in names.items()}, names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ContractError(f"it is not a Parquet file that can be read: {error}", where=name) from error
