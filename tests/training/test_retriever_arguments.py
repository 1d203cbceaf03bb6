"""What a retriever takes as texts, contents, k and threshold, and how it names what is none of these."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from mlflow.pyfunc.scoring_server import infer_and_parse_data

from tasks.registry.pyfunc_model import RetrieverModel
from tests.support.tiny import tiny_retriever
from xcmodels.retrieval.retriever import Label, Retriever

TEXTS = ["a wolf", "", "an oak of the forest", "a wolf"]
CONTENTS = ["", "of the sea", "that is old", "that is old"]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return Retriever.load(tiny_retriever(tmp_path_factory.mktemp("tiny") / "r"))


@pytest.mark.parametrize("of", [iter, tuple, np.array, lambda texts: (text for text in texts)])
def test_texts_of_any_iterable_are_all_answered(retriever, of):
    wanted = retriever.predict(TEXTS, 3, CONTENTS)
    assert len(wanted) == len(TEXTS) and wanted[0] != wanted[2]
    assert retriever.predict(of(TEXTS), 3, of(CONTENTS)) == wanted
    assert np.array_equal(retriever.embed(of(TEXTS)), retriever.embed(TEXTS))


def test_a_text_alone_is_read_as_its_training_texts_were(tmp_path):
    """Full texts are imported as contents without titles, and a title has embeddings of its own."""
    titled, untitled = (Retriever.load(tiny_retriever(tmp_path / name)) for name in ("titled", "untitled"))
    side = untitled.examples.side
    untitled.examples = replace(untitled.examples, side=replace(side, titles=np.zeros_like(side.titles)))
    assert untitled.untitled and not titled.untitled
    as_content = titled.predict(["", "", ""], 3, TEXTS[:1] + TEXTS[2:])
    assert untitled.predict(TEXTS[:1] + TEXTS[2:], 3) == as_content
    assert [each._tokens(TEXTS[:1], None).titles.tolist() for each in (titled, untitled)] == [[2], [0]]
    assert np.array_equal(untitled.embed(TEXTS[:1]), titled.embed([""], TEXTS[:1]))
    assert untitled.explain(TEXTS[0], as_content[0]) == titled.explain("", as_content[0], content=TEXTS[0])
    assert untitled.predict(TEXTS, 3, CONTENTS)[1:3] == titled.predict(TEXTS, 3, CONTENTS)[1:3]
    assert untitled.fields(["a", "b"], ["", "c"]) == (["", "b"], ["a", "c"])


@pytest.mark.parametrize(("texts", "contents", "said"), [
    ("l1w0", None, r"texts must be a list of texts, got one text; write \[text\]"),
    (["a", "b"], "xy", "contents must be a list of texts, got one text"),
    (["a", "b"], ["x"], "contents must be as many as the texts, 2, got 1"),
    (["a", float("nan")], None, r"texts\[1\] must be a text, got nan"),
    ([b"a"], None, r"texts\[0\] must be a text, got b'a'"), (["a"], [None], r"contents\[0\] must be a text, got None"),
    (pd.DataFrame({"text": TEXTS}), None, "texts must be a list of texts, not of type DataFrame; give a table.s col"),
    ({"text": "a wolf"}, None, "not of type dict"), (None, None, "not of type NoneType"), (3, None, "not of type int"),
    (np.array("a wolf"), None, "not of type ndarray"),
    (["a"], {"content": "b"}, "contents must be a list of texts, not of type dict")])
def test_what_is_no_text_is_named(retriever, texts, contents, said):
    with pytest.raises(ValueError, match=said):
        retriever.predict(texts, contents=contents)


@pytest.fixture(scope="module")
def model(retriever):
    model = RetrieverModel()
    model.retriever = retriever
    return model


ROWS = [{"text": text, "content": content} for text, content in zip(TEXTS, CONTENTS, strict=True)]
COLUMNS = {"text": TEXTS, "content": CONTENTS}


@pytest.mark.parametrize(("body", "contents"), [
    ({"inputs": TEXTS}, None), ({"instances": TEXTS}, None), ({"inputs": COLUMNS}, CONTENTS),
    ({"inputs": {"text": TEXTS}}, None), ({"inputs": ROWS}, CONTENTS), ({"instances": ROWS}, CONTENTS),
    ({"dataframe_records": ROWS}, CONTENTS),
    ({"dataframe_split": {"columns": ["text", "content"], "data": [list(row.values()) for row in ROWS]}}, CONTENTS)])
def test_mlflows_server_answers_each_text_of_a_body_as_the_retriever_does(retriever, model, body, contents):
    wanted = [[label.uid for label in labels] for labels in retriever.predict(TEXTS, 3, contents)]
    assert model.predict(None, infer_and_parse_data(body), {"k": 3})["uids"].tolist() == wanted


@pytest.mark.parametrize("given", ["a wolf", {"text": "a wolf"}, {"text": ["a wolf"], "content": [None]},
                                   [{"text": "a wolf", "content": np.nan}], np.array("a wolf"), pd.Series(["a wolf"])])
def test_one_text_is_one_row_of_mlflows_model_whichever_way_it_comes(model, given):
    assert model.predict(None, given).equals(model.predict(None, pd.DataFrame({"text": ["a wolf"]})))
    assert len(model.predict(None, given)) == 1


@pytest.mark.parametrize(("given", "said"), [
    (["a", None], r"texts\[1\] must be a text, got None"), (["a", float("nan")], r"texts\[1\] must be a text, got nan"),
    ([b"a"], r"texts\[0\] must be a text, got b'a'"), (b"a", r"texts\[0\] must be a text, got b'a'"),
    (None, r"texts\[0\] must be a text, got None"), ([["a"]], r"texts\[0\] must be a text, got \['a'\]"),
    ([{"text": "a"}, {}], r"texts\[1\] must be a text, got nan"),
    ([{"text": "a"}, "a"], r"texts\[0\] must be a text, got {'text': 'a'}"),
    ({"text": ["a", 3]}, r"texts\[1\] must be a text, got 3"), ({"query": "a"}, 'need a column "text", got query'),
    ({}, 'need a column "text", got none'), ({"text": ["a"], "content": [3]}, r"contents\[0\] must be a text, got 3"),
    (pd.DataFrame([["a", "b"]], columns=["text", "text"]), 'need one column "text", got 2')])
def test_mlflows_model_names_what_is_no_text(model, given, said):
    with pytest.raises(ValueError, match=said):
        model.predict(None, given)


def test_mlflows_model_keeps_the_index_of_a_frame(model):
    frame = pd.DataFrame({"text": TEXTS}, index=[7, 3, 9, 1])
    for given in (frame, frame["text"]):
        assert model.predict(None, given).index.tolist() == [7, 3, 9, 1]


@pytest.mark.parametrize(("arguments", "said"), [
    ({"k": 2.5}, "k must be a whole number, got 2.5"), ({"k": "3"}, "k must be a whole number, got '3'"),
    ({"k": True}, "k must be a whole number, got True"), ({"threshold": "1"}, "threshold must be a number, got '1'"),
    ({"threshold": None}, "threshold must be a number, got None")])
def test_what_is_no_number_is_named(retriever, arguments, said):
    with pytest.raises(ValueError, match=said):
        retriever.predict(TEXTS, **arguments)


def test_no_list_of_labels_to_leave_out_leaves_none_out(retriever):
    wanted = retriever.predict(TEXTS, 3)
    assert retriever.predict(TEXTS, 3, without=None) == retriever.predict(TEXTS, 3, without=[]) == wanted
    uid = wanted[0][0].uid
    assert [label.uid for label in retriever.predict(TEXTS, 3, only=[uid], without=None)[0]] == [uid]


@pytest.mark.parametrize(("text", "labels", "more", "said"), [
    (["a wolf"], [], {}, r"text must be one text, got \['a wolf'\]"), (None, [], {}, "text must be one text, got None"),
    ("a wolf", [], {"content": None}, "content must be one text, got None"),
    ("a wolf", [[Label(3, "", "", 0.0, 0.0)]], {}, r"of one text: predict\(\[text\]\)\[0\]; got one of type list"),
    ("a wolf", ["wolf"], {}, "labels must be a list of Label, .* got one of type str"),
    ("a wolf", Label(3, "", "", 0.0, 0.0), {}, "got one of type int"), ("a wolf", None, {}, "got one of type NoneType"),
    ("a wolf", [], {"nearest": -1}, "nearest must be at least 0, got -1"),
    ("a wolf", [], {"nearest": "3"}, "nearest must be a whole number, got '3'")])
def test_what_cannot_be_explained_is_named(retriever, text, labels, more, said):
    with pytest.raises(ValueError, match=said):
        retriever.explain(text, labels, **more)


@pytest.mark.parametrize("of", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_retriever_is_not_pickled(retriever, of):
    with pytest.raises(TypeError, match="a Retriever is not pickled or copied; load it in each process"):
        of(retriever)


def test_numbers_of_numpy_are_numbers(retriever):
    assert retriever.predict(TEXTS, np.int64(2), threshold=np.float32(0)) == retriever.predict(TEXTS, 2)
