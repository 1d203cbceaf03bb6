"""Rows of CSV and TSV: the delimiter is detected; columns go by the header line, or by order where there is none."""

import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.columns import Layout, Row, match_columns, required_columns

log = logging.getLogger(__name__)

DELIMITERS = (",", ";", "\t", "|")
LOOKED_AT = 100    # lines from which the delimiter of a table is detected
csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file: its delimiter, its header if it has one, and how many lines precede the table."""

    delimiter: str
    header: Sequence[str] = ()
    skipped: int = 0


def dialect_of(name: str, layout: Layout, head: Sequence[str], delimiters: Sequence[str]) -> Dialect:
    """Detect the dialect of a table; a header line is one that names a column of the layout.

    csv.Sniffer does not know the columns: it goes by how often a mark occurs in a line, which texts full of commas and
    cells of several labels mislead.
    """
    if head and (match := re.fullmatch(r'"?sep=(.)"?', head[0].strip())):    # Excel's own first line
        return replace(dialect_of(name, layout, head[1:], match[1]), skipped=1)
    records = {mark: [cells for _, cells in _records(head, mark, name, strict=False)] for mark in delimiters}
    first = {mark: [cell.strip() for cell in rows[0]] for mark, rows in records.items() if rows}
    matched = {mark: len(match_columns(name, layout, cells)) for mark, cells in first.items()}
    best = max(matched, key=lambda mark: matched[mark], default=delimiters[0])
    if not matched.get(best):
        if layout.unnamed:
            whole = slice(None) if len(head) < LOOKED_AT else slice(-1)    # the last row may be incomplete
            return Dialect(_fitting(name, layout, {mark: rows[whole] for mark, rows in records.items()}))
        # such a table is refused later, with the names of these columns
        best = max(first, key=lambda mark: len(first[mark]), default=delimiters[0])
    return Dialect(best, first.get(best, ()))


def _fitting(name: str, layout: Layout, records: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Return the only delimiter by which all rows have a valid number of cells for a table without a header.

    A | is none there: it is more often between the labels of one cell.
    """
    most = len(layout.unnamed)
    fits = [mark for mark, rows in records.items()
            if mark != "|" and rows and all(2 <= len(cells) <= most for cells in rows)]
    if len(fits) > 1:
        raise ContractError(f"the cells may be separated by {' or by '.join(map(repr, fits))}", where=f"{name}:1",
                            hint=f"begin with a header line: {fits[0].join(layout.required)}")
    return fits[0] if fits else next(iter(records))


def table_rows(lines: Iterable[str], name: str, layout: Layout, dialect: Dialect) -> Iterator[Row]:
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
