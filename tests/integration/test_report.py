"""The report: what its sentences say, how big it gets, and that texts from anybody do nothing in it."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from tasks.core.wording import one_line
from tasks.evaluation.gates import Score, evaluate_gates
from tasks.evaluation.report import ReportFacts, ReportPage, verdict
from xcmodels import metrics
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.propensity import propensity
from xcmodels.predictions import match

HOSTILE = '<script>alert("x")</script><img src=http://evil.test/x onerror=alert(1)>\x1b[31m\u202eabc\x00'
VOID = {"meta", "img", "br", "link"}


def write_corpus(folder, truth, texts, labels, *, train=None, contents=None):
    """Write a corpus of test queries with the given positives (lists of label ids) and texts."""
    folder.mkdir(parents=True)
    rows = {"test": truth, "train": train or truth}
    for split, lists in rows.items():
        values = np.array([label for row in lists for label in sorted(row)], np.int64)
        Ragged(np.cumsum([0, *map(len, lists)]), values).save(folder, f"positives.{split}")
        Ragged(np.zeros(len(lists) + 1, np.int64), np.zeros(0, np.int64)).save(folder, f"filters.{split}")
    for side, n in (("train", len(rows["train"])), ("test", len(truth)), ("label", len(labels))):
        Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.int32)).save(folder, f"{side}.tokens")
        np.save(folder / f"{side}.titles.npy", np.zeros(n, np.int32))
    for name, values in (("label.uid", [f"uid-{i}" for i in range(len(labels))]), ("label.title", labels),
                         ("test.title", texts), ("test.content", contents or [""] * len(texts))):
        Texts.save(folder, name, values)
    np.save(folder / "idf.npy", np.zeros(4, np.float32))
    np.save(folder / "validation.npy", np.zeros(0, np.int64))
    told = {"name": "toy", "propensity": [0.55, 1.5], "train": len(rows["train"])}
    (folder / "corpus.json").write_text(json.dumps(told | {"test": len(truth), "label": len(labels), "anchors": []}))
    return Corpus(folder)


def write_evaluation(folder, corpus, ids, scores):
    """Write what `tasks.evaluation.evaluate` writes."""
    folder.mkdir(exist_ok=True)
    truth, filters = ((of["test"].offsets, of["test"].values) for of in (corpus.positives, corpus.filters))
    frequencies = corpus.frequencies()
    inverse = 1 / propensity(frequencies, corpus.n_queries, *corpus.facts["propensity"])
    measured = metrics.evaluate(ids, truth, filters, inverse, recall_ks=(1, 3, 5, 10)) | {"recall/100": 91.5}
    low, high = metrics.mean_interval(match(ids, truth, filters, corpus.n_labels).hits[:, 0])
    measured |= {"P/1/low": low, "P/1/high": high}
    (folder / "metrics.json").write_text(json.dumps(measured))
    deciles = metrics.by_decile(ids, truth, filters, frequencies, inverse, k=5)
    (folder / "deciles.json").write_text(json.dumps(deciles))
    np.save(folder / "predictions.npy", ids)
    np.save(folder / "scores.npy", scores)
    np.save(folder / "confidences.npy", np.clip(scores, 0, 1))
    return folder


def make(root, n=300, L=60, seed=0):
    """Write a toy corpus and a noisy evaluation of it, whose scores are higher where it is right."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, L + 1)
    truth = [sorted({int(i) for i in rng.choice(L, rng.integers(1, 4), p=weights / weights.sum())}) for _ in range(n)]
    texts = [f"query {i} about topic {i % 7}" for i in range(n)]
    corpus = write_corpus(root / "corpus", truth, texts, [f"label {i}" for i in range(L)])
    scores = rng.random((n, L), np.float32) * 0.6
    rows = np.repeat(np.arange(n), [len(row) for row in truth])
    scores[rows, np.concatenate(truth)] += rng.random(len(rows), np.float32) * 0.8
    scores /= 1.4
    ids = np.argsort(-scores, axis=1)[:, :10]
    return corpus, write_evaluation(root / "evaluation", corpus, ids, np.take_along_axis(scores, ids, 1))


