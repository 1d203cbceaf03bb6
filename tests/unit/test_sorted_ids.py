"""Sets of ids agree with Python's own."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from xcmodels.data import sorted_ids
from xcmodels.data.sorted_ids import isin_sorted, locate, unique, unique_counts


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("span", [0, 256])    # found by bisecting, by a table wherever there are two values or more
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


@pytest.mark.parametrize("span", [10**5, 3 * 10**5, 10**7, 10**12])
def test_memory_grows_with_the_values_and_not_with_the_span_of_what_is_searched(span):
    values, ordered = np.arange(10**5), np.array([0, 17, span])
    tracemalloc.start()
    try:
        assert isin_sorted(values, ordered).sum() == 2
        assert tracemalloc.get_traced_memory()[1] < 60 * len(values)
    finally:
        tracemalloc.stop()


def test_values_of_few_bytes_are_looked_for_among_large_ones():
    values, ordered = np.array([7, -1, 2**31 - 1], np.int32), np.array([2**31 - 1, 2**31 + 5, 2**33], np.int64)
    for of in (ordered, ordered[1:], ordered[:2]):
        assert isin_sorted(values, of).tolist() == [False, False, 2**31 - 1 in of]


def test_digests_are_looked_for_where_there_is_one():
    digest = np.array([2**63 + 5], np.uint64)
    assert isin_sorted(np.array([2**63 + 5, 3], np.uint64), digest).tolist() == [True, False]
