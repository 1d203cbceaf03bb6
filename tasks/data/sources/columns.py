"""The columns that a caller wants of documents, and the rows that are read of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from data_contracts.errors import ContractError, UsageError
from xcmodels.data.text import clean


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


def match_columns(name: str, layout: Layout, present: Sequence[str]) -> dict[str, str]:
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
    matched = match_columns(name, layout, present)
    for role in layout.required:
        if role not in matched:
            column = layout.columns[role][0]
            free = [each for each in present if each not in matched.values()]
            near = get_close_matches(column, free, n=1, cutoff=0.5)
            name_one = f"name one of these columns: --{role} COLUMN"
            hint = f"the columns are {', '.join(layout.columns)}" if layout.closed else \
                f"did you mean {near[0]!r}?" if near else name_one if matched else \
                f"{name_one}; if they are a first row, write the columns' names before it"
            raise UsageError(f"{name} has no column {column!r}{f' for {role}' if role != column else ''}; "
                             f"it has {', '.join(map(repr, present)) or 'none'}", hint=hint)
    return matched
