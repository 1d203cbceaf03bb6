"""The usable rows of imported documents: texts with their labels, and why one cannot have the uid of another."""

from dataclasses import dataclass

from data_contracts.errors import ContractError
from tasks.data.sources.train_test import key_of


@dataclass(frozen=True)
class Point:
    """A usable row; uid: its number where it has none of its own (`has_uid`). labels: uid -> weight."""

    where: str
    is_test: bool
    uid: str
    has_uid: bool
    title: str
    content: str
    labels: dict[str, float]

    @property
    def text_key(self) -> int | None:
        """The key of its text, by which it is joined with other rows of its half; None with a uid of its own."""
        return None if self.has_uid else key_of(self.title, f"{self.content}\n{self.is_test}")


def same_uid(row: Point, first: Point) -> ContractError:
    """Return why a row cannot have the uid of an earlier one: it is a uid of both, or the number of one without."""
    if row.has_uid and first.has_uid:
        return ContractError(f"the uid {row.uid[:80]!r} is already that of {first.where}", where=row.where,
                             hint="a uid names one row: change or remove one of the two")
    row, other = (first, row) if row.has_uid else (row, first)
    return ContractError(f"it has no uid, and its number, {row.uid}, is the uid of {other.where}", where=row.where,
                         hint="give each row one")
