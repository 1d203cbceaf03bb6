"""Labels added and removed without training: found by their own text, never proposed again, the others as they were."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import tiny
from tests.support.toy import ASTRA, SIAMESEXML, UNIDEC, toy_config, word
from xcmodels.methods.astra.method import astra
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.siamesexml.method import siamesexml
from xcmodels.methods.unidec.method import unidec
from xcmodels.retrieval import ann
from xcmodels.retrieval.label_editing import ADD, REMOVE, Edit, EditedLabels, edit_retriever
from xcmodels.retrieval.proposers import Proposer
from xcmodels.retrieval.retriever import Label, Retriever
from xcmodels.retrieval.serving_config import FusionConfig, SparseConfig
from xcmodels.training.local_run import train_all

FUSION = FusionConfig(shortlist=20, min_leaf=20, centroids=True, words=True, frequent=8, sparse=SparseConfig(steps=10))
METHODS = {
    "tree": ngame(toy_config(fusion=FUSION)),
    "tree of halves": unidec(replace(UNIDEC, serve="fused", unit=False, fusion=FUSION)),
    "classifier": astra(ASTRA), "sum on one head": astra(replace(ASTRA, start="label", serve="sum")),
    "encoder": unidec(replace(UNIDEC, balance=1.0, serve="encoder")),
    "both": unidec(UNIDEC), "mix": siamesexml(replace(SIAMESEXML, partitions=3))}
TEXTS = ["l3w1 l3w0", "l9w0 l9w1 filler3", "l5w2 l5w3", "l20w1 l20w4 l7w0"]


@pytest.fixture(scope="module", params=METHODS)
def folder(request, corpus, tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return train_all(corpus, METHODS[request.param], tmp_path_factory.mktemp("made")).retriever


def edited(folder: Path, out: Path, *edits: Edit) -> Retriever:
    out.mkdir()
    edit_retriever(folder, edits, out)
    return Retriever.load(out)


def scores(retriever: Retriever, text: str) -> dict[int, float]:
    return {label.id: label.score for label in retriever.predict([text], len(retriever))[0]}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Words that training has seen, in company that no label has.
NEW = [Edit(ADD, "new:1", f"{word(1, 3)} {word(30, 4)} {word(44, 2)}"),
       Edit(ADD, "new:2", f"{word(2, 4)} {word(51, 3)}")]


def test_what_an_edit_leaves_as_it_is_takes_no_room(folder, tmp_path):
    edited(folder, tmp_path / "r", *NEW)
    before, after = files(folder), files(tmp_path / "r")
    linked = {name for name in after if name in before and (tmp_path / "r" / name).samefile(folder / name)}
    assert linked == {name for name in before if name.startswith(("encoder/", "tokenizer/"))} != set()
    assert all(after[name] == before[name] for name in linked)


def test_an_added_label_is_found_by_its_own_text(folder, tmp_path):
    before, after = Retriever.load(folder), edited(folder, tmp_path / "r", *NEW)
    assert len(after) == len(before) + 2 == 62
    for place, edit in enumerate(NEW):
        [best] = after.predict([edit.text], 2)
        assert (60 + place, edit.uid, edit.text) in [(label.id, label.uid, label.text) for label in best]
        meant = before.calibration(np.array([label.score for label in best]))
        assert [label.confidence for label in best] == pytest.approx(meant, abs=1e-5), "a score means what it did"
        why = dict(zip([label.id for label in best], after.explain(edit.text, best), strict=True))[60 + place]
        assert why.frequency == 0 and why.nearest == []
        assert sum(why.parts.values()) == pytest.approx(dict((x.id, x.score) for x in best)[60 + place], abs=1e-5)


@pytest.mark.parametrize("folder", ["classifier"], indirect=True)
def test_added_labels_score_no_higher_than_trained_ones(folder, tmp_path):
    """By its text's own vector each would stand before the right labels of all other texts."""
    before = Retriever.load(folder)
    after = edited(folder, tmp_path / "r", *(Edit(ADD, f"again:{label}", before.titles[label]) for label in range(60)))
    texts = before.examples.side.tokens(np.arange(len(before.examples.texts)))
    ids, found = after.search(texts, len(after))
    by_label = np.empty_like(found)
    np.put_along_axis(by_label, ids, found, axis=1)
    assert np.quantile(by_label[:, 60:], 0.999) == pytest.approx(np.quantile(by_label[:, :60], 0.999), rel=1e-3)


