"""How hard what was mined is, against loops."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Round
from xcmodels.mining import gpu_index, nearest_labels, refresh
from xcmodels.mining.gpu_index import GpuIndex
from xcmodels.mining.grouped_index import GroupedIndex
from xcmodels.mining.hardness import hardness
from xcmodels.mining.refresh import mine
from xcmodels.retrieval import ann
from xcmodels.retrieval.proposers import Proposer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def vectors(corpus) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {"queries": rng.normal(size=(len(corpus.sides["train"]), 12)).astype(np.float32),
            "labels": rng.normal(size=(corpus.n_labels, 12)).astype(np.float32)}


def lazily(vectors):
    return {name: partial(vectors.__getitem__, name) for name in vectors}


def test_of_hard_negatives(corpus, vectors):
    mined = mine(lazily(vectors), corpus, Round("joint", 1, 2, 4, n_negatives=3, mined_by=0), seed=0)
    mined.negatives[corpus.training_rows()[::7], 1:] = -1    # some queries have fewer
    found = hardness(mined, lazily(vectors), corpus, np.random.default_rng(0))
    own, hard, harder = [], [], 0
    rows = corpus.training_rows()
    for row in rows:
        scores = vectors["labels"] @ vectors["queries"][row]
        true, pushed = corpus.positives["train"][row], [i for i in mined.negatives[row] if i >= 0]
        own += scores[true].tolist()
        hard += scores[pushed].tolist()
        harder += max(scores[pushed]) > min(scores[true])
    assert found["positives"] == pytest.approx(np.mean(own), abs=1e-5)
    assert found["negatives"] == pytest.approx(np.mean(hard), abs=1e-5)
    assert found["harder"] == pytest.approx(100 * harder / len(rows))
    assert abs(found["random"]) < 1 < found["negatives"]


def test_the_recall_of_an_index_is_told(corpus, vectors, monkeypatch):
    asked = Round("joint", 1, 2, 4, n_negatives=3, mined_by=0)
    assert mine(lazily(vectors), corpus, asked, seed=0).measured == {"recall": 100}
    for name, value in (("_M", 2), ("_EF_CONSTRUCTION", 2), ("_EF_SEARCH", 1)):
        monkeypatch.setattr(ann, name, value)
    poor = ann.build(vectors["labels"], "hnsw")
    monkeypatch.setattr(ann, "build", lambda *_: poor)
    monkeypatch.setattr(refresh, "RECALL_QUERIES", 10_000)    # all of them
    queries = vectors["queries"][corpus.training_rows()]
    exact = np.argsort(-(queries @ vectors["labels"].T), axis=1)[:, :3]
    found = poor.search(queries, 3)[1]
    shares = [len({*one} & {*other}) / 3 for one, other in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(shares) < 0.99
    assert mine(lazily(vectors), corpus, asked, seed=0, index="hnsw").measured["recall"] == pytest.approx(
        100 * np.mean(shares))


def test_search_by_groups_finds_the_same_where_it_scores_every_label(corpus, vectors, monkeypatch):
    rows = corpus.training_rows()
    exact, index = (refresh.build_index(vectors["labels"], vectors["queries"], rows, 4, kind=kind, seed=0)
                    for kind in ("exact", "grouped"))
    wanted, all_scored, some = (refresh.hard_negatives(each, vectors["queries"], corpus, rows, 4)
                                for each in (exact, replace(index, share=1.0), index))
    np.testing.assert_array_equal(all_scored, wanted)
    monkeypatch.setattr(GroupedIndex, "chunk", 7)
    for part in (rows[::3], rows[1:]):
        found = refresh.hard_negatives(index, vectors["queries"], corpus, part, 4)
        np.testing.assert_array_equal(found[part], some[part])
        assert np.all(np.delete(found, part, axis=0) == -1)
    for row in rows.tolist():
        assert not np.isin(some[row], corpus.positives["train"][row]).any()


def test_an_index_of_groups_is_the_same_from_its_files(corpus, vectors, tmp_path):
    rows = corpus.training_rows()
    made = refresh.build_index(vectors["labels"], vectors["queries"], rows, 4, kind="grouped", seed=0)
    made.save(tmp_path)
    loaded = refresh.load_index(tmp_path)
    np.testing.assert_array_equal(refresh.hard_negatives(loaded, vectors["queries"], corpus, rows, 4),
                                  refresh.hard_negatives(made, vectors["queries"], corpus, rows, 4))


def test_auto_searches_many_labels_by_groups(corpus, vectors, monkeypatch):
    rows = corpus.training_rows()

    def kind_of(name):
        return refresh.build_index(vectors["labels"], vectors["queries"], rows, 3, kind=name, seed=0).kind

    assert kind_of("auto") == "exact" and kind_of("quantised") == "quantised"
    monkeypatch.setattr(ann, "EXACT_MAX", len(vectors["labels"]) - 1)
    assert kind_of("auto") == "grouped"
    asked = Round("joint", 1, 2, 4, n_negatives=3, mined_by=0)
    mined = mine(lazily(vectors), corpus, asked, seed=0)
    assert 90 < mined.measured["recall"] <= 100
    np.testing.assert_array_equal(mine(lazily(vectors), corpus, asked, seed=0, index="grouped").negatives,
                                  mined.negatives)


def test_search_on_a_device_finds_the_nearest_that_are_not_excluded(corpus, vectors, monkeypatch):
    rows, labels = corpus.training_rows(), vectors["labels"]
    exact = refresh.build_index(labels, vectors["queries"], rows, 4, kind="exact", seed=0)
    wanted = refresh.hard_negatives(exact, vectors["queries"], corpus, rows, 4)
    monkeypatch.setattr(gpu_index, "_QUERIES", 5)
    for block in (3, len(labels) - 1, 2 * len(labels)):
        monkeypatch.setattr(gpu_index, "_LABELS", block)
        index = GpuIndex(ann.build(labels, "exact"), "cpu")
        np.testing.assert_array_equal(
            refresh.hard_negatives(index, vectors["queries"], corpus, rows, 4), wanted)
        all_asked = index.nearest(vectors["queries"][:6], len(labels) + 2,
                                  lambda some: np.arange(len(some)) * len(labels) + some)
        assert all_asked.shape == (6, len(labels) + 2)
        for row, found in enumerate(all_asked.tolist()):
            assert sorted(found) == [-1, -1, -1, *sorted({*range(len(labels))} - {row})]


def test_an_index_of_a_device_is_searched_on_a_processor_where_there_is_none(corpus, vectors, tmp_path):
    rows = corpus.training_rows()
    index = GpuIndex(ann.build(vectors["labels"], "exact"), "cpu")
    index.save(tmp_path)
    loaded = refresh.load_index(tmp_path)
    assert loaded.kind == "exact"
    np.testing.assert_array_equal(refresh.hard_negatives(loaded, vectors["queries"], corpus, rows, 4),
                                  refresh.hard_negatives(index, vectors["queries"], corpus, rows, 4))


def test_a_retriever_takes_another_index_than_one_that_only_mines():
    assert ann.choose("grouped", 10) == "exact" and ann.choose("grouped", 10**6) == "quantised"


def test_of_clusters(corpus, vectors):
    mined = mine(lazily(vectors), corpus, Round("encoder", 1, 2, 4, cluster_size=2, mined_by=0), seed=0)
    # No label has to be embedded for it.
    found = hardness(mined, {"queries": lazily(vectors)["queries"]}, corpus, np.random.default_rng(0))
    unit = vectors["queries"] / np.linalg.norm(vectors["queries"], axis=1, keepdims=True)
    of = unit[corpus.training_rows()]
    alike = []
    for cluster in range(mined.clusters.max() + 1):
        left, *rest = np.flatnonzero(mined.clusters == cluster)
        for right in rest:
            alike.append(float(of[left] @ of[right]))
            left = right
    assert found["same_cluster"] == pytest.approx(np.mean(alike), abs=1e-5)
    assert found["same_cluster"] > found["any_query"] + 0.2


def test_clusters_of_all_places_count_alike(corpus, monkeypatch):
    """Ids of clusters follow the tree that cut them: the first ones lie together, here where all queries are alike."""
    rows, rng = corpus.training_rows(), np.random.default_rng(0)
    monkeypatch.setattr("xcmodels.mining.hardness.DRAWN", len(rows) // 4)
    queries = rng.normal(size=(len(corpus.sides["train"]), 16)).astype(np.float32)
    queries[rows[:len(rows) // 2]] = 1.0
    pairs = Mined(clusters=np.arange(len(rows)) // 2)
    assert 0.3 < hardness(pairs, {"queries": lambda: queries}, corpus, rng)["same_cluster"] < 0.7


def test_of_nothing(corpus, vectors):
    assert hardness(Mined(), lazily(vectors), corpus, np.random.default_rng(0)) == {}
    none = Mined(negatives=np.full((len(corpus.sides["train"]), 3), -1, np.int32))
    assert hardness(none, lazily(vectors), corpus, np.random.default_rng(0)) == {}
    single = Mined(clusters=np.arange(len(corpus.training_rows())))
    assert hardness(single, lazily(vectors), corpus, np.random.default_rng(0))["same_cluster"] == 0.0


@pytest.mark.parametrize(("codes_up_to", "together", "recall"), [(10**6, 900, 0.7), (100, 900, 0.9), (100, 300, 0.9)])
def test_the_nearest_labels_of_each_training_query_are_found(codes_up_to, together, recall, monkeypatch):
    """By the served codes or by groups of queries, so many at once: most of those that an exact search finds."""
    monkeypatch.setattr(ann, "EXACT_MAX", codes_up_to)
    monkeypatch.setattr(nearest_labels, "QUERY_BYTES", together * 8 * 4)
    rng = np.random.default_rng(3)
    labels, queries = (rng.normal(size=(n, 8)).astype(np.float32) for n in (3000, 900))
    proposer, rows = Proposer(ann.build(labels, "quantised")), rng.permutation(900)[:700]
    found = nearest_labels.nearest_labels(proposer, lambda some: queries[some], rows, 10, seed=0)
    assert found.shape == (700, 10) and ann.recall(found, labels, queries[rows], 10) > recall
