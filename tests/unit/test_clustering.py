"""Balanced k-means against plain recursion, and its promises on sizes, quality and odd input."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support import oracles
from xcmodels.mining import clustering
from xcmodels.mining.clustering import balanced_kmeans


def planted(clusters, size, dim, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dim))
    owner = rng.permutation(np.repeat(np.arange(clusters), size))
    vectors = centres[owner] + noise * rng.standard_normal((len(owner), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), owner


def cohesion(vectors, ids):
    """The mean cosine of two different points of a cluster."""
    sums = np.zeros((ids.max() + 1, vectors.shape[1]))
    np.add.at(sums, ids, vectors)
    sizes = np.bincount(ids)
    return ((sums**2).sum(axis=1) - sizes).sum() / (sizes * (sizes - 1)).sum()


@pytest.mark.parametrize(("n", "size"), [(64, 8), (100, 7), (37, 3), (129, 1), (50, 30), (9, 4)])
def test_agrees_with_plain_recursion(n, size):
    # small whole numbers: float32 sums are exact, so ties and all must come out alike
    vectors = np.random.default_rng(n).integers(-3, 4, (n, 6)).astype(np.float32)
    ids = balanced_kmeans(vectors, size, seed=5, iterations=4)
    assert np.array_equal(ids, oracles.balanced_kmeans(vectors, size, 5, 4))


@pytest.mark.parametrize("block", [16, 4096])
@pytest.mark.parametrize(("n", "size"), [(1, 1), (2, 1), (5, 8), (8, 8), (9, 8), (1000, 1), (1001, 10), (777, 100)])
def test_clusters_are_balanced_and_none_is_empty(monkeypatch, n, size, block):
    monkeypatch.setattr(clustering, "_BLOCK", block)  # 16: most groups are split by a sample
    vectors, _ = planted(1, n, 8)
    sizes = np.bincount(balanced_kmeans(vectors, size, seed=0))
    assert len(sizes) == -(-n // size)
    assert sizes.max() - sizes.min() <= 1 and sizes.min() >= 1 and sizes.max() <= size


@pytest.mark.parametrize("block", [256, 4096])
def test_near_points_share_a_cluster(monkeypatch, block):
    monkeypatch.setattr(clustering, "_BLOCK", block)
    vectors, owner = planted(64, 32, 32)
    ids = balanced_kmeans(vectors, 16, seed=1)
    shuffled = np.random.default_rng(0).permutation(ids)
    assert cohesion(vectors, ids) > 0.85 * cohesion(vectors, owner)
    assert cohesion(vectors, shuffled) < 0.05


def test_one_split_recovers_two_blobs():
    vectors, owner = planted(2, 50, 16, noise=0.1)
    ids = balanced_kmeans(vectors, 50, seed=3)
    assert len({(a, b) for a, b in zip(ids.tolist(), owner.tolist(), strict=True)}) == 2


def test_more_iterations_never_raise_the_k_means_cost():
    vectors, _ = planted(40, 8, 16)
    costs = [-cohesion(vectors, balanced_kmeans(vectors, 160, seed=2, iterations=i)) for i in range(1, 9)]
    assert all(after <= before + 1e-9 for before, after in pairwise(costs))
    assert costs[-1] < costs[0]


def test_the_seed_decides():
    vectors, _ = planted(50, 20, 16)
    first = balanced_kmeans(vectors, 8, seed=1)
    assert np.array_equal(first, balanced_kmeans(vectors, 8, seed=1))
    assert not np.array_equal(first, balanced_kmeans(vectors, 8, seed=2))
    assert first.dtype == np.int32


def test_odd_input_is_defined(tmp_path):
    assert len(balanced_kmeans(np.empty((0, 4), np.float32), 8, seed=0)) == 0
    same = balanced_kmeans(np.ones((10, 4), np.float32), 3, seed=0)  # no margin anywhere: cut by row number
    assert same.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    vectors, _ = planted(4, 25, 8)
    np.save(tmp_path / "v.npy", vectors)
    mapped = balanced_kmeans(np.load(tmp_path / "v.npy", mmap_mode="r"), 8, seed=0)
    assert np.array_equal(mapped, balanced_kmeans(vectors, 8, seed=0))


@pytest.mark.parametrize(("vectors", "settings", "message"), [
    (np.ones((3, 2)), {"cluster_size": 0}, "cluster_size and iterations must be at least 1, got 0"),
    (np.ones((3, 2)), {"cluster_size": 2, "iterations": 0}, "must be at least 1, got 2 and 0"),
    (np.ones(3), {"cluster_size": 2}, r"must be \(n, d\), got shape \(3,\)"),
    (np.array([[1.0, 0], [np.nan, 1], [0, np.inf]]), {"cluster_size": 2}, "vector 1 is not finite"),
])  # fmt: skip
def test_what_is_invalid_is_refused(vectors, settings, message):
    with pytest.raises(ValueError, match=message):
        balanced_kmeans(vectors.astype(np.float32), seed=0, **settings)
