"""The page for a person, in headless Chromium: by keyboard alone, at 360 px, in every state, with hostile texts."""

import json
import re
import shlex
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from serving.app import policy
from tests.conftest import ROOT
from tests.support.browser import CHROMIUM, browser
from tests.support.running_server import TEXTS, ServedModels, running
from tests.support.tiny import LABELS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
HOSTILE = ["<script>document.title = 'owned'</script>", "<img src=x onerror=\"document.title='owned'\">",
           "\x1b[31m=cmd|' /C calc'!A0\r\nSet-Cookie: a=b", "ذئب الجبل {{7*7}} ${7*7}", "' onfocus=alert(1) x='"]
COUNT = "document.querySelectorAll('#labels > li').length"
SAID = "document.getElementById('said').textContent"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    models = ServedModels(tmp_path_factory.mktemp("page") / "home")
    models.add()
    models.add(p1=70.0, titles=[f"{row} {' '.join(HOSTILE)}" for row in range(len(LABELS))])
    models.promote("1")
    return models


@pytest.fixture
def page():
    with browser() as page:
        page.resize(360)
        yield page


def at(server, query=""):
    return f"http://127.0.0.1:{server.port}/{query}"


def test_by_keyboard_alone(server, page):
    page.open(at(server))
    page.until("document.activeElement.id === 'text'")
    page.type("a wolf of the sea")
    page.key("Enter")
    assert page.until(COUNT) == 10
    assert "10 labels from xc version 1 in " in page.value(SAID)
    assert page.value("new URLSearchParams(location.search).get('q')") == "a wolf of the sea"
    for _ in range(20):    # as far as the first "Why?"
        page.key("Tab")
        if page.value("document.activeElement.tagName") == "SUMMARY":
            break
    page.key("Enter")
    why = page.until("document.querySelector('details[open]')?.innerText")
    assert re.search(r"Why\? (\d+|no) training texts? ha(s|ve) it", why)
    parts = {name: float(value) for name, value in re.findall(r"^(encoder|classifier|trees)\n(-?[\d.]+)$", why, re.M)}
    score = float(re.search(r"What its score, (-?[\d.]+), is the sum of", why)[1])
    assert re.fullmatch(r"(< 1|\d+)%", page.value("document.querySelector('#labels b').textContent"))
    assert sum(parts.values()) == pytest.approx(score, abs=0.003)
    assert page.value("document.querySelectorAll('#labels > li > .line .track i').length") == 10    # and a bar each


