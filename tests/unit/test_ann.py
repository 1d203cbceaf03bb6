"""Exact search against sorting all scores; every kind saved, cut short and asked for too much."""

import json

import numpy as np
import pytest

from tests.support import oracles
from xcmodels.retrieval import ann
from xcmodels.retrieval.ann import build, choose, load, recall
from xcmodels.retrieval.inner_products import pair_scores


def whole_numbers(seed, labels, queries, dim=6):
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.integers(-2, 3, (n, dim)).astype(np.float32)  # noqa: E731 - many equal scores, all exact
    return draw(labels), draw(queries)


@pytest.mark.parametrize(("labels", "k"), [(1, 1), (50, 7), (333, 20), (333, 333)])
def test_exact_search_agrees_with_sorting_and_breaks_ties_by_id(monkeypatch, labels, k):
    monkeypatch.setattr(ann, "_LABELS", 64)  # several blocks, some narrower than k
    monkeypatch.setattr(ann, "_QUERIES", 16)
    vectors, queries = whole_numbers(labels, labels, 37)
    scores, ids = build(vectors, "exact").search(queries, k)
    wanted_scores, wanted_ids = oracles.search(vectors, queries, k)
    assert np.array_equal(ids, wanted_ids) and np.array_equal(scores, wanted_scores)
    assert ids.dtype == np.int64 and scores.dtype == np.float32


def test_all_labels_alike_come_by_id():
    ids = build(np.ones((500, 4), np.float32), "exact").search(np.ones((3, 4), np.float32), 5)[1]
    assert ids.tolist() == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("kind", ann.KINDS)
def test_too_few_labels_are_padded(kind):
    vectors, queries = whole_numbers(0, 5, 4)
    scores, ids = build(vectors, kind).search(queries, 8)
    assert ids.shape == scores.shape == (4, 8)
    assert (np.sort(ids[:, :5]) == np.arange(5)).all()
    assert (ids[:, 5:] == -1).all() and np.isneginf(scores[:, 5:]).all()
    empty = build(np.empty((0, 6), np.float32), kind).search(queries, 2)
    assert (empty[1] == -1).all() and np.isneginf(empty[0]).all()
    assert build(vectors, kind).search(queries[:0], 2)[1].shape == (0, 2)


