"""What the frozen layers of a transformer made of texts: states in files, read where a batch is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xcmodels.data.ranges import in_ranges


@dataclass(frozen=True)
class FrozenStates:
    """Where the states of n texts are: text i has rows starts[i] to starts[i] + sizes[i] - 1 of files[file_of[i]].

    A text has a state for each token and mark. files: (S, d) float16, mapped into memory; all others (n,) int64.
    """

    files: tuple[np.ndarray, ...]
    file_of: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, file: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> "FrozenStates":
        """Return the states of texts that are in one file."""
        return cls((file,), np.zeros(len(starts), np.int64), starts, sizes)

    def take(self, texts: np.ndarray | slice) -> "FrozenStates":
        """Return those of some texts, (m,) or a slice, in their order."""
        return FrozenStates(self.files, *(each[texts] for each in (self.file_of, self.starts, self.sizes)))

    def read(self, texts: np.ndarray) -> np.ndarray:
        """Return the states of some texts, one text after another, (their number, d)."""
        sizes = self.sizes[texts]
        places = in_ranges(self.starts[texts], sizes)
        file_of = np.repeat(self.file_of[texts], sizes)
        states = np.empty((len(places), self.files[0].shape[1]), np.float16)
        for number, file in enumerate(self.files):
            own = file_of == number
            states[own] = file[places[own]]
        return states

    def padded(self, texts: np.ndarray, width: int) -> np.ndarray:
        """Return the states of some texts, (texts, width, d), with zeros beyond a text's end."""
        states = np.zeros((len(texts), width, self.files[0].shape[1]), np.float16)
        states[np.arange(width) < self.sizes[texts][:, None]] = self.read(texts)
        return states


def joined(groups: Sequence[FrozenStates]) -> FrozenStates:
    """Return the states of the texts of all groups, concatenated."""
    firsts = np.cumsum([0, *(len(group.files) for group in groups)])
    return FrozenStates(
        tuple(file for group in groups for file in group.files),
        np.concatenate([group.file_of + first for group, first in zip(groups, firsts, strict=False)]),
        *(np.concatenate([getattr(group, name) for group in groups]) for name in ("starts", "sizes")))
