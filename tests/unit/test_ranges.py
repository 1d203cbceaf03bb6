"""Positions in ranges agree with Python's own ranges."""

from itertools import chain

import numpy as np

from xcmodels.data.ranges import in_ranges, ranks


def test_ranges_follow_one_another_empty_ones_too():
    rng = np.random.default_rng(0)
    starts, lengths = rng.integers(0, 50, 40), rng.integers(0, 4, 40)
    wanted = chain.from_iterable(range(start, start + length) for start, length in zip(starts, lengths, strict=True))
    assert in_ranges(starts, lengths).tolist() == list(wanted)
    assert in_ranges(0, lengths).tolist() == list(chain.from_iterable(map(range, lengths)))
    assert in_ranges(starts[:0], lengths[:0]).tolist() == []


def test_a_rank_counts_the_equal_values_before():
    ordered = np.sort(np.random.default_rng(1).integers(0, 9, 30)).tolist()
    assert ranks(np.array(ordered)).tolist() == [ordered[:i].count(value) for i, value in enumerate(ordered)]