@pytest.mark.parametrize("kind", ann.KINDS)
@pytest.mark.parametrize("without", [[], [1, 3]])
def test_a_query_of_zeros_finds_labels_too(kind, without):
    vectors = np.random.default_rng(2).standard_normal((600, 8), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index, queries = build(vectors, kind), np.stack([vectors[7], np.zeros(8, np.float32), vectors[9]])
    scores, ids = index.search(queries, 5, np.array(without, np.int64))
    assert (scores[1] == 0).all() and len({*ids[1]} - {-1, *without}) == 5
    assert ids[[0, 2], 0].tolist() == [7, 9]
    assert (index.propose(queries, 50, np.array(without, np.int64)) >= 0).all()


@pytest.mark.parametrize("dim", [16, 7])
def test_quantised_finds_nearly_all_with_their_exact_scores_whoever_is_asked_beside(dim):
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((300, dim), np.float32)
    vectors = centres[rng.integers(300, size=5000)] + 0.5 * rng.standard_normal((5000, dim), np.float32)
    queries = rng.standard_normal((70, dim), np.float32)
    index = build(vectors, "quantised")
    assert recall(index.search(queries, 20)[1], vectors, queries, k=20) > 0.97
    scores, ids = index.search(queries, 20)
    assert np.allclose(scores, np.einsum("qd,qkd->qk", queries, vectors[ids]), atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    alone = [index.search(query[None], 20) for query in queries]
    assert np.array_equal(scores, np.concatenate([each for each, _ in alone]))
    assert np.array_equal(ids, np.concatenate([each for _, each in alone]))


def test_quantised_scores_as_many_as_wanted_and_labels_left_out_besides():
    vectors, queries = whole_numbers(4, 3000, 9, dim=6)
    gone = np.arange(0, 3000, 3)
    scores, ids = build(vectors, "quantised").search(queries, 5, gone)
    there = np.setdiff1d(np.arange(3000), gone)
    wanted = oracles.search(vectors[there], queries, 5)[0]
    assert np.array_equal(scores, wanted) and np.isin(ids, there).all()
    everything = build(vectors, "quantised").search(queries, 3000)
    assert all(np.array_equal(*each) for each in zip(everything, oracles.search(vectors, queries, 3000), strict=True))


@pytest.mark.parametrize("kind", ann.KINDS)
@pytest.mark.parametrize("gone", ["some", "the best", "nearly all", "all"])
def test_labels_left_out_are_replaced_by_the_next(kind, gone):
    rng = np.random.default_rng(6)
    vectors, queries = rng.standard_normal((4000, 8), np.float32), rng.standard_normal((12, 8), np.float32)
    order = np.argsort(-(vectors @ queries[0]))    # the first query's best: to others as good as drawn at random
    left_out = {"some": order[::3], "the best": order[:1500], "nearly all": order[:3990], "all": order}[gone]
    without, index = np.sort(left_out), build(vectors, kind)
    kept = np.setdiff1d(np.arange(4000), without)
    found = index.search(queries, 20, without)
    depth = min(20, len(kept))
    assert np.isin(found[1][:, :depth], kept).all() and (found[1][:, depth:] == -1).all()
    proposed = index.propose(queries, 20, without)
    assert np.isin(proposed[:, :depth], kept).all() and proposed.shape == (12, 20)
    assert all(len(np.unique(row[:depth])) == depth for row in found[1])
    if gone == "all":
        return
    wanted = oracles.search(vectors[kept], queries, depth)
    if kind == "exact" or gone == "nearly all":
        assert np.array_equal(found[1][:, :depth], kept[wanted[1]])
    assert np.isin(found[1], kept[wanted[1]]).sum() >= 0.97 * 12 * depth
    alone = [index.propose(query[None], 20, without)[0] for query in queries]
    assert np.array_equal(np.sort(proposed), np.sort(alone)), "whoever is asked beside"


def test_what_hnsw_does_not_find_scores_nothing(monkeypatch):
    answer = np.array([[2.0, -3.4e38]], np.float32), np.array([[1, -1]])
    monkeypatch.setattr(ann.Index, "_search_faiss", lambda self, queries, k, without: answer)
    scores, ids = build(np.eye(2, dtype=np.float32), "hnsw").search(np.ones((1, 2)), 2)
    assert scores.tolist() == [[2, -np.inf]] and ids.tolist() == [[1, -1]]


@pytest.mark.parametrize("kind", ann.KINDS)
def test_a_saved_index_answers_alike(tmp_path, kind):
    rng = np.random.default_rng(1)
    vectors, queries = rng.standard_normal((2000, 16), np.float32), rng.standard_normal((20, 16), np.float32)
    index = build(vectors, kind)
    index.save(tmp_path)
    loaded = load(tmp_path)
    assert len(loaded) == 2000 and loaded.dim == 16 and loaded.kind == kind
    assert np.array_equal(loaded.vectors, vectors)
    for one, two in zip(index.search(queries, 10), loaded.search(queries, 10), strict=True):
        assert np.array_equal(one, two)


def test_hnsw_finds_most_and_recall_sees_what_it_misses(monkeypatch):
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((3000, 16), np.float32) * rng.uniform(0.5, 2, (3000, 1)).astype(np.float32)
    queries = rng.standard_normal((50, 16), np.float32)
    good = build(vectors, "hnsw")

    def found(index, k):
        return recall(index.search(queries, k)[1], vectors, queries, k)

    assert found(build(vectors, "exact"), 100) == 1
    assert found(good, 100) > 0.95
    scores, ids = good.search(queries, 10)
    assert np.allclose(scores, np.einsum("qd,qkd->qk", queries, vectors[ids]), atol=1e-4)
    unhurried = found(good, 1)
    monkeypatch.setattr(ann, "_EF_SEARCH", 1)
    assert found(good, 1) < unhurried
    assert (good.search(queries, 50)[1] >= 0).all()  # efSearch below k would find no more than itself
    monkeypatch.setattr(ann, "_M", 2)
    monkeypatch.setattr(ann, "_EF_CONSTRUCTION", 2)
    assert found(build(vectors, "hnsw"), 1) < 0.8


def test_recall_counts_the_exact_nearest_that_were_found():
    # of [3, 2, 1, 0] and [0, 1, 2, 3] by rising score; the -1 of the second row must not count as label 3 of the first
    vectors, queries = np.array([[3, 0], [2, 1], [1, 2], [0, 3]], np.float32), np.eye(2, dtype=np.float32)
    assert recall(np.array([[0, 1, 3], [3, 0, -1]]), vectors, queries, k=3) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert recall(np.array([[0, 1, 3, 2], [1, 2, 0, 3]]), vectors, queries, k=2) == 1    # more were proposed


@pytest.mark.parametrize("kind", ann.KINDS)
def test_what_is_proposed_holds_the_nearest_and_nothing_left_out(kind):
    rng = np.random.default_rng(3)
    vectors, queries = rng.standard_normal((3000, 16), np.float32), rng.standard_normal((40, 16), np.float32)
    index, gone = build(vectors, kind), np.arange(0, 3000, 7)
    assert recall(index.propose(queries, index.depth_for(50)), vectors, queries, k=50) > 0.97
    found = index.propose(queries, 60, gone)
    assert found.shape == (40, 60) and (found >= 0).all() and not np.isin(found, gone).any()
    assert all(len(set(row)) == 60 for row in found.tolist())
    everything = index.propose(queries, 3001)
    assert (np.sort(everything, axis=1)[:, 1:] == np.arange(3000)).all() or kind == "hnsw"
    with pytest.raises(ValueError, match="query 0 is not finite"):
        index.propose(queries * np.nan, 5)


def test_pair_scores_of_vectors_that_are_part_of_longer_ones():
    rng = np.random.default_rng(4)
    whole, queries = rng.standard_normal((50, 12), np.float32), rng.standard_normal((5, 4), np.float32)
    rows, labels = rng.integers(5, size=30), rng.integers(50, size=30)
    for part in (slice(4), slice(8, 12), slice(5, 9)):
        wanted = (queries[rows].astype(float) * whole[labels, part]).sum(1)
        assert pair_scores(queries, whole[:, part], rows, labels) == pytest.approx(wanted, abs=1e-5)
    odd = whole[:, :5]    # no whole number of them from one row to the next
    assert pair_scores(whole[:5, :5], odd, rows, labels) == pytest.approx((odd[rows] * odd[labels]).sum(1), abs=1e-5)
    wide = whole[:, :4].astype(np.float64)    # faiss reads nothing but float32
    assert pair_scores(queries, wide, rows, labels) == pytest.approx((queries[rows] * wide[labels]).sum(1), abs=1e-5)
    for wrong in ((rows, labels + 40), (rows - 6, labels), (rows + 5, labels)):
        with pytest.raises(IndexError, match="are asked for, there are"):
            pair_scores(queries, whole[:, :4], *wrong)


@pytest.mark.parametrize("kind", ann.KINDS)
def test_a_file_cut_anywhere_is_refused(tmp_path, kind):
    build(whole_numbers(3, 40, 1)[0], kind).save(tmp_path)
    for path in [path for path in tmp_path.iterdir() if path.name != "index.json"]:
        whole = path.read_bytes()
        for length in (0, 1, 7, 60, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=rf"{tmp_path} is not a whole index: .*build it again"):
                load(tmp_path)
        path.unlink()
        with pytest.raises(ValueError, match="is not a whole index"):
            load(tmp_path)
        path.write_bytes(whole)
    assert len(load(tmp_path)) == 40


def test_damaged_or_hostile_files_are_refused(tmp_path):
    build(whole_numbers(3, 40, 1)[0], "exact").save(tmp_path)
    about = json.loads((tmp_path / "index.json").read_text())
    for text in ("", "[]", "{}", json.dumps(about | {"kind": "ivf"}), json.dumps(about | {"labels": 41})):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(ValueError, match="is not a whole index"):
            load(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps(about))
    build(whole_numbers(3, 40, 1)[0][:, :4], "quantised").save(tmp_path / "narrow")
    for kind, file in (("quantised", "codes.faiss"), ("hnsw", "hnsw.faiss")):    # the vectors are wider, or of a scan
        (tmp_path / file).write_bytes((tmp_path / "narrow" / "codes.faiss").read_bytes())
        (tmp_path / "index.json").write_text(json.dumps(about | {"kind": kind}))
        with pytest.raises(ValueError, match="is not a whole index"):
            load(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps(about))
    np.save(tmp_path / "vectors.npy", np.array([{}] * 40), allow_pickle=True)
    with pytest.raises(ValueError, match="is not a whole index"):
        load(tmp_path)


def test_choice_of_kind(monkeypatch):
    assert [choose("auto", n) for n in (20_000, 20_001)] == ["exact", "quantised"]
    assert choose("hnsw", 3) == "hnsw" and choose("exact", 10**7) == "exact"
    monkeypatch.setattr(ann, "EXACT_MAX", 11)
    assert [build(np.eye(n, dtype=np.float32)).kind for n in (11, 12)] == ["exact", "quantised"]
    with pytest.raises(ValueError, match="must be one of auto, exact, quantised, hnsw, grouped, got 'ivf'"):
        choose("ivf", 3)


def test_what_is_invalid_is_refused():
    vectors, queries = whole_numbers(3, 10, 2)
    index = build(vectors)
    for asked, k in ((queries[:, :3], 1), (queries[0], 1), (queries, 0)):
        with pytest.raises(ValueError, match=r"need queries \(n, 6\) and k >= 1"):
            index.search(asked, k)
    queries[1, 2] = np.nan
    with pytest.raises(ValueError, match="query 1 is not finite"):
        index.search(queries, 1)
    vectors[4, 0] = np.inf
    with pytest.raises(ValueError, match="label vector 4 is not finite"):
        build(vectors)
    with pytest.raises(ValueError, match="label vectors must be"):
        build(vectors[0])
    with pytest.raises(ValueError, match="what was found for 1"):
        recall(np.zeros((1, 1), np.int64), vectors, whole_numbers(3, 10, 2)[1])


@pytest.mark.parametrize("kind", ann.KINDS)
@pytest.mark.parametrize("without", [[], [3], [0, 1, 2, 3, 4, 5, 6, 7, 39], list(range(1, 40))])
def test_labels_that_are_left_out_are_not_found(monkeypatch, kind, without):
    monkeypatch.setattr(ann, "_LABELS", 4)    # some blocks have no label left
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(9, 6)).astype(np.float32)
    there = np.setdiff1d(np.arange(40), without)
    scores, ids = build(vectors, kind).search(queries, 12, np.array(without, np.int64))
    for query, row, of in zip(queries, ids, scores, strict=True):
        wanted = there[np.argsort(-(vectors[there] @ query), kind="stable")][:12]
        n = len(wanted)
        assert row[:n].tolist() == wanted.tolist() and (row[n:] == -1).all() and np.isneginf(of[n:]).all()
        assert of[:n] == pytest.approx(vectors[wanted] @ query, abs=1e-5)
