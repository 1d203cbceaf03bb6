"""Search by groups of queries, against one query at a time, and its recall on vectors with and without structure."""

import numpy as np
import pytest
import torch

from xcmodels.mining import grouped_index, int8_products, query_groups
from xcmodels.mining.grouped_index import GroupedIndex, build
from xcmodels.mining.int8_products import MAX_EXACT, largest_entry, products, quantised, quantised_rows
from xcmodels.retrieval import ann
from xcmodels.retrieval.inner_products import pair_scores


def clustered(n, *, noise=0.7, seed=0):
    """Unit vectors around shared centres, with noise as long as a share of them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).standard_normal((40, 24))
    vectors = centres[rng.integers(40, size=n)] + noise * rng.standard_normal((n, 24))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def one_at_a_time(index, queries, k, excluded=frozenset()):
    """The labels that a search must find for each query, by plain arithmetic of whole numbers."""
    codes, out = index.codes.astype(np.int64), np.full((len(queries), k), -1)
    for number, query in enumerate(queries):
        whole = np.rint(query * (127 / np.abs(query).max())).astype(np.int64)
        to_centre = codes @ index.centres.astype(np.int64)[(index.centres.astype(np.int64) @ whole).argmax()]
        sample = sorted(to_centre[::max(len(codes) // grouped_index._SAMPLE, 1)], reverse=True)
        count = int(np.ceil(index.share * len(sample)))
        cut = sample[count - 1] if count < len(sample) else -np.inf
        near = [label for label in range(len(codes)) if to_centre[label] >= cut and (number, label) not in excluded]
        shortlist = sorted(near, key=lambda label: (-(codes[label] @ whole), label))[:k + k // 4 + 8]
        exact = {label: float(one_product(query, index.vectors[label])) for label in shortlist}
        best = sorted(shortlist, key=lambda label: (-exact[label], label))[:k]
        out[number, :len(best)] = best
    return out


def one_product(query, label):
    return pair_scores(query[None], label[None], np.zeros(1, np.int64), np.zeros(1, np.int64))[0]


@pytest.fixture
def small_blocks(monkeypatch):
    """So that each search has many blocks, a group several, and labels are chosen by a sample."""
    for module, name, value in ((grouped_index, "_QUERIES", 8), (grouped_index, "_LABELS", 64),
                                (grouped_index, "_SAMPLE", 100), (grouped_index, "_GROUPS", 3),
                                (query_groups, "QUERIES", 30), (query_groups, "_ROWS", 16)):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_agrees_with_a_search_of_one_query_at_a_time(small_blocks, share):
    labels, queries = clustered(700, seed=1), clustered(150, seed=2)
    labels[300:330] = labels[0]    # equal scores
    made = build(labels, queries, 5, seed=0)
    assert len(made.centres) > 2
    index = GroupedIndex(labels, made.codes, made.centres, share)
    rng = np.random.default_rng(3)
    pairs = np.sort(rng.choice(150 * 700, 9000, replace=False))
    pairs = np.union1d(pairs, np.arange(100 * 700, 101 * 700 - 3))    # a query with nearly all labels left out
    of = {row: pairs[pairs // 700 == row] % 700 for row in range(150)}

    def excluded(rows):
        return np.concatenate([np.zeros(0, np.int64), *(i * 700 + of[row] for i, row in enumerate(rows.tolist()))])

    wanted = one_at_a_time(index, queries, 5, {(row, label) for row in of for label in of[row].tolist()})
    np.testing.assert_array_equal(index.nearest(queries, 5, excluded), wanted)
    assert (wanted[100] == -1).sum() >= 2


def test_a_long_label_costs_the_others_no_recall():
    """The classifier of a frequent label can be a hundred times as long as most."""
    labels, queries = clustered(4000, seed=1), clustered(300, seed=2)
    labels[7] *= 100
    index = build(labels, queries, 20, seed=0)
    assert ann.recall(index.nearest(queries, 20), labels, queries, 20) > 0.9


def test_neither_other_queries_nor_threads_change_what_is_found(small_blocks):
    labels, queries = clustered(900, noise=2, seed=1), clustered(200, noise=2, seed=2)
    index = build(labels, queries, 6, seed=4)
    assert index.share < 1
    together, threads = index.nearest(queries, 6), torch.get_num_threads()
    order = np.random.default_rng(0).permutation(200)
    for part in np.array_split(order, 7):
        np.testing.assert_array_equal(index.nearest(queries[part], 6), together[part])
    try:
        torch.set_num_threads(3)
        again = build(labels, queries, 6, seed=4)
        np.testing.assert_array_equal(again.nearest(queries, 6), together)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    for name in ("codes", "centres", "share"):
        np.testing.assert_array_equal(getattr(again, name), getattr(index, name))


def test_a_processor_without_products_of_int8_finds_the_same(monkeypatch):
    labels, queries = clustered(500, noise=2, seed=1), clustered(100, noise=2, seed=2)
    found = build(labels, queries, 6, seed=4).nearest(queries, 6)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: not torch.backends.cpu.get_cpu_capability())
    np.testing.assert_array_equal(build(labels, queries, 6, seed=4).nearest(queries, 6), found)


def test_without_products_of_int8_few_vectors_are_held_as_floats(monkeypatch):
    left, right = (torch.randint(-9, 9, (n, 12), dtype=torch.int8) for n in (3, 1000))
    converted, as_floats = [], torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: converted.append(len(tensor)) or as_floats(tensor))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(int8_products, "_BLOCK", 300)
    assert torch.equal(int8_products.products(left, right), left.int() @ right.int().T)
    assert max(converted) == 300


@pytest.mark.parametrize(("noise", "scored"), [(0.3, 0.2), (1.0, 0.45), (30.0, 1.0)])
def test_as_many_labels_are_scored_as_the_recall_needs(noise, scored):
    """Of vectors in tight clusters few, of vectors without structure nearly all; recall is reached in either case."""
    labels, queries = clustered(8000, noise=noise, seed=1), clustered(3000, noise=noise, seed=2)
    labels *= np.random.default_rng(5).uniform(0.8, 1.25, (8000, 1)).astype(np.float32)    # as classifiers differ
    index = build(labels + 0.3, queries, 20, seed=0)
    found = index.nearest(queries, 20)
    assert ann.recall(found, index.vectors, queries, 20) > 0.925
    assert index.share < scored


def test_the_share_is_what_the_recall_needs():
    labels, queries = clustered(4000, noise=1, seed=1), clustered(1500, noise=1, seed=2)
    shares = [build(labels, queries, 10, seed=0, target_recall=recall).share for recall in (0.5, 0.8, 0.945, 0.99)]
    assert shares == sorted(shares) and len(set(shares)) == 4


@pytest.mark.parametrize(("labels", "queries", "k"), [(1, 1, 3), (5, 40, 3), (300, 1, 10), (40, 600, 40), (3, 0, 2)])
def test_few_labels_or_queries(labels, queries, k):
    vectors, asked = clustered(labels, seed=1), clustered(queries, seed=2)
    found = build(vectors, asked, k, seed=0).nearest(asked, k)
    assert found.shape == (queries, k)
    if queries:
        np.testing.assert_array_equal(np.sort(found[0][found[0] >= 0]), np.unique(found[0][found[0] >= 0]))
        assert (found >= 0).sum(1).min() == min(k, labels)


def test_vectors_of_zeros_are_searched():
    vectors = np.zeros((50, 4), np.float32)
    np.testing.assert_array_equal(build(vectors, vectors, 3, seed=0).nearest(vectors, 3), [[0, 1, 2]] * 50)


def test_vectors_that_are_not_finite_are_refused():
    vectors, wrong = clustered(50), clustered(50)
    wrong[7, 3] = np.nan
    with pytest.raises(ValueError, match="label vector 7 is not finite"):
        build(wrong, vectors, 3, seed=0)
    with pytest.raises(ValueError, match="query 7 is not finite"):
        build(vectors, vectors, 3, seed=0).nearest(wrong, 3)


@pytest.mark.parametrize("dim", [1, 64, 1040, 1041, 4096])
def test_products_of_the_largest_vectors_are_exact(dim):
    most = largest_entry(dim)
    assert dim * most**2 <= MAX_EXACT and most <= 127
    vectors = quantised_rows(np.random.default_rng(0).standard_normal((70, dim)).astype(np.float32))
    vectors[0], vectors[1] = most, -most
    wanted = vectors.astype(np.int64) @ vectors.astype(np.int64).T
    np.testing.assert_array_equal(products(torch.from_numpy(vectors), torch.from_numpy(vectors)), wanted)
    np.testing.assert_array_equal(quantised(np.full((1, dim), 1e9, np.float32), 1.0), np.full((1, dim), most))
