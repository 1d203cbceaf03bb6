"""Reading of tables in files or on stdin: CSV, TSV, JSON lines, Parquet or plain lines.

A `Layout` says which columns a caller wants, and their names; the kind of file is detected from its name and its first
lines. Columns are identified by name only, or, where the layout allows a table without a header line, by the layout's
order, with a warning.
"""

import functools
import json
import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.columns import Layout, Row, match_columns, required_columns
from tasks.data.sources.delimited import DELIMITERS, LOOKED_AT, dialect_of, table_rows
from tasks.data.sources.files import STDIN, require_file, text_lines

log = logging.getLogger(__name__)

KINDS = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")
HELD = 10_000    # JSON lines of which one must have each required column


def read_rows(source: Path | str, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a file, or of stdin where `source` is "-", in order.

    Raises UsageError for a missing file or column and for an unknown kind of file, ContractError with file and line of
    a row that cannot be read.
    """
    suffix = "" if source == STDIN else file_kind(Path(source))
    if suffix not in KINDS and source != STDIN and not layout.plain and not layout.unnamed:
        raise UsageError(f"{source} is of no kind that can be read as a table",
                         hint=f"known are {', '.join(KINDS)}, texts also with .gz; save a spreadsheet as CSV UTF-8")
    require_file(source)
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
    dialect = dialect_of(name, layout, [line for _, line in head], ("\t",) if suffix == ".tsv" else DELIMITERS)
    if layout.plain and suffix not in (".csv", ".tsv"):
        if not set(layout.required) <= match_columns(name, layout, dialect.header).keys():
            yield from (Row(f"{name}:{number}", number, {layout.plain: line}, {}) for number, line in lines)
            return
        log.warning("%s is read as a table: its first line names the columns %s", name,
                    ", ".join(map(repr, dialect.header)))
    yield from table_rows((line for _, line in lines), name, layout, dialect)


def file_kind(path: Path) -> str:
    """Return the last suffix of a file's name but .gz, in lower case, "" for none."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def _json_rows(lines: Iterable[tuple[int, str]], name: str, layout: Layout) -> Iterator[Row]:
    """Yield the objects of JSON lines; each may lack columns, but one of the first must have each required column."""
    columns_of = functools.lru_cache(maxsize=64)(lambda keys: match_columns(name, layout, keys))
    lacking = set(layout.required)    # in all rows so far
    held: list[Row] = []    # while a required column is lacking
    keys: dict[str, None] = {}    # of these rows
    for number, cells in _json_objects(lines, name):
        names = columns_of(tuple(cells))
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
