"""`only` and `without`: what is left out takes nobody's place, the rest is ranked as an exact search would."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.toy import trained
from xcmodels.data.corpus import Ragged, Texts
from xcmodels.data.label_branches import Branches
from xcmodels.retrieval import selection, uid_index
from xcmodels.retrieval.folder import REMOVED
from xcmodels.retrieval.label_editing import ADD, Edit, edit_retriever
from xcmodels.retrieval.proposers import best_of
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.selection import NoBranches, UnknownLabel
from xcmodels.retrieval.uid_index import UidIndex

K, LABELS = 7, 60
HALF = [f"label:{i}" for i in range(0, LABELS, 2)]
BROADER = [("label:1", "label:0"), ("label:2", "label:1"), ("label:3", "label:0"), ("label:0", "top"),
           ("top", "label:2"), ("label:9", "other"), ("not yet", "other")]    # label:0, 1, 2 and top are in a cycle


@pytest.fixture(scope="module", params=["ngame", "astra", "unidec", "siamesexml"])
def retriever(request) -> Retriever:
    return Retriever.load(trained(request.param).retriever)


@pytest.fixture(scope="module")
def titles() -> list[str]:
    return list(Texts.load(trained("ngame").corpus.folder, "test.title"))[:40]


@pytest.fixture
def with_branches(tmp_path) -> Retriever:
    folder = tmp_path / "r"
    shutil.copytree(trained("ngame").retriever, folder)
    Branches.save(folder, BROADER)
    return Retriever.load(folder)


def exact(retriever: Retriever, texts: list[str], allowed: np.ndarray, k: int) -> list[list[int]]:
    """Score every allowed label and return the k best of each text."""
    tokens = retriever.tokenizer(texts)
    every = np.tile(np.flatnonzero(allowed), (len(texts), 1))
    return best_of(every, retriever.scorer(retriever.embed(tokens), every, tokens), k)[0].tolist()


def ids(predictions) -> list[list[int]]:
    return [[label.id for label in labels] for labels in predictions]


@pytest.mark.parametrize("scored", [0, 4096], ids=["by indexes", "one by one"])
@pytest.mark.parametrize("given", [
    {"only": HALF}, {"without": HALF}, {"only": HALF[:1]}, {"without": HALF[:1]}, {"only": HALF, "without": HALF[3:9]},
    {"only": HALF[:3]}, {"without": [f"label:{i}" for i in range(LABELS - 2)]}])
def test_the_answer_is_that_of_an_exact_search_of_what_is_allowed(retriever, titles, monkeypatch, scored, given):
    monkeypatch.setattr(selection, "MAX_SCORED_LABELS", scored)
    allowed = np.array([("only" not in given or f"label:{i}" in given["only"]) and f"label:{i}" not in
                        given.get("without", ()) for i in range(LABELS)])
    found = retriever.predict(titles, K, **given)
    assert ids(found) == exact(retriever, titles, allowed, min(K, allowed.sum()))
    before = {label.id: label for label in retriever.predict(titles, LABELS)[3]}
    assert found[3] == [before[label.id] for label in found[3]], "score and confidence are what they were"
    sure = retriever.predict(titles, K, threshold=0.5, **given)
    assert sure == [[label for label in labels if label.confidence >= 0.5] for labels in found]


def test_nothing_left_gives_no_labels(retriever, titles):
    assert retriever.predict(titles, K, only=[]) == [[]] * 40
    assert retriever.predict(titles, K, only=HALF, without=HALF) == [[]] * 40
    assert retriever.predict(titles, K, without=()) == retriever.predict(titles, K)
    assert retriever.predict(titles, K, only=[], threshold=0.5) == [[]] * 40


def test_a_shortlist_is_as_long_whatever_is_left_out(retriever, monkeypatch, titles):
    """Labels that are left out are those that would be proposed first."""
    monkeypatch.setattr(selection, "MAX_SCORED_LABELS", 0)
    queries = retriever.embed(retriever.tokenizer(titles))
    for name, proposer in retriever.proposers.items():
        first = np.unique(proposer(queries, 4))
        first = first[first >= 0][:20]
        left = proposer.leaving_out(first)(queries, 4)
        assert not np.isin(left, first).any()
        assert ((left >= 0).sum(1) >= (1 if name == "queries" else 4)).all(), name
    for place, before in enumerate(retriever.scorer.propose(retriever.tokenizer(titles))):
        gone = np.unique(before[before >= 0])[:10]
        assert not np.isin(retriever.scorer.propose(retriever.tokenizer(titles), gone)[place], gone).any()


def test_removed_labels_are_known_and_never_given(titles, tmp_path, monkeypatch):
    shutil.copytree(trained("ngame").retriever, tmp_path / "r")
    np.save(tmp_path / "r" / REMOVED, np.array([4, 8]))
    retriever = Retriever.load(tmp_path / "r")
    for scored in (0, 4096):
        monkeypatch.setattr(selection, "MAX_SCORED_LABELS", scored)
        allowed = np.isin(np.arange(LABELS), range(0, LABELS, 2)) & ~np.isin(np.arange(LABELS), [4, 8])
        assert ids(retriever.predict(titles, K, only=HALF)) == exact(retriever, titles, allowed, K)
    assert retriever.predict(titles[:1], only=["label:4"]) == [[]]


def test_a_branch_is_a_concept_and_all_that_is_narrower_whatever_its_cycles(with_branches, titles):
    def chosen(*entries) -> list[int]:
        return sorted({label.id for row in with_branches.predict(titles, LABELS, only=entries) for label in row})

    assert chosen({"under": "label:0"}) == chosen({"under": "top"}) == [0, 1, 2, 3]
    assert chosen({"under": "label:3"}) == [3]
    assert chosen({"under": "other"}) == [9], "a concept that is no label has no answer of its own"
    assert chosen({"under": "not yet"}) == []
    assert chosen({"under": "label:50"}) == [50], "a label without relations is a branch by itself"
    assert chosen({"under": "other"}, "label:1") == [1, 9]
    left = with_branches.predict(titles, LABELS, without=[{"under": "top"}])
    assert {label.id for row in left for label in row} == {*range(4, LABELS)}
    with pytest.raises(UnknownLabel, match=r"no concept for without\[1\], 'nowhere'; broader.tsv"):
        with_branches.predict(titles, without=["label:1", {"under": "nowhere"}])
    with pytest.raises(UnknownLabel, match=r"no label for only\[0\], 'top'; it is a concept: {'under': 'top'}"):
        with_branches.predict(titles, only=["top"])


def test_an_added_label_is_in_the_branch_that_the_vocabulary_has_it_in(with_branches, tmp_path):
    (tmp_path / "edited").mkdir()
    edit_retriever(tmp_path / "r", [Edit(ADD, "not yet", "l3w1 l7w2")], tmp_path / "edited")
    found = Retriever.load(tmp_path / "edited").predict(["l3w1 l7w2"], only=[{"under": "other"}])
    assert [label.uid for label in found[0]] == ["not yet", "label:9"]


def test_what_is_unknown_is_named_with_its_place(with_branches, retriever, titles):
    said = r"no label for only\[1\], 'label:x', nor for 2 more; xc export embeddings"
    with pytest.raises(UnknownLabel, match=said) as error:
        retriever.predict(titles, only=["label:1", "label:x", "label:2", "y"], without=["z"])
    assert error.value.unknown == [
        ("only", 1, "label:x", "label"), ("only", 3, "y", "label"), ("without", 0, "z", "label")]
    with pytest.raises(NoBranches, match=r"without\[1\] names a branch, but .* xc data import .* --vocabulary"):
        retriever.predict(titles, without=["label:0", {"under": "label:0"}])
    with pytest.raises(ValueError, match=r"only must be a list of uids, got 'label:1'; write \['label:1'\]"):
        retriever.predict(titles, only="label:1")
    for entry in (3, {"beneath": "x"}, {"under": 3}, {"under": "x", "over": "y"}):
        with pytest.raises(ValueError, match=r'only\[0\] must be a uid, or {"under": uid} for a branch'):
            with_branches.predict(titles, only=[entry])


def test_uids_are_found_where_hashes_collide(tmp_path, monkeypatch):
    uids = [f"http://example.org/ä{i}" for i in range(500)]
    Texts.save(tmp_path, "uid", uids)
    asked = ["none", *uids[::-7], "http://example.org/ä500", ""]
    wanted = [-1, *range(499, -1, -7), -1, -1]
    assert UidIndex(Texts.load(tmp_path, "uid")).rows(asked).tolist() == wanted
    monkeypatch.setattr(uid_index, "_hash", lambda uid: len(uid) % 3)
    assert UidIndex(Texts.load(tmp_path, "uid")).rows(asked).tolist() == wanted
    assert UidIndex(Texts.load(tmp_path, "uid")).rows([]).tolist() == []
    Texts.save(tmp_path, "empty", [])
    assert UidIndex(Texts.load(tmp_path, "empty")).rows(["x"]).tolist() == [-1]


def test_branches_of_random_graphs_are_those_of_a_walk(tmp_path):
    rng = np.random.default_rng(0)
    for trial in range(30):
        folder: Path = tmp_path / str(trial)
        folder.mkdir()
        pairs = {(f"c{a}", f"c{b}") for a, b in rng.integers(20, size=(int(rng.integers(1, 40)), 2))}
        Branches.save(folder, [*pairs, *list(pairs)[:3]])
        branches = Branches.load(folder)
        names = list(branches.uids)
        for start in names:
            wanted, todo = set(), [start]
            while todo:
                if (name := todo.pop()) not in wanted:
                    wanted.add(name)
                    todo += [narrow for narrow, broad in pairs if broad == name]
            reached = branches.under(np.array([names.index(start)]))
            assert {names[i] for i in reached.tolist()} == wanted
    (tmp_path / "none").mkdir()
    Branches.save(tmp_path / "none", [])
    assert Branches.load(tmp_path / "none") is None


def test_training_queries_without_an_allowed_label_are_not_searched():
    from xcmodels.retrieval import ann
    from xcmodels.retrieval.proposers import Proposer

    vectors = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 2]] * np.array([5, 4, 3, 2, 1], np.float32)[:, None]
    labels = Ragged(np.array([0, 1, 3, 4, 5, 6]), np.array([0, 0, 1, 1, 2, 3]))
    proposer = Proposer(ann.build(vectors, "exact"), labels)
    queries = np.ones((1, 4), np.float32)
    assert sorted(proposer(queries, 10)[0].tolist()) == [0, 0, 1]
    assert sorted(proposer.leaving_out(np.array([0]))(queries, 10)[0].tolist()) == [1, 1]
    assert sorted(proposer.leaving_out(np.array([0, 1]))(queries, 10)[0].tolist()) == [2, 3]
    assert proposer.leaving_out(np.arange(4))(queries, 10).shape == (1, 0)
