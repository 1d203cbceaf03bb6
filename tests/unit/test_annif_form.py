"""The body of Annif's requests: a form read as urllib reads it, and which of a document's fields is the title."""

from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.annif import _cut, fields_of, parsed_form
from serving.answers import Question, answer
from serving.http.guard import MAX_CONTAINERS, Problem
from serving.model_watcher import Served
from serving.schemas import MAX_TEXT
from tests.support import tiny
from xcmodels.retrieval.retriever import Retriever

PARTS = [b"a", b"=", b"&", b"+", b"%41", b"%3d", b"%0A", b"%C3%A4", b"\n", b"\r\n", b"=\n", b" ", b"_", b"==", b"=41",
         b".", b"\xc3\xa4"]


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_a_form_is_read_as_it_was_written(fields):
    assert parsed_form(urlencode(fields).encode()) == fields


@given(st.lists(st.sampled_from(PARTS)).map(b"".join))
def test_a_form_is_read_as_urllib_reads_it(body):
    wanted = parse_qsl(body.decode(), keep_blank_values=True)
    if len(dict(wanted)) == len(wanted):
        assert parsed_form(body) == dict(wanted)
    else:
        with pytest.raises(Problem, match="twice"):
            parsed_form(body)


@pytest.mark.parametrize(("body", "code"), [
    (b"text=%", "form"), (b"text=%4", "form"), (b"text=%zz", "form"), (b"text=%\n", "form"), (b"text=%E4", "form"),
    (b"text=\xff", "form"), (b"text=%ED%A0%80", "form"), (b"text=a&text=b", "form"), (b"&" * MAX_CONTAINERS, "values")])
def test_what_is_no_form_is_refused(body, code):
    with pytest.raises(Problem) as caught:
        parsed_form(body)
    assert caught.value.code == code


def test_a_text_is_cut_at_a_whole_character():
    assert _cut("ä" * MAX_TEXT) == "ä" * (MAX_TEXT // 2)
    assert _cut("a" + "日" * MAX_TEXT) == "a" + "日" * ((MAX_TEXT - 1) // 3)
    assert _cut("日" * (MAX_TEXT // 3)) == "日" * (MAX_TEXT // 3)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    retriever = Retriever.load(tiny.tiny_retriever(tmp_path_factory.mktemp("annif")))
    return Served("xc", "1", "", "", retriever, SimpleNamespace(written=lambda recent=0.0: ""))


def test_a_document_is_laid_out_as_the_training_texts_are(served):
    assert not served.trained_on_contents
    assert fields_of(served, "a text", "a title") == ("a text", "")
    assert fields_of(served, " ", "a title") == fields_of(served, "\x00\x07", "a title") == ("a title", "")
    examples = served.retriever.examples
    side = replace(examples.side, titles=np.zeros_like(examples.side.titles))    # their tokens are contents, then
    full = replace(served, retriever=SimpleNamespace(examples=replace(examples, side=side)))
    assert full.trained_on_contents
    assert fields_of(full, "a text", "") == ("", "a text")
    assert fields_of(full, "a text", "a title") == ("a title", "a text")


@pytest.mark.parametrize("explain", [False, True])
def test_a_content_is_read_as_a_content(served, explain):
    for title, content in (("", "a wolf of the sea"), ("an oak", "a wolf of the sea"), ("a wolf of the sea", "")):
        [found] = answer([Question(served, title, 4, 0.0, explain, content=content)])
        [wanted] = served.retriever.predict([title], 4, [content])
        assert [each["id"] for each in found] == [each.id for each in wanted] and len(found) == 4
        assert [each["score"] for each in found] == [each.score for each in wanted]
