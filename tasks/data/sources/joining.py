"""Rows of equal text joined to one: logs of clicks and joins in SQL have one label a row.

A label that only another row of its text has would count as wrong for the row, and as one of the hardest.
"""

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from xcmodels.data.groups import components
from xcmodels.data.sorted_ids import unique_counts


class JoinedTexts:
    """The texts that several rows have, each with the labels of all its rows."""

    def __init__(self, texts: "array[int]", rows: Iterable[tuple[int | None, Mapping[int, float], str]], labels: int,
                 *, summed: bool) -> None:
        """Read the labels and groups of all rows of the texts that are repeated; no row is read if none is.

        texts: the keys of all rows that may be joined. rows: of each row, its key (None: it stays alone), label id ->
        weight, and the name of its group, "" for none. labels: their number. summed: a label's weight is the sum of its
        weights, and else 1.
        A label of a joined row takes 16 bytes while rows are read, a group 8.
        """
        keys, counts = unique_counts(np.asarray(texts, dtype=np.uint64))
        self._keys = keys[counts > 1]
        self._written = np.zeros(len(self._keys), dtype=bool)
        self._group_of_text: dict[int, str] = {}    # by the text's place
        self._common_group: dict[str, str] = {}    # group of a joined text -> the one that stands for all bound to it
        if not len(self._keys):
            return
        from scipy.sparse import coo_array

        places, ids, weights = array("i"), array("i"), array("d")
        numbers: dict[str, int] = {}    # of groups
        grouped, groups = array("i"), array("i")
        for key, targets, group in rows:
            if (place := self._place(key)) is not None:
                places.extend([place] * len(targets))
                ids.extend(targets)
                weights.extend(targets.values())
                if group:
                    grouped.append(place)
                    groups.append(numbers.setdefault(group, len(numbers)))
        pairs = np.asarray(places), np.asarray(ids)
        self._labels = coo_array((np.asarray(weights), pairs), (len(self._keys), labels)).tocsr()    # adds up
        if not summed:
            self._labels.data[:] = 1
        names, chosen = [*numbers], dict[int, str]()
        bound = components(np.asarray(grouped), np.asarray(groups))
        for part, place, number in zip(bound.tolist(), grouped, groups, strict=True):
            name = chosen.setdefault(part, names[number])
            self._group_of_text[place] = self._common_group[names[number]] = name

    def targets(self, key: int | None, own: Mapping[int, float]) -> Mapping[int, float] | None:
        """Return the labels of a row's text, `own` where it is of no other row; None from the text's second row on."""
        if (place := self._place(key)) is None:
            return own
        if self._written[place]:
            return None
        self._written[place] = True
        part = slice(*self._labels.indptr[place:place + 2])
        return dict(zip(self._labels.indices[part].tolist(), self._labels.data[part].tolist(), strict=True))

    def group(self, key: int | None, own: str) -> str:
        """Return the name of the group of a row's text; `own` is that of the row.

        A text is of one group, so groups that a joined text has are one under the name of the first.
        """
        place = self._place(key)
        return self._common_group.get(own, own) if place is None else self._group_of_text.get(place, own)

    def _place(self, key: int | None) -> int | None:
        """Return the row of a text's labels, None where it is not repeated."""
        if key is None or not len(self._keys):
            return None
        place = int(np.searchsorted(self._keys, np.uint64(key)))
        return place if place < len(self._keys) and self._keys[place] == key else None