def test_the_other_labels_keep_their_ids_texts_and_scores(folder, tmp_path):
    before, after = Retriever.load(folder), edited(folder, tmp_path / "r", *NEW, Edit(REMOVE, "label:9"))
    for text in TEXTS:
        was, now = scores(before, text), scores(after, text)
        assert set(now) == set(was) - {9} | {60, 61}
        assert {label: now[label] for label in was if label != 9} == pytest.approx(
            {label: score for label, score in was.items() if label != 9}, abs=1e-5)
    assert [after.uids[label] for label in range(60)] == [before.uids[label] for label in range(60)]


@pytest.mark.parametrize("k", [1, 5, 20, 59, 60, 1000])
def test_a_removed_label_never_appears(folder, tmp_path, k):
    gone = {3, 9, 17}
    after = edited(folder, tmp_path / "r", *(Edit(REMOVE, f"label:{label}") for label in gone))
    for labels in after.predict([*TEXTS, *(f"{word(label, 0)} {word(label, 1)}" for label in gone), "never seen"], k):
        assert not gone & {label.id for label in labels} and len(labels) == min(k, 57)
    [found] = after.predict([TEXTS[1]], 57)
    near = [each for why in after.explain(TEXTS[1], found, 99) for each in why.nearest]
    assert not {after.titles[label] for label in gone} & {title for each in near for title in each.labels}


def test_the_same_edits_make_the_same_files_and_edits_compose(folder, tmp_path):
    first = [*NEW, Edit(REMOVE, "label:4")]
    then = [Edit(REMOVE, "new:1"), Edit(ADD, "label:4", "l40w0 l3w3"), Edit(ADD, "new:3", "l6w1 filler2")]
    once, again = (edited(folder, tmp_path / name, *first, *then) for name in ("once", "again"))
    assert files(tmp_path / "once") == files(tmp_path / "again")
    edited(folder, tmp_path / "half", *first)
    composed = edited(tmp_path / "half", tmp_path / "whole", *then)
    assert list(composed.uids) == list(once.uids) and list(composed.titles) == list(again.titles)
    for text in [*TEXTS, *(edit.text for edit in [*first, *then])]:
        assert scores(composed, text) == pytest.approx(scores(once, text), abs=1e-4)
    assert "new:1" not in [label.uid for label in once.predict([NEW[0].text], 61)[0]]
    assert [once.uids[label] for label in (60, 61, 62)] == ["new:1", "new:2", "new:3"]


def test_a_label_comes_back_with_a_new_text_or_as_it_was(folder, tmp_path):
    before = Retriever.load(folder)
    title = before.titles[9]
    same = edited(folder, tmp_path / "same", Edit(REMOVE, "label:9"), Edit(ADD, "label:9", title))
    assert {text: scores(same, text) for text in TEXTS} == {text: scores(before, text) for text in TEXTS}
    other = edited(folder, tmp_path / "other", Edit(REMOVE, "label:9"), Edit(ADD, "label:9", "l3w2 l50w1 l12w3"))
    assert other.titles[9] == "l3w2 l50w1 l12w3" and len(other) == 60
    assert 9 in [label.id for label in other.predict(["l3w2 l50w1 l12w3"], 2)[0]]
    assert scores(other, TEXTS[1])[9] < scores(before, TEXTS[1])[9]
    [why] = other.explain(TEXTS[1], [Label(9, "", "", 0.0, 0.0)])
    assert why.frequency == 0 and why.nearest == []


def test_nothing_to_edit_changes_nothing(folder, tmp_path):
    edited(folder, tmp_path / "r", Edit(REMOVE, "nobody"), Edit(ADD, "label:3", "a label that is there"))
    mine, theirs = files(tmp_path / "r"), files(folder)
    assert {name: mine[name] == theirs[name] for name in theirs} == dict.fromkeys(theirs, True)


