"""What the charts of a report find: deciles, calibration, learning, what was mined."""

import json
import re

import numpy as np
import pytest

from tasks.evaluation import report, report_charts, report_confidence
from tasks.evaluation.report import ReportPage
from tasks.evaluation.thresholds import Answers, recommended
from tests.integration.test_report import facts, make, write_corpus, write_evaluation


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def page(toy):
    return ReportPage(*toy, facts()).page()


def test_the_decile_finding_is_computed(toy, page):
    table = json.loads((toy[1] / "deciles.json").read_text())
    shown = [row for row in table if row["positives"]]
    share = 100 * sum(row["labels"] for row in table[:3]) / 60
    rarest, total = (sum(row["P/5"] for row in rows) for rows in (table[:3], table))
    assert f"The three rarest deciles, {share:.0f}% of the labels, give {rarest:.1f} of the {total:.1f} points" in page
    assert f"recall@5 is {shown[0]['recall/5']:.0f}% in decile {shown[0]['decile']}" in page
    assert f"and {shown[-1]['recall/5']:.0f}% in decile {shown[-1]['decile']}, the most frequent" in page


def of_one_label(sure, right):
    """Answers to queries of one label each, and one true one."""
    return Answers(sure[:, None], right[:, None], np.ones(len(sure), int))


@pytest.mark.parametrize(("right", "finding"), [
    (lambda sure: 0.618034 * np.arange(1001) % 1 < sure, "Confidences hold: of the 5 best labels of each query 50.0% "
     "are said to be right, and 49.6% are; they are off by 1.1 points on average, now too high, now too low."),
    (lambda sure: sure > 0.5, "Confidences do not hold: of the 5 best labels of each query 50.0% are said to be right"),
    (lambda sure: sure > 0.5, " points on average, now too high, now too low."),
    (lambda sure: sure > 0.8, "and 20.0% are; they are off by 33.8 points on average, too high."),
    (lambda sure: sure > 0.2, "and 79.9% are; they are off by 33.9 points on average, too low."),
    (lambda sure: sure > 2, "Only 0 of 1,001 labels are right, too few to say whether confidences hold."),
    (lambda sure: sure == 1, "Only 1 of 1,001 labels is right, too few"),
    (lambda sure: sure > 0.0035, "Only 4 of 1,001 labels are wrong, too few")])
def test_the_calibration_finding_is_computed(right, finding):
    sure = np.linspace(0, 1, 1001)
    chart = report_confidence.draw_calibration(of_one_label(sure, right(sure)))
    assert finding in chart.finding and len(chart.rows) == report_confidence.BINS


def test_equal_confidences_share_a_bin_and_only_the_five_best_count():
    chart = report_confidence.draw_calibration(of_one_label(np.full(50, 0.4), np.arange(50) < 20))
    assert len(chart.rows) == 1 and chart.rows[0] == ("40.0 to 40.0", "50", "40.0", "40.0", "27.6 to 53.8")
    assert "off by 0.0 points" in chart.finding
    many = Answers(np.tile(np.linspace(0.9, 0.1, 9), (40, 1)), np.ones((40, 9), bool), np.full(40, 9))
    assert sum(int(row[1]) for row in report_confidence.draw_calibration(many).rows) == 200
    none = Answers(np.full((3, 2), -1.0), np.zeros((3, 2), bool), np.ones(3, int))
    assert report_confidence.draw_calibration(none) is None and report_confidence.draw_thresholds(none, 0.8) is None


def test_the_thresholds_are_listed_and_one_is_recommended(toy):
    found = report.EvaluationFiles.load(*toy).answers
    chart = report_confidence.draw_thresholds(found, 0.9)
    assert [row[0] for row in chart.rows] == [f"{place / 20:.2f}" for place in range(20)]
    assert chart.rows[0][1:] == (f"{100 * found.right.mean():.1f}", chart.rows[0][2], "10.00", "0.0")
    best = recommended(found, 0.9)
    assert f"For 90% right, the threshold is {best.threshold:.2f}" in chart.finding
    assert chart.finding in ReportPage(*toy, facts(wanted_precision=0.9)).page()
    assert chart.finding not in ReportPage(*toy, facts(wanted_precision=0.5)).page()


@pytest.mark.parametrize(("loss", "finding"), [
    ([4, 3, 2, 1], "The loss fell 75%, from 4 to 1 over 4 epochs; it was still falling: 33% of the fall"),
    ([4, 1, 1, 1], "The loss fell 75%, from 4 to 1 over 4 epochs; it had levelled off: 0% of the fall"),
    ([4, 1, 2, 3], "it was lowest, 1, at epoch 1 and rose after."),
    ([4, 2], "The loss fell 50%, from 4 to 2 over 2 epochs; 100% of the fall came in the last epoch."),
    ([4, float("nan"), 5], "The loss did not fall: from 4 to 5 over 2 epochs; lowest, 4, at epoch 0."),
])
def test_the_learning_finding_is_computed(loss, finding):
    chart = report_charts.draw_learning(1, "encoder", [{"epoch": float(i), "loss": of} for i, of in enumerate(loss)])
    assert finding in chart.finding


def test_a_stage_without_a_loss_has_no_chart_and_a_long_one_is_thinned():
    assert report_charts.draw_learning(1, "x", [{"epoch": 0.0, "loss": float("nan")}]) is None
    chart = report_charts.draw_learning(2, "a/b $x^2", [{"epoch": float(i), "loss": 1 / (i + 1)} for i in range(5000)])
    assert chart.name == "learning-2-a-b-x-2" and len(chart.rows) == report_charts.POINTS
    assert [chart.rows[0][0], chart.rows[-1][0]] == ["0", "4999"] and "over 5000 epochs" in chart.finding


