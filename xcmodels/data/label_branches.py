"""The broader relation of a vocabulary's concepts, and the branch of all that is narrower than one of them."""

import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import BITS, Ragged, Texts
from xcmodels.data.sorted_ids import unique

UIDS, BROADER = "branch.uid", "branch.broader"
FILES = tuple(f"{name}.{half}.npy" for name in (UIDS, BROADER) for half in ("offsets", "values"))


class Branches:
    """Concepts by uid, labels or not, and the broader ones of each; those of a cycle are in each other's branches."""

    def __init__(self, uids: Texts, broader: Ragged) -> None:
        self.uids, self.broader = uids, broader

    @classmethod
    def load(cls, folder: Path) -> "Branches | None":
        """Map what `save` wrote; return None where there is nothing."""
        if not (folder / FILES[0]).exists():
            return None
        return cls(Texts.load(folder, UIDS), Ragged.load(folder, BROADER))

    @staticmethod
    def save(folder: Path, pairs: Iterable[tuple[str, str]]) -> None:
        """Write the pairs of a concept's uid and that of a broader one; nothing where there is none."""
        pairs = list(pairs)
        uids = sorted({uid for pair in pairs for uid in pair})
        if not uids:
            return
        ids = {uid: number for number, uid in enumerate(uids)}
        keys = unique(np.array([ids[narrow] << BITS | ids[broad] for narrow, broad in pairs], dtype=np.int64))
        Texts.save(folder, UIDS, uids)
        Ragged.of_keys(keys, len(uids), np.int32).save(folder, BROADER)

    @staticmethod
    def copy(folder: Path, out: Path) -> None:
        """Copy what `save` wrote to a folder, if it did, to another one."""
        for name in FILES:
            if (folder / name).exists():
                shutil.copy(folder / name, out)

    @cached_property
    def narrower(self) -> Ragged:
        """The concepts that name each as their broader one."""
        return Ragged.of_pairs(self.broader.values, np.repeat(np.arange(len(self.uids)), self.broader.lengths),
                               len(self.uids))

    def under(self, concepts: np.ndarray) -> np.ndarray:
        """Return these concepts (m,) and all that are narrower than one of them, at any distance, ascending, (c,)."""
        reached = np.zeros(len(self.uids), dtype=bool)
        level = unique(concepts)
        while len(level):
            reached[level] = True
            level = unique(self.narrower.take(level)[0])
            level = level[~reached[level]]
        return np.flatnonzero(reached)
