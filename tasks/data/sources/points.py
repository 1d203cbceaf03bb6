"""The usable rows of imported documents: texts with their labels, and why one cannot have the uid of another."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from data_contracts.errors import ContractError
from tasks.data.sources.train_test import key_of
from xcmodels.data.sorted_ids import unique_counts


@dataclass(frozen=True)
class Point:
    """A usable row; uid: its number where it has none of its own (`has_uid`). labels: uid -> weight.

    group: the name of its group, "" where it has none.
    """

    where: str
    is_test: bool
    uid: str
    has_uid: bool
    title: str
    content: str
    labels: dict[str, float]
    group: str

    @property
    def text_key(self) -> int | None:
        """The key of its text, by which it is joined with other rows of its half; None with a uid of its own."""
        return None if self.has_uid else key_of(self.title, f"{self.content}\n{self.is_test}")


def refuse_same_uids(keys: "array[int]", rows: Iterable[tuple[int, Point]]) -> None:
    """Raise ContractError for the first row with the uid of an earlier one; no row is read if there is none.

    keys: of the uids of all rows, in an array: a set would take 78 bytes a row. rows: each row with its key.
    """
    unique, counts = unique_counts(np.asarray(keys))
    repeated = set(unique[counts > 1].tolist())
    first: dict[int, Point] = {}
    for key, row in rows if repeated else ():
        if key in repeated and first.setdefault(key, row) is not row:
            raise _same_uid(row, first[key])


def _same_uid(row: Point, first: Point) -> ContractError:
    """Return why a row cannot have the uid of an earlier one: it is a uid of both, or the number of one without."""
    if row.has_uid and first.has_uid:
        return ContractError(f"the uid {row.uid[:80]!r} is already that of {first.where}", where=row.where,
                             hint="a uid names one row: change or remove one of the two")
    row, other = (first, row) if row.has_uid else (row, first)
    return ContractError(f"it has no uid, and its number, {row.uid}, is the uid of {other.where}", where=row.where,
                         hint="give each row one")
