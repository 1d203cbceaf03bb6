"""The labels that a request may be answered with: `only` without `without`, by uid or by a branch of the vocabulary."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from xcmodels.data.corpus import Texts
from xcmodels.data.label_branches import Branches
from xcmodels.retrieval.proposers import Selection
from xcmodels.retrieval.uid_index import UidIndex

# Labels that are scored one by one, without an index. WordNet, one thread, one text: 1,000 of them took 1.1 ms, 4,000
# took 5.3 ms and 8,000 took 20 ms; an index's shortlist takes 1.2 ms.
MAX_SCORED_LABELS = 4096
# Shortlists are this many times as long where a request leaves labels out; docs/serving.md has what it gains.
DEEPER = 4
UNDER = "under"
Entry = str | Mapping[Any, str]    # a label's uid, or {"under": uid} for a branch


class UnknownEntry(NamedTuple):
    """An entry of a list that names no label.

    kind: "branch" where {"under": uid} names no concept; "concept" where a concept has the uid but is no label; else
    "label".
    """

    name: str
    place: int
    uid: str
    kind: Literal["label", "concept", "branch"]


class UnknownLabel(ValueError):
    """Entries of `only` or `without` that name no label."""

    def __init__(self, unknown: Sequence[UnknownEntry]) -> None:
        self.unknown = list(unknown)
        name, place, uid, kind = self.unknown[0]
        more = f", nor for {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        remedy = {"label": "xc export embeddings --out labels.parquet lists all",
                  "concept": f"it is a concept: {({UNDER: uid})} names the labels under it",
                  "branch": "broader.tsv of the data set lists all"}[kind]
        what = "concept" if kind == "branch" else "label"
        super().__init__(f"there is no {what} for {name}[{place}], {uid!r}{more}; {remedy}")


class NoBranches(ValueError):
    """A branch was asked for, and the retriever has no broader relation: (name of the list, place in it)."""

    def __init__(self, name: str, place: int) -> None:
        self.name, self.place = name, place
        super().__init__(f"{name}[{place}] names a branch, but the retriever knows no broader relation; train it on "
                         "data that has one: xc data import ... --vocabulary FILE, with a vocabulary in SKOS")


class Selector:
    """Makes the selections of a retriever's labels; a removed one is in none of them, but its uid is still known."""

    def __init__(self, everything: Selection, uids: Texts, branches: Branches | None) -> None:
        self.everything, self.index, self.branches = everything, UidIndex(uids), branches
        self.concepts = None if branches is None else UidIndex(branches.uids)

    def __call__(self, only: Iterable[Entry] | None, without: Iterable[Entry] | None) -> Selection:
        """Return the selection of `only` (None for all labels) less `without` (None for none).

        Raises UnknownLabel, NoBranches, and ValueError for what is no entry.
        """
        lists = {name: _checked(name, entries) for name, entries in (("only", only), ("without", without))
                 if entries is not None}
        if only is None and not lists.get("without"):
            return self.everything
        allowed = np.full(len(self.index.uids), only is None)
        chosen = {name: self._labels(name, entries) for name, entries in lists.items()}
        if unknown := [each for _, unknown_here in chosen.values() for each in unknown_here]:
            raise UnknownLabel(unknown)
        for name, (labels, _) in chosen.items():
            allowed[labels] = name == "only"
        return self.among(allowed)

    def among(self, allowed: np.ndarray) -> Selection:
        """Return the selection of the labels that are `allowed`, (L,) bool, less the removed ones."""
        allowed = allowed.copy()
        allowed[self.everything.without] = False
        kept, left_out = np.flatnonzero(allowed), np.flatnonzero(~allowed)
        if len(kept) <= MAX_SCORED_LABELS:
            return Selection(left_out, len(kept), {}, kept)
        proposers = {name: proposer.leaving_out(left_out) for name, proposer in self.everything.proposers.items()}
        return Selection(left_out, len(kept), proposers, depth=DEEPER)

    def _labels(self, name: str, entries: Sequence[Entry]) -> tuple[np.ndarray, list[UnknownEntry]]:
        """Return the ids of the labels that a list names, and what it names that is unknown."""
        roots, uids = dict[int, str](), [entry for entry in entries if isinstance(entry, str)]
        if len(uids) < len(entries):
            roots = {place: entry[UNDER] for place, entry in enumerate(entries) if not isinstance(entry, str)}
        labels, unknown = self.index.rows(uids), list[UnknownEntry]()
        if (lost := np.flatnonzero(labels < 0).tolist()):
            places = [place for place in range(len(entries)) if place not in roots]
            known = [False] * len(lost) if self.concepts is None else self.concepts.rows([uids[i] for i in lost]) >= 0
            unknown = [UnknownEntry(name, places[i], uids[i], "concept" if concept else "label")
                       for i, concept in zip(lost, known, strict=True)]
        if not roots:
            return labels[labels >= 0], unknown
        if self.branches is None or self.concepts is None:
            raise NoBranches(name, next(iter(roots)))
        concepts, leaves = self.concepts.rows([*roots.values()]), self.index.rows([*roots.values()])
        # a label without relations is a branch by itself
        lost = np.flatnonzero((concepts < 0) & (leaves < 0)).tolist()
        unknown += [UnknownEntry(name, *[*roots.items()][i], "branch") for i in lost]
        found = np.concatenate([labels, leaves, self._labels_of_concepts[self.branches.under(concepts[concepts >= 0])]])
        return found[found >= 0], sorted(unknown, key=lambda each: each[1])

    @cached_property
    def _labels_of_concepts(self) -> np.ndarray:
        """The label of each concept, (n,) int64, -1 for one that is no label."""
        assert self.branches is not None
        return self.index.rows(self.branches.uids.take(np.arange(len(self.branches.uids))))


def _checked(name: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries as a list; raise ValueError for a single uid, and for what is neither uid nor branch."""
    if isinstance(entries, str | Mapping):
        raise ValueError(f"{name} must be a list of uids, got {entries!r}; write [{entries!r}]")
    listed = list(entries)
    if {*map(type, listed)} <= {str}:
        return listed
    for place, entry in enumerate(listed):
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and [*entry] == [UNDER]
                                               and isinstance(entry[UNDER], str)):
            raise ValueError(f'{name}[{place}] must be a uid, or {{"under": uid}} for a branch, got {entry!r}')
    return listed