def test_an_added_label_gains_by_its_content(tmp_path):
    tiny_one = tiny.tiny_retriever(tmp_path / "t")
    bare = edited(tiny_one, tmp_path / "bare", Edit(ADD, "x", "river"))
    full = edited(tiny_one, tmp_path / "full", Edit(ADD, "x", "river", "desert moss"))
    assert scores(full, "desert moss")[50] > scores(bare, "desert moss")[50]
    assert full.titles[50] == "river"


def test_all_labels_may_be_removed(tmp_path):
    made = tiny.tiny_retriever(tmp_path / "t")
    none = edited(made, tmp_path / "none", *(Edit(REMOVE, f"tiny:{label}") for label in range(50)))
    assert len(none) == 0 and none.predict(["a wolf"]) == [[]]
    one = edited(tmp_path / "none", tmp_path / "one", Edit(ADD, "wolf", "a wolf"))
    assert [label.uid for label in one.predict(["a cat"], 5)[0]] == ["wolf"]


def test_counts(tmp_path):
    retriever = Retriever.load(tiny.tiny_retriever(tmp_path))
    for edits, wanted in (
            ([], (0, 0)), ([Edit(ADD, "x", "y")], (1, 0)), ([Edit(REMOVE, "tiny:3")], (0, 1)),
            ([Edit(ADD, "x", "y"), Edit(REMOVE, "x")], (0, 0)),
            ([Edit(REMOVE, "tiny:3"), Edit(ADD, "tiny:3", tiny.LABELS[3])], (0, 0)),
            ([Edit(REMOVE, "tiny:3"), Edit(ADD, "tiny:3", "other")], (1, 0)),
            ([Edit(REMOVE, "tiny:3"), Edit(ADD, "tiny:3", "other"), Edit(REMOVE, "tiny:3")], (0, 1))):
        assert EditedLabels(retriever, edits).counts() == wanted


def test_a_label_that_the_data_has_with_its_content_by_now_is_trained(tmp_path):
    """A promotion applies all edits of the journal to a retrained version, renamings among them."""
    folder, content = tiny.tiny_retriever(tmp_path), "an animal that howls"
    renamed = [Edit(REMOVE, "tiny:3"), Edit(ADD, "tiny:3", tiny.LABELS[3], content)]
    before = Retriever.load(folder)
    once = edited(folder, tmp_path / "once", *renamed)
    assert EditedLabels(before, renamed).counts() == (1, 0) and once.examples.counts[3] == 0 < before.examples.counts[3]
    assert EditedLabels(once, renamed).counts() == (0, 0), "it has this content"
    assert EditedLabels(once, [renamed[0], replace(renamed[1], content="a fish")]).counts() == (1, 0)
    assert EditedLabels(before, [renamed[0], replace(renamed[1], content=" \a")]).counts() == (0, 0), "nothing is read"


def indexed(folder: Path, out: Path, kind: str) -> Path:
    """The same retriever with another kind of index."""
    out.mkdir()
    edit_retriever(folder, [], out)
    index = ann.build(np.array(ann.load(folder / "index" / "labels").vectors), kind)
    shutil.rmtree(out / "index" / "labels")
    Proposer(index).save(out / "index" / "labels")
    return out


@pytest.mark.parametrize("kind", ["quantised", "hnsw"])
def test_an_index_grows_and_leaves_out(tmp_path, kind):
    exact = tiny.tiny_retriever(tmp_path / "t")
    graph = indexed(exact, tmp_path / "graph", kind)
    more = [Edit(ADD, "new:1", "forest wolf sea"), Edit(REMOVE, "tiny:30"), Edit(REMOVE, "tiny:7")]
    changed = [*more, Edit(ADD, "tiny:7", "elm fern")]
    for number, edits in enumerate((more, changed)):
        one, other = (edited(of, tmp_path / f"{of.name}{number}", *edits) for of in (exact, graph))
        edited(graph, tmp_path / f"again{number}", *edits)
        assert files(tmp_path / f"again{number}") == files(tmp_path / f"graph{number}")
        for text in ("forest wolf", "elm", "a moss of the sea"):
            assert scores(other, text) == pytest.approx(scores(one, text), abs=1e-5)
