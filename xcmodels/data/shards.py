"""Arrays computed by shards of their rows: here one after another; a run's Dask workers share them."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Part = Callable[[int, int], np.ndarray]    # the rows low:high of an array
Result = TypeVar("Result")


class Shards:
    """Computes arrays shard by shard, all in this process; the bits do not depend on where a shard is computed."""

    def rows(self, name: str, make: Callable[..., Part], cuts: Sequence[int], *shared: Any) -> np.ndarray:
        """Return the array whose rows cuts[i]:cuts[i + 1] are `make(*shared)(cuts[i], cuts[i + 1])`.

        name: of the array, for people. cuts: ascending, from 0 to the number of rows. make: a function of a module,
        which prepares what several shards need; shared: what it needs.
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
        """Write an array that `rows` returned to a .npy file, as the last thing that is done with it."""
        np.save(path, array)


IN_PROCESS = Shards()


def every(size: int, count: int) -> list[int]:
    """Return cuts of `count` rows into shards of `size`, the last one smaller; one empty shard of no rows."""
    return [0, *range(size, count, size), count]
