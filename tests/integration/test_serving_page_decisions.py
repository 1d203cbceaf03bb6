"""The page for a person, in headless Chromium: what is judged, sent and said of it, whatever comes in between."""

import json
import re

import pytest

from tasks.data.feedback.journal import FeedbackJournal
from tests.support.browser import CHROMIUM, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
COUNT = "document.querySelectorAll('#labels > li').length"
BUTTONS = "document.querySelectorAll('#labels .judge button')"
SEND, SENT = "document.getElementById('send')", "document.getElementById('sent').textContent"
# Holds what the page asks back until window.answer is called.
HELD = "window.real = window.fetch; window.fetch = () => new Promise(answer => window.answer = answer)"


@pytest.fixture
def page(server):
    with browser() as page:
        page.open(f"http://127.0.0.1:{server.port}/?q=a%20wolf%20judged")
        page.until(COUNT)
        yield page


def test_a_reviewer_judges_labels_and_sends_that(models, server, page):
    state = f"JSON.stringify([...{BUTTONS}].slice(0, 4).map(each => each.getAttribute('aria-pressed')))"
    assert page.value(f"{SEND}.disabled")
    for pressed in (0, 1, 2, 2, 2):    # right, wrong after all; right, neither, right
        page.value(f"{BUTTONS}[{pressed}].click()")
    assert json.loads(page.value(state)) == ["false", "true", "true", "false"]
    page.value(f"{SEND}.click()")
    page.until(f"{SEND}.disabled && {SENT} === 'Kept: the next training learns from it.'")
    labels = server.labels("a wolf judged", k=2)
    kept = FeedbackJournal(models.home, "xc").read()[-1]
    assert (kept.text, kept.rejected, kept.accepted) == ("a wolf judged", [labels[0]["uid"]], [labels[1]["uid"]])
    assert re.fullmatch("[0-9a-f]{32}", kept.request)
    page.value("window.fetch = async () => new Response('{}', {status: 429})")
    page.value(f"{BUTTONS}[4].click(); {SEND}.click()")
    page.until(f"{SENT} === 'Too many requests; ask again in a moment.'")
    assert not page.value(f"{SEND}.disabled")
    page.value("window.fetch = async () => new Response('{\"detail\": \"the journal is full\"}', {status: 503})")
    page.value(f"{SEND}.click()")
    page.until(f"{SENT} === 'the journal is full'")


def test_what_is_judged_while_a_decision_is_sent_can_be_sent_too(page):
    page.value(HELD)
    page.value(f"{BUTTONS}[0].click(); {SEND}.click(); {BUTTONS}[2].click(); window.answer(new Response('{{}}'))")
    page.until(f"{SENT}.startsWith('Kept')")
    assert not page.value(f"{SEND}.disabled")
    page.value(f"{SEND}.click(); {BUTTONS}[0].click(); {BUTTONS}[2].click(); window.answer(new Response('{{}}'))")
    page.until(f"{SENT}.startsWith('Kept')")
    assert page.value(f"{SEND}.disabled")    # nothing is judged any more


def test_what_comes_of_a_decision_is_not_said_under_another_answer(page):
    page.value(HELD)
    page.value(f"document.querySelector('#labels .judge button').click(); {SEND}.click(); window.fetch = window.real")
    page.value("document.getElementById('text').value = 'an oak'; document.querySelector('button.main').click()")
    page.until(f"{COUNT} && new URLSearchParams(location.search).get('q') === 'an oak'")
    page.value("window.answer(new Response('{}', {status: 500}))")
    page.value("new Promise(done => setTimeout(done))")
    assert (page.value(SENT), page.value(f"{SEND}.disabled")) == ("", True)


def test_a_page_from_before_the_first_model_has_all_with_the_first_answer(server, page):
    none = "window.fetch = async () => new Response('{\"detail\": \"no model is loaded\"}', {status: 503})"
    page.do("Page.addScriptToEvaluateOnNewDocument", source=f"window.real = window.fetch; {none}")
    page.open(f"http://127.0.0.1:{server.port}/")
    model, examples = "document.getElementById('model').textContent", "document.querySelectorAll('#examples button')"
    page.until("document.getElementById('said').textContent === 'no model is loaded'")
    assert page.value(model) == "" and page.value(f"{examples}.length") == 0
    page.value("window.fetch = window.real; document.getElementById('text').value = 'a wolf'; "
               "document.querySelector('button.main').click()")
    assert page.until(COUNT) == 10 and page.value(f"{BUTTONS}.length") == 20
    assert page.value(model) == "xc version 1, 50 labels." and page.value(f"{examples}.length") == 3
    page.value(f"described = 'another version'; {examples}[0].focus(); {examples}[0].click()")    # it is replaced
    assert page.until(f"{COUNT} && described") == "xc version 1"
    assert page.value("document.activeElement.id") == "text"
