"""`only` and `without` of requests: exact, whoever is asked beside; what is unknown gets a 422 with a pointer."""

import gc
import shutil
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from serving.answers import SELECTIONS, ModelService, Question, Selections, answer
from serving.http.guard import MAX_BODY, MAX_CONTAINERS, MAX_VALUES, Problem
from serving.prometheus import ServerMetrics
from serving.schemas import MAX_LISTED, PredictRequest
from tests.support import tiny
from tests.support.running_server import problem
from xcmodels.data.label_branches import Branches
from xcmodels.retrieval.retriever import Retriever

UIDS = [f"tiny:{i}" for i in range(50)]
TEXT = "a wolf that lives in the mountains"


@pytest.fixture
def served(tmp_path):
    shutil.copytree(tiny.tiny_retriever(tmp_path / "made"), tmp_path / "r")
    Branches.save(tmp_path / "r", [("tiny:1", "tiny:0"), ("tiny:2", "tiny:1"), ("tiny:0", "tiny:2")])
    return SimpleNamespace(retriever=Retriever.load(tmp_path / "r"), watch=SimpleNamespace(written=lambda recent: ""))


def found(server, **asked) -> list[str]:
    [result] = server.ask("/predict", {"texts": [TEXT], "k": 5, **asked}).json()["results"]
    return [label["uid"] for label in result["labels"]]


@pytest.mark.parametrize("more", [{}, {"explain": True}], ids=["plain", "explained"])
def test_the_next_best_take_the_places_of_what_is_left_out(server, more):
    every = found(server, k=50)
    assert len(every) == 50
    assert found(server, without=every[:3], **more) == every[3:8]
    assert found(server, only=every[10:40:2], **more) == every[10:20:2]
    assert found(server, only=every[10:13], without=every[11:12], **more) == [every[10], every[12]]
    assert found(server, only=[], **more) == [] == found(server, without=UIDS, **more)
    assert found(server, only=None, without=[], **more) == every[:5]


def test_a_threshold_and_a_choice_together(server):
    [every] = server.ask("/predict", {"texts": [TEXT], "k": 50}).json()["results"]
    sure = {label["uid"]: label["confidence"] for label in every["labels"]}
    least = sure[found(server, k=50)[20]]
    chosen = UIDS[::2]
    assert found(server, only=chosen, threshold=least, k=50) == [
        uid for uid, confidence in sure.items() if uid in chosen and confidence >= least]


def test_what_names_no_label_gets_a_pointer_and_is_not_repeated(server):
    asked = {"texts": [TEXT], "only": ["tiny:0", "n123", "<b>x</b>"], "without": ["y z"]}
    told = problem(server.ask("/predict", asked), 422, "unknown-label")
    assert told["errors"] == [{"pointer": "/only/1", "detail": "there is no label n123"},
                              {"pointer": "/only/2", "detail": "there is no label of this uid"},
                              {"pointer": "/without/0", "detail": "there is no label of this uid"}]
    assert "<b>" not in told["detail"] and "y z" not in told["detail"]
    many = problem(server.ask("/predict", {"texts": [TEXT], "without": ["no"] * 5000}), 422, "unknown-label")
    assert len(many["errors"]) == 8 and many["detail"].endswith("; and 4,992 more")
    told = problem(server.ask("/predict", {"texts": [TEXT], "without": ["tiny:0", {"under": "tiny:1"}]}), 422,
                   "no-branches")
    assert told["errors"][0]["pointer"] == "/without/1" and "vocabulary" in told["detail"]
    assert server.fine()


def test_a_concept_and_an_unknown_branch_are_told_apart_from_a_label(served, tmp_path):
    Branches.save(tmp_path / "r", [("tiny:1", "top")])
    served.retriever = Retriever.load(tmp_path / "r")
    with pytest.raises(Problem) as caught:
        Selections()(served, PredictRequest(texts=["x"], only=["top", {"under": "none"}]))
    assert caught.value.errors == [
        ("/only/0", 'there is no label top; it is a concept: {"under": uid} names the labels under it'),
        ("/only/1", "there is no concept none")]


@pytest.mark.parametrize(("wrong", "pointer"), [
    ({"only": "tiny:0"}, "/only"), ({"only": [3]}, "/only/0"), ({"only": ["tiny:0", None]}, "/only/1"),
    ({"without": [{}]}, "/without/0"), ({"without": [{"under": 3}]}, "/without/0"), ({"without": None}, "/without"),
    ({"without": [{"under": "x", "<i>": "y"}]}, "/without/0"), ({"only": [["tiny:0"]]}, "/only/0"),
    ({"only": ["x"] * (MAX_LISTED + 1)}, "/only")], ids=str)
def test_what_is_no_entry_gets_a_pointer(server, wrong, pointer):
    told = problem(server.ask("/predict", {"texts": [TEXT], **wrong}), 422, "invalid")
    assert [each["pointer"] for each in told["errors"]] == [pointer] and "<i>" not in told["detail"]


