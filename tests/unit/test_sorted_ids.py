"""Sets of ids agree with Python's own."""

from collections import Counter

import numpy as np
import pytest

from xcmodels.data import sorted_ids
from xcmodels.data.sorted_ids import isin_sorted, locate, unique, unique_counts


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("span", [0, sorted_ids._SPAN])    # 0: found by bisecting alone
def test_sets_are_pythons(n: int, kind: type, span: int, monkeypatch):
    monkeypatch.setattr(sorted_ids, "_SPAN", span)
    rng = np.random.default_rng(n)
    values, others = rng.integers(-5, 400, n).astype(kind), rng.integers(-5, 400, 150).astype(kind)
    assert unique(values).tolist() == sorted(set(values.tolist()))
    assert unique(values).dtype == kind
    assert unique(others.reshape(15, 10)).tolist() == sorted(set(others.tolist()))
    assert dict(zip(*(each.tolist() for each in unique_counts(values)), strict=True)) == Counter(values.tolist())
    assert unique_counts(values)[0].tolist() == unique(values).tolist()
    for of in (np.sort(others), unique(others), others[:0]):
        assert isin_sorted(values, of).tolist() == [value in set(of.tolist()) for value in values.tolist()]
        place, there = locate(values, of)
        assert there.tolist() == isin_sorted(values, of).tolist()
        assert np.array_equal(of[place[there]], values[there])
    assert isin_sorted(others.reshape(15, 10), unique(values)).shape == (15, 10)


def test_values_of_few_bytes_are_looked_for_among_large_ones():
    values, ordered = np.array([7, -1, 2**31 - 1], np.int32), np.array([2**31 - 1, 2**31 + 5, 2**33], np.int64)
    for of in (ordered, ordered[1:], ordered[:2]):
        assert isin_sorted(values, of).tolist() == [False, False, 2**31 - 1 in of]
