"""Arrays computed range by range of their rows: here one after another; a run's Dask workers share the ranges."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

RowFunction = Callable[[int, int], np.ndarray]    # the rows low:high of an array
Result = TypeVar("Result")


class Executor:
    """Computes arrays range by range of their rows, here in this process; where a range is computed changes no bit."""

    def compute_rows(self, name: str, make: Callable[..., RowFunction], cuts: Sequence[int],
                     *shared: Any) -> np.ndarray:
        """Return the array whose rows cuts[i]:cuts[i + 1] are `make(*shared)(cuts[i], cuts[i + 1])`.

        name: of the array, for people. cuts: ascending, from 0 to the number of rows. make: a function of a module,
        which prepares what several ranges need; shared: what it needs.
        """
        part, out = make(*shared), np.empty(0)
        for low, high in pairwise(cuts):
            values = part(low, high)
            if not low:
                if high == cuts[-1]:
                    return values
                out = np.empty((cuts[-1], *values.shape[1:]), values.dtype)
            out[low:high] = values
        return out

    def call(self, name: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return `function(*arguments)`, which cannot be cut; name: of what it makes, for people."""
        return function(*arguments)

    def save(self, path: Path, array: np.ndarray) -> None:
        """Write an array that `compute_rows` returned to a .npy file, as the last thing that is done with it."""
        np.save(path, array)


IN_PROCESS = Executor()


def equal_cuts(size: int, count: int) -> list[int]:
    """Return cuts of `count` rows into ranges of `size`, the last one smaller; no rows are one empty range."""
    return [0, *range(size, count, size), count]
