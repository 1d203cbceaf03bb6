"""Groups of texts, which are held out together."""

import numpy as np

from xcmodels.data.groups import components


def components_one_by_one(texts: list[int], groups: list[int]) -> list[set[int]]:
    """Return the rows that each row is bound to, by joining sets until nothing changes."""
    sets = [{row} for row in range(len(texts))]
    changed = True
    while changed:
        changed = False
        for a, one in enumerate(sets):
            for b, other in enumerate(sets):
                same = texts[a] == texts[b] or (groups[a] == groups[b] and groups[a] >= 0)
                if same and one is not other:
                    one |= other
                    sets = [one if each is other else each for each in sets]
                    changed = True
                    break
            if changed:
                break
    return sets


def test_rows_are_bound_by_a_text_or_a_group_directly_or_not():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        texts, groups = rng.integers(12, size=25), rng.integers(-1, rng.integers(0, 20), size=25)
        found = components(texts, groups)
        expected = components_one_by_one(texts.tolist(), groups.tolist())
        assert [set(np.flatnonzero(found == each).tolist()) for each in found] == expected


def test_without_groups_rows_are_bound_by_their_texts_alone():
    assert components(np.array([3, 0, 3]), np.full(3, -1)).tolist() == [3, 0, 3]
    assert not len(components(np.zeros(0, int), np.zeros(0, int)))
