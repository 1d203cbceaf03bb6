"""Walks against one hop after the other, against matrix powers, and cut in any way; pruning; the Dask task."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from data_contracts.schemas import SCHEMAS
from tasks.data.walks import WalkSettings, edge_weights, walk
from tests.support import oracles
from xcmodels.data.corpus import Ragged
from xcmodels.mining import graph as graph_module
from xcmodels.mining.graph import (
    WalkGraph,
    hashed_uniform,
    label_correlation,
    random_walks,
    shared_anchors,
    similar_edges,
    walk_graph,
)


def random_graph(seed, nodes=40, anchors=30, density=0.12, weighted=True):
    rng = np.random.default_rng(seed)
    weights = (rng.random((nodes, anchors)) < density) * (rng.random((nodes, anchors)) ** 3 if weighted else 1.0)
    weights[0], weights[1, 5:] = 0, 0  # one node without anchors
    weights[2, :], weights[:, 3] = 1, 1  # one node and one anchor of high degree
    return weights


def same(one, two):
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, two, strict=True))


# ------------------------------------------------------------------ the hash


def test_hash_is_uniform_along_every_axis():
    draws = hashed_uniform(7, np.arange(2000)[:, None], np.arange(500))
    assert draws.min() >= 0 and draws.max() < 1
    for axis_draws in (draws.ravel(), draws[:, 0], draws[0], draws[:, 499], draws[1999]):
        counts = np.histogram(axis_draws, bins=20, range=(0, 1))[0]
        chi2 = ((counts - len(axis_draws) / 20) ** 2 / (len(axis_draws) / 20)).sum()
        assert chi2 < 50  # 19 degrees of freedom: 1 in 10,000


def test_hash_is_independent_between_neighbours_and_seeds():
    draws = hashed_uniform(7, np.arange(2000)[:, None], np.arange(500)) - 0.5
    other = hashed_uniform(8, np.arange(2000)[:, None], np.arange(500)) - 0.5
    for a, b in ((draws[:, 1:], draws[:, :-1]), (draws[1:], draws[:-1]), (draws[1:, 1:], draws[:-1, :-1]),
                 (draws, other), (draws[1:], other[:-1])):  # fmt: skip
        assert abs(12 * (a * b).mean()) < 5 / np.sqrt(a.size)


def test_hash_agrees_with_splitmix64_by_hand():
    # stored walks and clusters name their seed: these values may change only with a new version of both
    for seed in (0, 1, 2**63, -1):
        got = hashed_uniform(seed, np.array([[0], [9], [2**40]]), np.arange(4))
        assert got.tolist() == [[oracles.hashed(seed, stream, i) for i in range(4)] for stream in (0, 9, 2**40)]
    assert hashed_uniform(1, 2, np.array([3, 4])) == pytest.approx([0.7939787925572223, 0.14985295])


# ------------------------------------------------------------------ walks


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("restart", [0.8, 0.3])
def test_walks_agree_with_one_hop_after_the_other(weighted, restart):
    weights = random_graph(1, weighted=weighted)
    graph = walk_graph(sp.csr_array(weights), max_degree=20)
    node, anchor, weight = random_walks(graph, np.arange(40), hops=50, restart=restart, top=4, seed=9)
    kept = oracles.without_hubs(weights, 20)
    wanted = []
    for start in np.flatnonzero(kept.any(axis=1)).tolist():
        visits, _ = oracles.walk(kept, start, 50, restart, 9)
        wanted += [(start, id_, share) for id_, share in oracles.top_counts(visits, 4)]
    assert [(n, a) for n, a, _ in wanted] == list(zip(node.tolist(), anchor.tolist(), strict=True))
    assert weight == pytest.approx([share for _, _, share in wanted])
    assert not {0, 2} & set(node.tolist()) and 3 not in anchor


@pytest.mark.parametrize("weighted", [True, False])
def test_visits_follow_the_transition_matrix(weighted):
    rng = np.random.default_rng(3)
    weights = rng.random((5, 4)) + 0.05 if weighted else np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1.0]])
    hops = 40_000
    graph = walk_graph(sp.csr_array(weights))
    _, anchor, weight = random_walks(graph, np.array([0]), hops=hops, restart=0.5, top=4, seed=1)
    wanted = oracles.expected_visits(weights, 0, hops, 0.5) / hops
    got = np.zeros(4)
    got[anchor] = weight
    assert got == pytest.approx(wanted, abs=5 * 0.5 / np.sqrt(hops / 3))  # visits within an excursion are dependent
    assert abs(got - weights[0] / weights[0].sum()).max() > 0.02  # so the test tells a walk from a single hop


def test_any_cut_of_the_nodes_gives_the_same_walks(monkeypatch):
    graph = walk_graph(sp.csr_array(random_graph(4, nodes=200)))
    whole = random_walks(graph, np.arange(200), hops=60, seed=2)
    monkeypatch.setattr(graph_module, "_CHUNK", 60 * 7)
    assert same(whole, random_walks(graph, np.arange(200), hops=60, seed=2))
    cut = [random_walks(graph, part, hops=60, seed=2) for part in np.array_split(np.arange(200), 13)]
    assert same(whole, [np.concatenate(column) for column in zip(*cut, strict=True)])
    alone = random_walks(graph, np.array([77]), hops=60, seed=2)
    assert same(alone, [column[whole[0] == 77] for column in whole])
    assert not same(whole, random_walks(graph, np.arange(200), hops=60, seed=3))


def test_a_graph_survives_saving(tmp_path):
    for weighted in (True, False):
        prepared = walk_graph(sp.csr_array(random_graph(5, weighted=weighted)))
        prepared.save(tmp_path / str(weighted))
        loaded = WalkGraph.load(tmp_path / str(weighted))
        assert same(random_walks(prepared, np.arange(40), seed=0), random_walks(loaded, np.arange(40), seed=0))


def test_draws_hold_up_under_extreme_weights():
    # one heavy edge before many light ones: the light ones share the last slot of the guide
    weights = np.concatenate([[1.0], np.full(400, 1e-4)])[None]
    prepared = walk_graph(sp.csr_array(weights), max_degree=500)
    side = prepared.anchors
    assert side.guide is not None and side.shares is not None
    assert side.guide.tolist() == [(side.shares <= j / 401).sum() for j in range(401)]
    uniform = hashed_uniform(0, 0, np.arange(50_000))
    drawn = prepared.anchors.draw(np.zeros(50_000, dtype=np.int64), uniform)
    assert np.array_equal(drawn, np.searchsorted(np.cumsum(weights[0]) / weights.sum(), uniform, side="right"))
    assert prepared.anchors.draw(np.array([0]), np.array([1 - 2**-53])) == 400


@pytest.mark.parametrize(("change", "message"), [
    ({"hops": 0}, "hops >= 1"), ({"top": 0}, "top >= 1"), ({"restart": 1.1}, "restart <= 1"),
    ({"nodes": np.array([40])}, "nodes run from 40 to 40, the graph has 0 to 39"),
    ({"graph": sp.csr_array(-np.ones((2, 2)))}, "finite and at least 0"),
    ({"graph": sp.csr_array(np.array([[np.nan]]))}, "finite and at least 0"),
])  # fmt: skip
def test_what_is_invalid_is_refused(change, message):
    settings = {"graph": sp.csr_array(random_graph(0)), "nodes": np.arange(2), "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        random_walks(walk_graph(settings.pop("graph")), **settings)


# ------------------------------------------------------------------ label correlation, pruning


def test_label_correlation_agrees_with_one_hop_after_the_other():
    positives = random_graph(6, nodes=60, anchors=25, weighted=False)
    positives[:, 7] = 0  # a label without a query
    operator = label_correlation(sp.csr_array(positives.T), hops=40, top=5, max_degree=20, seed=4)
    kept = oracles.without_hubs(positives.T, 20)
    wanted = np.zeros((25, 25))
    for label in range(25):
        landed = oracles.walk(kept, label, 40, 0.8, 4)[1] if kept[label].any() else []
        for id_, share in oracles.top_counts([*landed, label], 5, first=label):
            wanted[label, id_] = share
    assert operator.toarray() == pytest.approx(wanted)
    assert operator.toarray()[7, 7] == operator.toarray()[3, 3] == 1  # 3 is in every query: left out of the walk
    assert (operator.diagonal() > 0).all() and operator.dtype == np.float32


def test_label_correlation_keeps_the_diagonal_among_equals():
    # one query with 60 labels: a label is no likelier to be landed on than the 59 others, and only 3 stay
    operator = label_correlation(sp.csr_array(np.ones((60, 1))), hops=30, top=3, seed=0)
    assert (operator.diagonal() > 0).all() and (np.diff(operator.indptr) == 3).all()
    assert operator.sum(axis=1) == pytest.approx(np.ones(60))


def test_pruning_keeps_what_points_the_same_way():
    rng = np.random.default_rng(0)
    nodes, anchors = rng.standard_normal((50, 4)), rng.standard_normal((30, 4))
    nodes[7] = 0
    edges = Ragged.of_pairs(rng.integers(0, 50, 20_000), rng.integers(0, 30, 20_000), 50)
    for threshold in (0.0, 0.4):
        cosine = [n @ a / np.linalg.norm(n) / np.linalg.norm(a) if n.any() else 0
                  for row, n in enumerate(nodes) for a in anchors[edges[row]]]
        keep = np.array(cosine) > threshold
        assert 0 < keep.sum() < 20_000
        assert np.array_equal(similar_edges(edges, nodes, anchors, threshold), keep)


def test_pruning_drops_right_angles():
    edges = Ragged(np.array([0, 3]), np.array([0, 1, 2]))
    anchors = np.array([[2.0, 0], [0, 1], [-1, 0]])
    assert similar_edges(edges, np.array([[1.0, 0]]), anchors).tolist() == [True, False, False]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_labels_that_share_anchors_with_a_query(most):
    rng = np.random.default_rng(1)
    queries, labels = (Ragged.of_pairs(*np.nonzero(rng.random((n, 12)) < 0.2), n) for n in (30, 40))
    found = shared_anchors(queries, labels, 12, most)
    for row in range(30):
        shared = [len({*queries[row].tolist()} & {*labels[label].tolist()}) for label in range(40)]
        best = sorted((label for label in range(40) if shared[label]), key=lambda label: (-shared[label], label))[:most]
        assert found[row].tolist() == sorted(best)


# ------------------------------------------------------------------ the Dask task


def read(shards):
    tables = [pq.read_table(path) for path, _ in shards]
    assert all(table.schema.equals(SCHEMAS["walks"]) for table in tables)
    assert [table.num_rows for table in tables] == [rows for _, rows in shards]
    return [np.concatenate([table[name].to_numpy() for table in tables]) for name in ("node", "anchor", "weight")]


def test_walk_is_the_same_for_any_number_of_partitions(workers, tmp_path):
    graph = sp.csr_array(random_graph(8, nodes=90))
    settings = WalkSettings(seed=3, hops=50, max_degree=40)
    wanted = random_walks(walk_graph(graph, max_degree=40), np.arange(90), hops=50, seed=3)
    for partitions in (1, 7):
        shards = walk(workers, graph, tmp_path / str(partitions), settings, partitions=partitions)
        assert len(shards) == partitions
        assert same(wanted, read(shards))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "7"]  # nothing temporary is left


def test_walk_may_run_again_but_not_mix_with_another_cut(workers, tmp_path):
    graph = sp.csr_array(random_graph(8))
    settings = WalkSettings(seed=3, hops=20)
    first = walk(workers, graph, tmp_path / "out", settings, partitions=3)
    before = [Path(path).read_bytes() for path, _ in first]
    assert walk(workers, graph, tmp_path / "out", settings, partitions=3) == first
    assert before == [Path(path).read_bytes() for path, _ in first]
    with pytest.raises(ValueError, match=r"part-00002.parquet is left of a run with more than 2 partitions"):
        walk(workers, graph, tmp_path / "out", settings, partitions=2)


def test_walk_of_a_graph_without_edges_gives_empty_shards(workers, tmp_path):
    shards = walk(workers, sp.csr_array(np.zeros((6, 4))), tmp_path / "out", WalkSettings(seed=0), partitions=9)
    assert [rows for _, rows in shards] == [0] * 9 and len(read(shards)[0]) == 0


def test_anchors_past_the_anchor_file_are_refused(tmp_path):
    (tmp_path / "edges").mkdir()
    columns = {"node": [0, 1], "anchor": [0, 3], "weight": np.ones(2, np.float32)}
    pq.write_table(pa.table(columns), tmp_path / "edges" / "part-00000.parquet")
    assert edge_weights(tmp_path / "edges", 2, 4).toarray().tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    with pytest.raises(ValueError):
        edge_weights(tmp_path / "edges", 2, 3)
