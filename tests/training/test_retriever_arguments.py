"""What a retriever takes as texts, contents, k and threshold, and how it names what is none of these."""

import copy
import pickle

import numpy as np
import pytest

from tests.support.tiny import tiny_retriever
from xcmodels.retrieval.retriever import Retriever

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


@pytest.mark.parametrize(("texts", "contents", "said"), [
    ("l1w0", None, r"texts must be a list of texts, got one text; write \[text\]"),
    (["a", "b"], "xy", "contents must be a list of texts, got one text"),
    (["a", "b"], ["x"], "contents must be as many as the texts, 2, got 1"),
    (["a", float("nan")], None, r"texts\[1\] must be a text, got nan"),
    ([b"a"], None, r"texts\[0\] must be a text, got b'a'"), (["a"], [None], r"contents\[0\] must be a text, got None")])
def test_what_is_no_text_is_named(retriever, texts, contents, said):
    with pytest.raises(ValueError, match=said):
        retriever.predict(texts, contents=contents)


@pytest.mark.parametrize(("arguments", "said"), [
    ({"k": 2.5}, "k must be a whole number, got 2.5"), ({"k": "3"}, "k must be a whole number, got '3'"),
    ({"k": True}, "k must be a whole number, got True"), ({"threshold": "1"}, "threshold must be a number, got '1'"),
    ({"threshold": None}, "threshold must be a number, got None")])
def test_what_is_no_number_is_named(retriever, arguments, said):
    with pytest.raises(ValueError, match=said):
        retriever.predict(TEXTS, **arguments)


@pytest.mark.parametrize("of", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_retriever_is_not_pickled(retriever, of):
    with pytest.raises(TypeError, match="a Retriever is not pickled or copied; load it in each process"):
        of(retriever)


def test_numbers_of_numpy_are_numbers(retriever):
    assert retriever.predict(TEXTS, np.int64(2), threshold=np.float32(0)) == retriever.predict(TEXTS, 2)