def test_very_many_labels_fit_into_a_request_and_more_are_refused_at_once(server):
    asked = UIDS * (MAX_LISTED // 50)
    assert len(asked) * len('"tiny:49", ') < MAX_BODY and found(server, only=asked) == found(server)
    problem(server.ask("/predict", {"texts": [TEXT], "only": ["x"] * MAX_VALUES}), 413, "values")
    told = problem(server.ask("/predict", {"texts": [TEXT], "only": [{"under": "x"}] * MAX_CONTAINERS}), 413, "values")
    assert f"{MAX_CONTAINERS:,} of them lists and objects" in told["detail"]
    fields = {f"field{i}": 1 for i in range(60_000)}
    assert "at most 6 fields" in problem(server.ask("/predict", fields), 422, "invalid")["detail"]
    assert server.fine()


def test_texts_of_different_choices_wait_together_and_are_answered_apart(served):
    asked = [{}, {"only": UIDS[:9]}, {"without": UIDS[:9]}, {}, {"only": UIDS[:9]}, {"only": [{"under": "tiny:1"}]}]
    selections = Selections()
    chosen = [selections(served, PredictRequest(texts=["x"], **each)) for each in asked]
    assert chosen[0] is None and chosen[1] is chosen[4] and chosen[1] is not chosen[2]
    questions = [Question(served, text, 5, 0.0, explain, selection) for selection in chosen
                 for text, explain in ((TEXT, False), ("an oak", False), (TEXT, True))]
    answers = answer(questions)
    for place, given in enumerate(asked):
        wanted = [[label.uid for label in labels]
                  for labels in served.retriever.predict([TEXT, "an oak", TEXT], 5, **given)]
        assert [[label["uid"] for label in labels] for labels in answers[3 * place:3 * place + 3]] == wanted
    alone = answer([Question(served, text, 5, 0.0, False) for text in (TEXT, "an oak") for _ in range(2)])
    assert [answers[0], answers[9], answers[1], answers[10]] == alone, "as if nobody had asked beside"


def test_who_asks_for_more_labels_changes_nothing_for_others(tmp_path):
    """With k the number of labels that are proposed grows, and the scorer may prefer one of those."""
    folder = tiny.tiny_retriever(tmp_path / "made")
    term = folder / "term.encoder.npy"
    np.save(term, np.load(term)[::-1])    # so the best labels are not those that lie nearest in the index
    served = SimpleNamespace(retriever=Retriever.load(folder), watch=SimpleNamespace(written=lambda recent: ""))
    asked = [Question(served, text, k, 0.0) for text in tiny.LABELS for k in (5, 50)]
    beside = [[label["uid"] for label in labels] for labels in answer(asked)]
    alone = [[label["uid"] for label in labels] for labels in answer([each for each in asked if each.k == 5])]
    assert beside[::2] == alone
    assert alone != [uids[:5] for uids in beside[1::2]], "else the test shows nothing"


def test_only_the_last_selections_are_kept_and_those_of_one_version(served):
    selections, other = Selections(), SimpleNamespace(retriever=served.retriever)
    first = selections(served, PredictRequest(texts=["x"], only=UIDS[:1]))
    for i in range(SELECTIONS - 1):
        selections(served, PredictRequest(texts=["x"], only=UIDS[i + 1:i + 2]))
    assert selections(served, PredictRequest(texts=["x"], only=UIDS[:1])) is first, "and now the last used"
    selections(served, PredictRequest(texts=["x"], without=UIDS[:1]))
    assert selections(served, PredictRequest(texts=["x"], only=UIDS[:1])) is first
    assert len(selections._kept) == SELECTIONS
    assert selections(other, PredictRequest(texts=["x"], only=UIDS[:1])) is not first


def test_a_version_that_was_replaced_is_not_kept_for_the_lists_it_was_sent(served):
    class Version:
        retriever = served.retriever

    selections, before = Selections(), Version()
    assert selections(before, PredictRequest(texts=["x"], only=["tiny:1"])).count == 1
    gone = weakref.ref(before)
    del before
    assert selections(served, PredictRequest(texts=["x"])) is None
    gc.collect()
    assert gone() is None


def test_a_version_that_was_replaced_is_let_go_whoever_asks(served):
    class Version:
        retriever, watch = served.retriever, SimpleNamespace(damage="")

    follower = SimpleNamespace(current=Version())
    service = ModelService(follower, ServerMetrics(frozenset()))
    service.selections(follower.current, PredictRequest(texts=["x"], only=["tiny:1"]))
    gone, follower.current = weakref.ref(follower.current), Version()
    assert service.answering() is follower.current, "as a client of Annif's REST API does, too"
    gc.collect()
    assert gone() is None
