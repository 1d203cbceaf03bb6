"""Ranges of integers, one after another: where the values of rows of different lengths are."""

import numpy as np


def in_ranges(starts: np.ndarray | int, lengths: np.ndarray) -> np.ndarray:
    """Return the integers from starts[i] to starts[i] + lengths[i] - 1 of each range i in turn, (sum of lengths,).

    starts: (n,), or the same for all ranges; lengths (n,).
    """
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def ranks(ordered: np.ndarray) -> np.ndarray:
    """Return how many equal values precede each of ascending integers from 0 on, (n,)."""
    return in_ranges(0, np.bincount(ordered))