def test_the_data_are_profiled():
    chart = report_charts.draw_frequencies(np.array([0, 1, 1, 2, 3, 4, 5, 8, 9, 1200]))
    assert [row[:2] for row in chart.rows] == [
        ("0", "1"), ("1", "2"), ("2", "1"), ("3–4", "2"), ("5–8", "2"), ("9–16", "1"), ("17–32", "0"), ("33–64", "0"),
        ("65–128", "0"), ("129–256", "0"), ("257–512", "0"), ("513–1,024", "0"), ("1,025–2,048", "1")]
    assert chart.finding == ("70% of the labels have five training queries or fewer, 10% none; half have at most 4, "
                             "the most frequent has 1,200.")
    chart = report_charts.draw_lengths(np.array([0, 3, 3, 3, 12, 12]))
    assert "at most 3 tokens, one in ten 12 or more; 33.3% have 12" in chart.finding
    assert report_charts.draw_lengths(np.array([0])).rows == [("0", "1", "100.0")]


def test_what_was_mined_is_drawn_by_epoch():
    points = [{"epoch": 3.0, "positives": 0.7, "negatives": 0.5, "random": 0.1, "harder": 20.0, "same_cluster": 0.6,
               "any_query": 0.2},
              {"epoch": 6.0, "positives": 0.8, "negatives": 0.4, "random": 0.05, "harder": 5.0, "same_cluster": 0.5,
               "any_query": 0.1}]
    chart = report_charts.draw_hardness(1, "joint", points)
    assert (chart.name, [row[0] for row in chart.rows]) == ("mined-1-joint", ["3", "6"])
    assert chart.finding == (
        "At epoch 6 mined negatives score 0.40 against 0.05 of any label and 0.80 of its own labels; queries of its "
        "cluster score 0.50 against 0.10 of any query; for 5% of the queries one of them scores above one of their own"
        ", 20% at first.")
    clusters = report_charts.draw_hardness(1, "encoder", [{"epoch": 5.0, "same_cluster": 0.6, "any_query": 0.2}])
    assert chart.head == ["Epoch", "Own labels", "Queries of its cluster", "Mined negatives", "Any label", "Any query",
                          "Mined scores above own, %"]
    assert clusters.head == ["Epoch", "Queries of its cluster", "Any query"] and "negatives" not in clusters.finding
    assert clusters.rows == [["5", "0.6", "0.2"]]
    assert report_charts.draw_hardness(1, "x", [{"epoch": 5.0}]) is None
    assert report_charts.draw_hardness(1, "x", []) is None


@pytest.mark.parametrize("epochs", [[6.0], [3.0, 4.0], [0.0, 3.0, 6.0]])
def test_epochs_are_ticked_at_whole_numbers(epochs):
    mined = [{"epoch": epoch, "same_cluster": 0.6, "any_query": 0.2} for epoch in epochs]
    learned = [{"epoch": epoch, "loss": 1.0} for epoch in epochs]
    for chart in (report_charts.draw_hardness(1, "x", mined), report_charts.draw_learning(1, "x", learned)):
        ticks = re.findall(r'id="xtick_\d+">.*?>([^<]+)</text>', chart.svg.decode(), re.DOTALL)
        assert ticks and all(tick.isdigit() for tick in ticks) and str(int(epochs[-1])) in ticks


def test_labels_predicted_too_often_and_too_seldom(tmp_path):
    truth = [[0], [1], [1], [2]]
    corpus = write_corpus(tmp_path / "corpus", truth, list("abcd"), ["zero", "one", "", *map(str, range(3, 20))])
    ids = np.array([[0, 3, 4, 5, 6, 7, 8, 9, 10, 11]] * 4)
    evaluation = write_evaluation(tmp_path / "e", corpus, ids, np.ones((4, 10), np.float32))
    found = report.EvaluationFiles.load(corpus, evaluation)
    labels = report._labels(corpus, found)
    assert [(row["text"], row["predicted"], row["true"], row["right"]) for row in labels["under"]] == [
        ("one", 0, 2, 0), ("uid-2", 0, 1, 0)]
    assert [(row["text"], row["predicted"], row["true"]) for row in labels["over"]] == [
        ("3", 4, 0), ("4", 4, 0), ("5", 4, 0), ("6", 4, 0), ("zero", 4, 1)]
    sample = report._extremes(corpus, found)
    assert [row["right"] for row in sample] == [True, False, False, False]
    assert [row["hit"] for row in sample[0]["predicted"]] == [True, False, False, False, False]
    assert sample[0]["true"] == ["zero"]


def test_repeated_and_conflicting_texts_are_counted(tmp_path):
    texts, contents = ["a", "a", "b", "b", "b", "c", "", "", "a"], ["", "", "", "", "", "", "", "", "more"]
    truth = [[0], [0], [0], [1], [0, 1], [2], [0], [0], [1]]
    corpus = write_corpus(tmp_path / "corpus", truth, texts, list("xyz"), contents=contents)
    copies = report._copies(corpus)
    worst = copies.pop("worst")
    assert copies == {"texts": 9, "empty": 2, "repeated": 5, "groups": 2, "conflicting": 1, "conflicting_texts": 3}
    assert worst == [{"text": "b", "times": 3, "lines": [3, 4, 5], "sets": 3}]
