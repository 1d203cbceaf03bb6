"""The cells of a document's labels and of their weights: split at a separator, cleaned, checked."""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from data_contracts.errors import ContractError
from data_contracts.schemas import FLOAT32_MAX
from tasks.core.wording import plural
from tasks.data.sources.columns import Row, plain

SEPARATORS = (";", "|", ",")
_LOOKED_AT = 10_000  # label cells from which the separator is guessed
_RARE = 0.01  # a character in a smaller share of them is taken as part of a name
_WRITTEN_LIST = re.compile(r"""\[\s*(['"\d].*)?]""", re.DOTALL)    # by str(list) or JSON
_LABELS_HINT = 'write the names of the labels as texts: ["cats", "10"], or "cats; 10"'
_WEIGHTS = float(np.finfo(np.float32).tiny), FLOAT32_MAX    # that a table can hold


def guess_separator(cells: Iterable[Any]) -> tuple[str, str]:
    """Return a separator and the reason: the first of ; | , that is in at least 1% of the first label cells.

    Both are empty where the labels are lists. Raises ContractError where they are lists that were written as texts.
    """
    if not (texts := _first_texts(cells)):
        return "", ""
    counts = {mark: sum(mark in cell for cell in texts) for mark in SEPARATORS}
    seen = ", ".join(f"{count} have {mark!r}" for mark, count in counts.items())
    chosen = next((mark for mark, count in counts.items() if count and count >= _RARE * len(texts)), "")
    taken = f"{chosen!r} taken" if chosen else "each taken for one label"
    return chosen, f"guessed: of {len(texts)} label cells {seen}; {taken}, give a separator to decide otherwise"


def reason_of_given(separator: str, cells: Iterable[Any]) -> str:
    """Return the reason for a separator that was given, and whether none of the first label cells has it.

    Raises ContractError as `guess_separator` does, but for "", which takes any text for one label.
    """
    texts = _first_texts(cells) if separator else []
    if not texts or any(separator in cell for cell in texts):
        return "given"
    guess = guess_separator(texts)[0]
    other = f"; without it {guess!r} is taken" if guess else ""
    return f"given, but none of {len(texts)} label cells has {separator!r}{other}"


def _first_texts(cells: Iterable[Any]) -> list[str]:
    texts = list(islice((cell for cell in cells if isinstance(cell, str) and cell), _LOOKED_AT))
    lists = [cell for cell in texts if _WRITTEN_LIST.fullmatch(cell.strip())]
    if lists and len(lists) >= (1 - _RARE) * len(texts):
        raise ContractError(f"the labels are lists that were written as texts, such as {lists[0][:80]}",
                            hint="write names with a separator between, in pandas: table.labels.str.join('|'); or save "
                                 "the table as JSON lines or Parquet")
    return texts


def label_names(row: Row, separator: str, role: str = "labels") -> list[str]:
    """Return the label names of a row, cleaned, in order; "" for one that is blank."""
    value = row.cells.get(role)
    if value is not None and not isinstance(value, str | list):
        raise ContractError(f"labels must be a list or a text, got {repr(value)[:80]}", where=row.where,
                            hint=_LABELS_HINT)
    return [plain(part, "a label", row.where, _LABELS_HINT) for part in _parts(value, separator)]


def weigh(row: Row, names: list[str], separator: str, *, wanted: bool) -> dict[str, float]:
    """Return label name -> weight, 1 without a column of weights; a name that stands twice has its first weight.

    wanted: whether there is such a column, so that each row must have a weight.
    """
    names = _without_tail(names)
    weights = [_weight(part, row.where) for part in _without_tail(_parts(row.cells.get("weight"), separator))]
    if wanted and not weights:    # 1 would be next to nothing where the others are counts
        raise ContractError("the row has no weight", where=row.where,
                            hint="give each row one, or leave out those without")
    weights = weights or [1.0]
    if len(weights) not in (1, len(names)):
        raise ContractError(f"the row has {plural(len(names), 'label')} and {plural(len(weights), 'weight')}",
                            where=row.where, hint="give one weight for all of them, or one for each; a decimal has a "
                                                  "point, 1.5")
    weights *= len(names) if len(weights) == 1 else 1
    out: dict[str, float] = {}
    for name, weight in zip(names, weights, strict=True):
        if name:
            out.setdefault(name, weight)
    return out


def _parts(value: Any, separator: str) -> list[Any]:
    """Return the parts of a cell: of a list, or of a text split at the separator."""
    if isinstance(value, str):
        return value.split(separator) if separator else [value]
    return value if isinstance(value, list) else [] if value is None else [value]


def _without_tail(parts: list[Any]) -> list[Any]:
    """Return the parts without the blank ones at the end, which exporters write; a single one is kept."""
    end = len(parts)
    while end > 1 and isinstance(parts[end - 1], str) and not parts[end - 1].strip():
        end -= 1
    return parts[:end]


def _weight(value: Any, where: str) -> float:
    """Return a weight as a number; raise ContractError where it is none, or not one that float32 holds above 0."""
    try:
        weight = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError, OverflowError):
        weight = 0.0
    if not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
        raise ContractError(f"a weight must be a number above 0, {_WEIGHTS[0]:.1e} to {_WEIGHTS[1]:.1e}, "
                            f"got {repr(value)[:80]}", where=where,
                            hint="write a decimal with a point, 1.5; leave out rows that should not count, or name "
                                 "another column: --weight COLUMN")
    return weight
