"""Rows of equal text joined to one: logs of clicks and joins in SQL have one label a row.

A label that only another row of its text has would count as wrong for the row, and as one of the hardest.
"""

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from xcmodels.data.sorted_ids import unique_counts


class JoinedTexts:
    """The texts that several rows have, each with the labels of all its rows."""

    def __init__(self, texts: "array[int]", rows: Iterable[tuple[int | None, Mapping[int, float]]], labels: int,
                 *, summed: bool) -> None:
        """Read the labels of all rows of the texts that are repeated; no row is read if none is.

        texts: the keys of all rows that may be joined. rows: of each row, its key (None: it stays alone) and label id
        -> weight. labels: their number. summed: a label's weight is the sum of its weights, and else 1.
        A label of a joined row takes 16 bytes while rows are read.
        """
        keys, counts = unique_counts(np.asarray(texts, dtype=np.uint64))
        self._keys = keys[counts > 1]
        self._written = np.zeros(len(self._keys), dtype=bool)
        if not len(self._keys):
            return
        from scipy.sparse import coo_array

        places, ids, weights = array("i"), array("i"), array("d")
        for key, targets in rows:
            if (place := self._place(key)) is not None:
                places.extend([place] * len(targets))
                ids.extend(targets)
                weights.extend(targets.values())
        pairs = np.asarray(places), np.asarray(ids)
        self._labels = coo_array((np.asarray(weights), pairs), (len(self._keys), labels)).tocsr()    # adds up
        if not summed:
            self._labels.data[:] = 1

    def targets(self, key: int | None, own: Mapping[int, float]) -> Mapping[int, float] | None:
        """Return the labels of a row's text, `own` where it is of no other row; None from the text's second row on."""
        if (place := self._place(key)) is None:
            return own
        if self._written[place]:
            return None
        self._written[place] = True
        part = slice(*self._labels.indptr[place:place + 2])
        return dict(zip(self._labels.indices[part].tolist(), self._labels.data[part].tolist(), strict=True))

    def _place(self, key: int | None) -> int | None:
        """Return the row of a text's labels, None where it is not repeated."""
        if key is None or not len(self._keys):
            return None
        place = int(np.searchsorted(self._keys, np.uint64(key)))
        return place if place < len(self._keys) and self._keys[place] == key else None
