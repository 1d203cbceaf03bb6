"""Set operations on arrays of integers by sorting, faster than numpy's by hashing.

numpy's own `unique` puts integers into a hash table (2.3 and later), and `isin` and `setdiff1d` call it: for a
million it takes thirty times as long as sorting, for ten thousand six times.
"""

import numpy as np


def unique(values: np.ndarray) -> np.ndarray:
    """Return the unique values of an array (...), sorted, (u,)."""
    ordered = np.sort(values, axis=None)
    return ordered[_first(ordered)]


def unique_counts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the unique values of an array (...), sorted, (u,), and their counts, (u,)."""
    ordered = np.sort(values, axis=None)
    ends = np.append(np.flatnonzero(_first(ordered)), len(ordered))
    return ordered[ends[:-1]], ends[1:] - ends[:-1]


def locate(values: np.ndarray, ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each value (...) in a sorted array, and whether it is in it, bool (...)."""
    if not len(ordered):
        return np.zeros(values.shape, dtype=np.int64), np.zeros(values.shape, dtype=bool)
    position = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return position, ordered[position] == values


def isin_sorted(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return whether each value (...) is in a sorted array, bool (...)."""
    return locate(values, ordered)[1]


def _first(ordered: np.ndarray) -> np.ndarray:
    """Return which sorted values (n,) differ from the one before."""
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
