"""The rule that every text is cleaned by."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xcmodels.data.text import SHOWN, clean, shown


@given(st.text(st.characters(), max_size=40) | st.text("a \t\n\x85\u00a0e\u0301\u0338\ud800\udc00\u2126\uac00\u11a8"))
def test_clean_can_be_repeated_and_leaves_no_bad_character(text: str):
    once = clean(text)
    assert clean(once) == once
    once.encode()  # no surrogate is left
    assert not any(unicodedata.category(letter) == "Cc" for letter in once)
    assert unicodedata.is_normalized("NFC", once) and once == once.strip()


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_clean_changes_nothing_but_the_form_and_the_ends(text: str):
    assert clean(text) == unicodedata.normalize("NFC", text).strip()


@pytest.mark.parametrize(("text", "expected"), [
    ("a  b", "a  b"), ("\ta\r\nb\x00", "a  b"), ("a\x7fb\x9fc", "a b c"), ("cafe\u0301", "café"),
    ("\ud83d!", "\ufffd!"), ("\u00a0x\u2003", "x"), ("", ""), ("\n", "")])
def test_clean(text: str, expected: str):
    assert clean(text) == expected


@pytest.mark.parametrize(("title", "content", "expected"), [
    ("a", "b", "a"), ("", "b", "b"), ("", "", ""), ("é" * 999, "", "é" * SHOWN), ("", "x" * 999, "x" * SHOWN)])
def test_what_is_shown_of_a_text_is_short(title: str, content: str, expected: str):
    assert shown(title, content) == expected