def facts(**changes):
    told = ReportFacts(
        title="ngame · toy", run_id="r1", version="4", command="xc run --data toy \\\n  --seed 7",
        data={"name": "toy", "train": 300, "test": 300, "labels": 60, "digest": "sha256:12ab"},
        settings={"encoder.epochs": 8, "seed": 7}, changed={"seed": 7},
        curves={"encoder": [{"epoch": float(i), "loss": 2 * 0.5**i, "rate": 0.1} for i in range(8)]},
        champion=None, promoted=True, reason="", seconds={"read": 2.0, "train": 198.0}, date="2026-11-21",
        memory={"train": 1_500_000_000})
    return replace(told, **changes)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def page(toy):
    return ReportPage(*toy, facts()).page()


class Reader(HTMLParser):
    """Collects tags and texts, and that every tag is closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(page)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize(("changes", "sentence"), [
    ({}, "first model: now champion"), ({"reigns": True}, "it is the champion already"),
    ({"promoted": False, "reason": "P@1 below 50"}, "first model; not promoted: P@1 below 50"),
    ({"champion": {"version": "3", "gains": {"P/1": 1.16}}}, "+1.2 P@1 over champion v3; promoted"),
    ({"champion": {"version": 3, "gains": {"P/1": -2.3}}, "promoted": False, "reason": "it is worse"},
     "−2.3 P@1 over champion v3; not promoted: it is worse"),
    ({"champion": {"version": "3", "gains": {"P/1": -3.9}}},
     "−3.9 P@1 over champion v3, within the 0.5 points or 2 standard errors that the gates allow; promoted"),
    ({"champion": {"version": "v3", "gains": {"P/1": -0.02}}}, "±0.0 P@1 over champion v3; promoted"),
    ({"champion": {"version": "3", "gains": {"P/1": 1.0}}, "note": "9 of 99 test queries are left out"},
     "+1.0 P@1 over champion v3; promoted; 9 of 99 test queries are left out"),
    ({"champion": {"version": "3", "gains": {}}}, "champion v3 has no P@1 to compare with; promoted"),
    ({"champion": {"version": "3", "gains": {}}, "promoted": False, "reason": "it cannot be compared with champion v3"},
     "not promoted: it cannot be compared with champion v3"),
    ({"promoted": False}, "first model; not promoted: no reason given"),
    ({"became": "4"}, "first model: now champion"),
    ({"became": "5"}, "first model: now champion as v5, with the labels that were added and removed"),
    ({"champion": {"version": "3", "gains": {"P/1": 1.0}}, "became": "5", "note": "2 are left out"},
     "+1.0 P@1 over champion v3; promoted as v5, with the labels that were added and removed; 2 are left out"),
])
def test_verdict(changes, sentence):
    assert verdict(facts(**changes)) == sentence


def test_the_first_screen_says_the_verdict_six_numbers_data_and_date(toy, page):
    text = Reader(page).text
    measured = json.loads((toy[1] / "metrics.json").read_text())
    start = text[:text.index("Where it is right")]
    assert "first model: now champion" in start
    for name in metrics.SHOWN:
        assert f"{name.replace('/', '@')} {measured[name]:.1f}" in start
    assert f"{measured['P/1/low']:.1f} to {measured['P/1/high']:.1f}" in start
    assert "toy : 300 training and 300 test queries, 60 labels" in start
    assert "sha256:12ab" in start and "2026-11-21" in start


def test_what_scores_reach_alone_is_shown_where_it_was_measured(toy, page, tmp_path):
    assert "reach alone" not in page
    corpus, evaluation = toy
    shutil.copytree(evaluation, tmp_path / "e")
    measured = json.loads((evaluation / "metrics.json").read_text()) | {
        "P/1/by classifier": 41.26, "PSP/5/by classifier": 30.0, "P/1/by sum": 37.31, "PSP/5/by sum": 33.0,
        "points/alone": 5000.0}
    (tmp_path / "e" / "metrics.json").write_text(json.dumps(measured))
    text = Reader(ReportPage(corpus, tmp_path / "e", facts()).page()).text
    assert "on 5,000 test queries" in text
    assert "Ranked by P@1 PSP@5 classifier 41.3 30.0 sum 37.3 33.0" in text


def test_the_champion_within_the_interval_is_said_to_be(toy):
    near = {"version": "3", "gains": {"P/1": 0.1, "P/5": 30.0}}
    text = Reader(ReportPage(*toy, facts(champion=near)).page()).text
    assert "+0.1 over the champion, within the interval" in text
    assert "+30.0 over the champion PSP@1" in text, "no other note on P@5, none on PSP@1"


def test_charts_carry_a_finding_an_alternative_text_and_their_numbers(toy, page):
    drawn = ReportPage(*toy, facts()).plots()
    assert list(drawn) == ["deciles", "calibration", "thresholds", "learning-1-encoder", "frequencies", "lengths"]
    images = [attributes for tag, attributes in Reader(page).tags if tag == "img"]
    captions = re.findall(r"<figcaption><bdi>(.*?)</bdi></figcaption>", page)
    sources = [image["src"].removeprefix("data:image/svg+xml;base64,") for image in images]
    assert [b64decode(source) for source in sources] == list(drawn.values())
    assert all(caption in image["alt"] for caption, image in zip(captions, images, strict=True))
    assert page.count("<details") >= 3
    assert all(1_000 < len(svg) < 30_000 for svg in drawn.values())
    assert all(b"prefers-color-scheme:dark" in svg and b"<script" not in svg for svg in drawn.values())


def test_the_gates_the_contract_and_the_champions_deciles_are_shown(toy):
    table = json.loads((toy[1] / "deciles.json").read_text())
    champion = {"version": "3", "gains": {"P/1": -1.0}, "deciles": [{**row, "recall/5": 12.34} for row in table]}
    gates = evaluate_gates(Score({"P/1": 9.0, "PSP/5": 9.0}), Score({"P/1": 10.0, "PSP/5": 9.0}))
    contract = {"rules": 184, "tables": {"labels": 60, "queries.train": 1000}}
    page = ReportPage(*toy, facts(champion=champion, gates=gates, contract=contract)).page()
    text = Reader(page).text
    assert "P@1 9.00 10.00 9.50 ✕ fails" in text and "PSP@5 9.00 9.00 8.50 ✓ holds" in text
    assert "Its contract holds: 184 rules on 2 tables, 1,060 rows." in text
    assert page.count(">12.3</td>") == sum(row["positives"] > 0 for row in table)
    assert "The gates" not in Reader(ReportPage(*toy, facts()).page()).text


def test_no_script_and_no_request(page):
    reader = Reader(page)
    assert "script" not in {tag for tag, _ in reader.tags} and "http:" not in page and "https:" not in page
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on") or name == "href"]
    assert all(attributes.get("src", "data:").startswith("data:") for _, attributes in reader.tags)
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page


def test_hostile_texts_stay_texts(tmp_path):
    n, L = 20, 12
    truth = [[i % L] for i in range(n)]
    corpus = write_corpus(tmp_path / "corpus", truth, [HOSTILE] * n, [HOSTILE] * L, contents=[HOSTILE] * n)
    ids = np.tile(np.arange(10), (n, 1))
    evaluation = write_evaluation(tmp_path / "e", corpus, ids, np.ones((n, 10), np.float32))
    told = facts(title=HOSTILE, run_id=HOSTILE, version=HOSTILE, command=HOSTILE, promoted=False, reason=HOSTILE,
                 data=dict.fromkeys(("name", "train", "test", "labels", "digest"), HOSTILE),
                 settings={HOSTILE: HOSTILE}, changed={HOSTILE: HOSTILE}, seconds={HOSTILE: 1.0}, date=HOSTILE,
                 note=HOSTILE, champion={"version": HOSTILE, "gains": {"P/1": 1.0}},
                 curves={HOSTILE: [{"epoch": 0.0, "loss": 1.0, HOSTILE: 2.0}, {"epoch": 1.0, "loss": 0.5}]})
    page = ReportPage(corpus, evaluation, told).page()
    tags = Reader(page).tags
    assert {tag for tag, _ in tags} & {"script", "iframe", "object"} == set()
    assert all("onerror" not in attributes for _, attributes in tags)
    assert all(attributes["src"].startswith("data:") for tag, attributes in tags if tag == "img")
    assert not [char for char in page if not char.isprintable() and char != "\n"]
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page and "\\u202e" in page
    for svg in ReportPage(corpus, evaluation, told).plots().values():
        assert b"<script" not in svg and b"<img" not in svg


def test_one_line_keeps_scripts_that_need_joiners_and_drops_what_steers():
    assert one_line("می\u200cخواهم 👩\u200d💻") == "می\u200cخواهم 👩\u200d💻"
    assert one_line("a\r\n b\t\x1b[0m\u2066c\ud800") == "a b \\x1b[0m\\u2066c\\ud800"
    assert len(one_line("x" * 10_000)) == 240


def test_same_inputs_same_bytes(toy, page, tmp_path):
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert ReportPage(*toy, facts()).page() == page, "the user's own matplotlib settings do not show"
    (tmp_path / "facts").write_bytes(pickle.dumps((toy[0].folder, toy[1], facts())))
    code = ("import pickle, sys; from tasks.evaluation import report; from xcmodels.data.corpus import Corpus;"
            "folder, evaluation, facts = pickle.load(open(sys.argv[1], 'rb'));"
            "sys.stdout.buffer.write(report.ReportPage(Corpus(folder), evaluation, facts).page().encode())")
    elsewhere = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo"}
    again = subprocess.run([sys.executable, "-c", code, str(tmp_path / "facts")], stdout=subprocess.PIPE, check=True,
                           cwd=Path(__file__).parents[2], env=elsewhere)
    assert again.stdout.decode() == page


def test_the_page_stays_small_whatever_the_size(tmp_path):
    n, L, rng = 50_000, 5_000, np.random.default_rng(0)
    long = "a very long text that never ends " * 40
    corpus = write_corpus(tmp_path / "corpus", rng.integers(L, size=(n, 1)).tolist(), [long] * n, [long] * L)
    ids = (rng.integers(L, size=(n, 1)) + np.arange(10)) % L
    scores = -np.sort(-rng.random((n, 10), np.float32), axis=1)
    evaluation = write_evaluation(tmp_path / "e", corpus, ids, scores)
    many = {f"setting.{i}": long for i in range(3000)}
    curve = [{"epoch": float(i), **{name: 1 / (i + 1) for name in ("loss", *"abcdefgh")}} for i in range(2000)]
    page = ReportPage(corpus, evaluation, facts(
        settings=many, changed=many, seconds=dict.fromkeys(many, 1.0), command=long * 50, reason=long, promoted=False,
        curves={f"stage {i}": curve for i in range(40)})).page()
    assert len(page.encode()) < 1_000_000
    assert "50,000 of 50,000 test texts (100.0%) are repeated: 1 text occurs" in Reader(page).text
    assert "8 of 40 stages are drawn." in page


def test_settings_time_and_command(page):
    text = Reader(page).text
    for told in ("1 setting differs from the preset.", "seed 7 ≠ changed", "1 setting of the preset", "read 2.0 s 1%",
                 "train 3 min 18 s 99% 1.50 GB", "All steps 3 min 20 s 100% 1.50 GB"):
        assert told in text
    assert "xc run --data toy \\\n  --seed 7</code>" in page, "as it is to be pasted"