def test_the_announced_regions_and_names(server, page):
    page.open(at(server, "?q=an%20oak"))
    page.until(COUNT)
    assert page.value("document.documentElement.lang") == "en"
    assert page.value("document.querySelector('#said').getAttribute('aria-live')") == "polite"
    nodes = page.do("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if not node["ignored"]]
    assert {("textbox", "Text"), ("button", "Show labels"), ("list", "Labels, best first")} <= set(named)
    assert not [each for each in named if each[0] in ("button", "textbox", "link") and not each[1]]


def test_a_threshold_leaves_likely_labels_and_maybe_none(server, page):
    page.open(at(server))
    page.until("document.activeElement.id === 'text'")
    nodes = page.do("Accessibility.getFullAXTree")["nodes"]
    assert "Only labels at least this likely, %" in [
        node["name"]["value"] for node in nodes if node["role"]["value"] == "spinbutton"]
    sure = [label["confidence"] for label in server.labels("a wolf", k=10)]
    least = int(100 * sure[4])    # a whole number, at which one more may be left
    for percent, count in ((least, sum(chance >= least / 100 for chance in sure)), (100, 0)):
        page.value(f"document.getElementById('least').value = {percent}; "
                   "document.getElementById('text').value = 'a wolf'; document.querySelector('button.main').click()")
        page.until(f"{SAID}.includes('likely')" if count == 0 else f"{COUNT} === {count} && {SAID}.includes('labels')")
    assert page.value(SAID) == "No label fits: none is at least 100% likely."
    page.value("document.getElementById('least').value = 101; document.querySelector('button.main').click()")
    page.until(f"{SAID} === 'A label can be 0 to 100% likely, in whole numbers.'")


def test_a_link_holds_the_question_and_examples_ask(server, page):
    page.open(at(server, "?q=an%20oak"))
    page.until(COUNT)
    assert page.value("document.getElementById('text').value") == "an oak"
    assert page.value("[...document.querySelectorAll('#examples button')].map(each => each.textContent)") == TEXTS
    told = "document.getElementById('model').textContent"
    assert page.value(told) == "xc version 1, 50 labels."
    page.value("document.querySelectorAll('#examples button')[1].click()")
    page.until(f"{COUNT} && document.getElementById('text').value === {TEXTS[1]!r}")
    assert page.value("getComputedStyle(document.getElementById('text')).direction") == "rtl"
    assert page.value("getComputedStyle(document.querySelectorAll('#examples button')[0]).direction") == "ltr"
    page.value("request = async () => ({ok: true, json: async () => ({name: 'xc', version: '2', labels: 9, "
               "examples: [], calibrated: false})}); introduce()")
    assert page.until(f"{told}.includes('version 2') && {told}") == (
        "xc version 2, 9 labels. Its chances were fitted on no text: they order labels, and tell no more.")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(server, page, width):
    for dark in (False, True):
        page.resize(width, dark)
        page.open(at(server, "?q=" + "wolf" * 100))
        page.until(COUNT)
        page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value("getComputedStyle(document.body).backgroundColor") == (
            "rgb(25, 25, 23)" if dark else "rgb(252, 252, 250)")
        small = page.value("[...document.querySelectorAll('button, summary')].filter(each => each.offsetHeight > 0 && "
                           "each.getBoundingClientRect().height < 24).length")
        assert small == 0    # big enough to touch


def test_colours_have_contrast(server, page):
    """Text has a contrast of 4.5 with what is behind it, in both schemes (WCAG 2.2, 1.4.3)."""
    for dark in (False, True):
        page.resize(360, dark)
        page.open(at(server))
        names = ("ink", "soft", "paper", "fill", "bad")
        style = "getComputedStyle(document.documentElement)"
        colours = {name: page.value(f"{style}.getPropertyValue('--{name}').trim()") for name in names}
        for front in ("ink", "soft", "fill", "bad"):
            assert contrast(colours[front], colours["paper"]) >= 4.5, (dark, front)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_any_state(server, page, width, dark):
    axe = (Path(find_spec("axe_core_python").origin).parent / "axe.min.js").read_text()
    page.resize(width, dark)
    page.open(at(server))
    page.until("document.activeElement.id === 'text'")
    page.value(axe)
    states = {"empty": "1", "asked": "document.getElementById('text').value = 'a wolf'",
              "too long": "document.getElementById('text').value = 'é'.repeat(40000)",
              "busy": "(document.getElementById('text').value = 'a wolf', "
                      "window.fetch = async () => new Response('{}', {status: 503}))"}
    for state, doing in states.items():
        page.value(f"void ({doing})")
        if state != "empty":
            page.key("Enter")
        page.until({"empty": "1", "asked": COUNT}.get(state, f"{SAID}.includes({state!r})"))
        page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
        found = json.loads(page.value("axe.run().then(found => JSON.stringify(found.violations.map("
                                      "each => [each.id, each.nodes.map(node => node.html)])))"))
        assert found == [], state


def contrast(one, other):
    def light(colour):
        parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= .04045 else ((part + .055) / 1.055) ** 2.4 for part in parts)
        return .2126 * red + .7152 * green + .0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + .05) / (low + .05)


