"""Sets of ids agree with Python's own."""

from collections import Counter

import numpy as np
import pytest

from xcmodels.data.sorted_ids import among, counted, distinct, located


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_sets_are_pythons(n: int, kind: type):
    rng = np.random.default_rng(n)
    values, others = rng.integers(-5, 400, n).astype(kind), rng.integers(-5, 400, 150).astype(kind)
    assert distinct(values).tolist() == sorted(set(values.tolist()))
    assert distinct(values).dtype == kind
    assert distinct(others.reshape(15, 10)).tolist() == sorted(set(others.tolist()))
    assert dict(zip(*(each.tolist() for each in counted(values)), strict=True)) == Counter(values.tolist())
    assert counted(values)[0].tolist() == distinct(values).tolist()
    for of in (np.sort(others), distinct(others), others[:0]):
        assert among(values, of).tolist() == [value in set(of.tolist()) for value in values.tolist()]
        place, there = located(values, of)
        assert there.tolist() == among(values, of).tolist()
        assert np.array_equal(of[place[there]], values[there])
    assert among(others.reshape(15, 10), distinct(values)).shape == (15, 10)
