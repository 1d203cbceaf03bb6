"""Files of labels to add or to remove: CSV, TSV or JSON lines, each row with the place where it stands."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import ContractError, UsageError
from xcmodels.text import clean

LONGEST = 1 << 16    # characters of a text
COLUMNS = ("uid", "text", "content")


@dataclass(frozen=True)
class Row:
    """One label of a file; where: file:line."""

    where: str
    uid: str
    text: str = ""
    content: str = ""


def read_labels(source: str, *, texts: bool) -> list[Row]:
    """Return the labels of a file, or of stdin where `source` is "-".

    texts: each row has a text and maybe a content beside the uid; without, a line is a uid, or a table has a column
    "uid". A table without a header line has the columns uid, text, content. Raises ContractError at the first bad row.
    """
    name = "stdin" if source == "-" else source
    rows = []
    seen: dict[str, str] = {}
    for line, found in _rows(_text(source), name, texts):
        where = f"{name}:{line}"
        row = Row(where, *(clean(found.get(column) or "") for column in COLUMNS))
        if not row.uid:
            raise ContractError("the row has no uid", where=where)
        if texts and not row.text:
            raise ContractError(f"label {row.uid!r} has no text", where=where, hint="it is found by its text: give one")
        if len(row.text) + len(row.content) > LONGEST:
            raise ContractError(f"the text of label {row.uid!r} has more than {LONGEST:,} characters", where=where,
                                hint="give the beginning of it")
        if row.uid in seen:
            raise ContractError(f"label {row.uid!r} is in {seen[row.uid]} already", where=where,
                                hint="keep one of the two")
        seen[row.uid] = where
        rows.append(row)
    if not rows:
        raise UsageError(f"there is no label in {name}", hint="one a line: uid,text" if texts else "one uid a line")
    return rows


def _text(source: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise ContractError("the line is not UTF-8", where=f"{source}:{line}", hint="save the file as UTF-8") from error


def _rows(text: str, name: str, texts: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, columns) of every row that is not empty."""
    if Path(name).suffix == ".jsonl" or text.lstrip().startswith("{"):
        yield from _json_rows(text, name)
        return
    first = text.split("\n", 1)[0].strip()
    header = [cell.strip().lower() for cell in first.replace("\t", ",").split(",")]
    if not texts and "uid" not in header:
        yield from ((number, {"uid": line}) for number, line in enumerate(text.splitlines(), start=1) if line.strip())
        return
    tabs = Path(name).suffix == ".tsv" or (Path(name).suffix != ".csv" and "\t" in first)
    yield from _table_rows(text, name, "\t" if tabs else ",", header if {"uid", "text"} & set(header) else None)


def _json_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"not a line of JSON: {error}", where=f"{name}:{number}",
                                hint='a line is {"uid": "...", "text": "..."}') from error
        if not isinstance(found, dict) or not all(isinstance(found.get(column, ""), str) for column in COLUMNS):
            raise ContractError("the line is not an object of texts", where=f"{name}:{number}",
                                hint='a line is {"uid": "...", "text": "..."}')
        yield number, found


def _table_rows(text: str, name: str, separator: str, header: list[str] | None) -> Iterator[tuple[int, dict[str, str]]]:
    if header is not None and (strange := [cell for cell in header if cell not in COLUMNS]):
        raise ContractError(f"there is no column {strange[0]!r} of labels", where=f"{name}:1",
                            hint=f"the columns are {', '.join(COLUMNS)}")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    columns = header or list(COLUMNS)
    try:
        for number, cells in enumerate(reader):
            if (header and number == 0) or not any(cell.strip() for cell in cells):
                continue
            if len(cells) > len(columns):
                raise ContractError(f"the row has {len(cells)} columns, there are {len(columns)}",
                                    where=f"{name}:{reader.line_num}", hint="put a text with commas in quotes")
            yield reader.line_num, dict(zip(columns, cells, strict=False))
    except csv.Error as error:
        raise ContractError(f"the row cannot be read: {error}", where=f"{name}:{reader.line_num}") from error