def test_it_asks_nobody_else_and_runs_its_own_script_alone(server, page):
    page.open(at(server, "?q=<script>document.title='owned'</script>"))
    page.until(COUNT)
    assert {re.match(r"\w+:(//[^/]*)?", url)[0] for url in page.requests} <= {at(server)[:-1], "data:"}
    assert not page.errors
    assert page.value("(() => { const s = document.createElement('script'); s.textContent = 'document.title = 1'; "
                      "document.body.append(s); return document.title })()") == "xcflow: tag a text"
    html = (ROOT / "serving" / "page.html").read_text()
    assert len(html.encode()) < 60_000
    assert "unsafe" not in policy(html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval", html)


def serve(models, page, version):
    """Have the server that the page is of answer with another version."""
    models.promote(version)
    page.until(f"fetch('model').then(r => r.json()).then(m => m.version === '{version}')")


def test_hostile_labels_stay_text(models, server, page):
    page.open(at(server))
    try:
        serve(models, page, "2")
        page.type("<b>wolf</b>")
        page.key("Enter")
        page.until(COUNT)
        page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
        shown = page.value("document.getElementById('labels').innerText")
        assert "<script>document.title" in shown and "<img src=x" in shown
        assert page.value("document.getElementById('model').textContent").startswith("xc version 2, ")
        assert page.value("document.title") == "xcflow: tag a text"
        assert page.value("document.querySelectorAll('#labels script, #labels img, #labels b b').length") == 0
        assert not page.errors
    finally:
        serve(models, page, "1")


def test_it_copies_what_repeats_the_question(server, page):
    page.open(at(server, "?q=it%27s%20a%20wolf"))
    page.until(COUNT)
    page.value("document.getElementById('curl').focus()")
    page.key("Enter")
    page.until(f"{SAID}.includes('copied')")
    command = page.pasted()
    assert command.startswith(f"curl -s {at(server)}predict ")
    asked = shlex.split(command)[-1]    # as a shell reads it
    assert json.loads(asked)["texts"] == ["it's a wolf"]
    answer = server.ask("/predict", asked.encode()).json()
    page.value("document.getElementById('json').focus()")
    page.key("Enter")
    page.until(f"{SAID}.includes('The answer is copied')")
    assert json.loads(page.pasted()) == answer


def test_the_states_of_a_question(server, page):
    page.open(at(server))
    page.until("document.activeElement.id === 'text'")
    page.key("Enter")
    assert page.value(SAID) == "Type a text first."
    page.value("document.getElementById('text').value = 'é'.repeat(40000)")
    page.key("Enter")
    assert "too long" in page.value(SAID)
    assert page.value("location.search") == ""
    page.value("document.getElementById('text').value = 'a\\ud800b'")    # half a character, which JSON cannot say
    page.key("Enter")
    assert page.until(COUNT) == 10
    none = '{"model": {"name": "xc", "version": "1"}, "results": [{"labels": []}]}'
    for status, body, said in ((503, "{}", "busy"), (200, none, "No label"),
                               (500, '{"detail": "the server failed"}', "the server failed")):
        page.value(f"window.fetch = async () => new Response({body!r}, {{status: {status}}})")
        page.value("document.getElementById('text').value = 'a wolf'")
        page.key("Enter")
        page.until(f"{SAID}.includes({said!r})")
        assert page.value("document.getElementById('text').value") == "a wolf"
        assert page.value(COUNT) == 0


def test_a_server_that_has_gone_leaves_the_text(models, page):
    with running(models.home) as server:
        page.open(at(server))
        page.until("document.activeElement.id === 'text'")
        page.type("a text that took long to write")
        assert server.stop(signal.SIGTERM) == 0
        page.key("Enter")
        page.until(f"{SAID}.includes('does not answer')")
        assert page.value("document.getElementById('text').value") == "a text that took long to write"


def test_a_token_is_asked_for_and_kept_for_the_tab(models, page, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    with running(models.home, "--token-file", str(token)) as server:
        page.open(at(server, "?q=an%20oak"))
        page.until("document.activeElement.id === 'token'")
        page.value("void Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('off'); }})")
        page.type("0123456789abcdef0123456789abcdef")
        page.key("Enter")
        assert page.until(COUNT) == 10    # where the browser stores nothing
        page.open(at(server, "?q=an%20oak"))
        page.until("document.activeElement.id === 'token'")
        page.type("wrong\u2013")    # no header can hold this dash
        page.key("Enter")
        page.until("document.activeElement.id === 'token'")
        page.value("document.getElementById('token').value = ''")
        page.type("\u200b0123456789abcdef0123456789abcdef\u200b ")    # as it is pasted from a chat
        page.key("Enter")
        assert page.until(COUNT) == 10
        page.open(at(server, "?q=an%20elm"))
        assert page.until(COUNT) == 10
        assert page.value("localStorage.length + document.cookie.length") == 0
        assert "0123456789abcdef" not in page.value("document.body.innerHTML")
        assert "0123456789abcdef" not in server.log.read_text()
