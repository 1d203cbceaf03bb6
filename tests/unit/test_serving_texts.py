"""What a request's texts are cut to, so that no one text keeps a server from all others."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.annif import _cut
from serving.schemas import MAX_TEXT, checked, checked_feedback
from serving.texts import MARKS, readable
from xcmodels.data.text import clean

ACUTE, GRAVE_BELOW, TIBETAN = "\u0301", "\u0316", "\u0f73"    # the last has class 0, and is two marks once decomposed


@given(st.text(st.characters(codec="utf-8") | st.sampled_from([ACUTE, GRAVE_BELOW, "\u0344", TIBETAN]), max_size=MARKS))
def test_a_text_without_long_runs_of_marks_stays_as_it_is(text):
    assert readable(text) == text


@given(st.lists(st.sampled_from(["a", "é", "日", ACUTE * 5, GRAVE_BELOW * 50, TIBETAN * 40])).map("".join))
def test_of_a_run_of_marks_the_first_stay_and_of_the_rest_all(text):
    kept, run = "", 0
    for letter in text:
        run = run + 1 if unicodedata.combining(letter) or letter == TIBETAN else 0
        kept += letter if run <= MARKS else ""
    assert readable(text) == kept


@pytest.mark.parametrize("marks", [ACUTE * 16383 + GRAVE_BELOW * 16383, TIBETAN * 21844], ids=["latin", "tibetan"])
@pytest.mark.parametrize("read", [
    lambda text: checked({"texts": [text]}).texts[0], lambda text: _cut(text),
    lambda text: checked_feedback({"text": text, "accepted": ["x"]}).text], ids=["predict", "annif", "feedback"])
def test_a_text_of_marks_alone_takes_no_time_to_read(read, marks):
    text = "a" + marks
    assert MAX_TEXT - 4 < len(text.encode()) <= MAX_TEXT
    began = time.process_time()
    assert clean(read(text)) == clean(text[:MARKS + 1])
    assert time.process_time() < began + 0.3, "the square of its length"
