"""The intervals of the report's numbers, against the bootstrap and at their ends."""

import numpy as np
import pytest

from tasks.evaluation import report
from tasks.evaluation.report import ReportPage
from tests.integration.test_report import Reader, facts, make, write_corpus, write_evaluation
from xcmodels import metrics


def shown_intervals(found):
    bounds = metrics.intervals(found.judged, found.inverse, (1, 5))
    return {name: bounds[name] for name in metrics.SHOWN if name in bounds}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make(tmp_path_factory.mktemp("toy"))


def test_intervals_hold_the_estimate_and_agree_with_the_bootstrap(toy):
    corpus, evaluation = toy
    found = report.EvaluationFiles.load(corpus, evaluation)
    bounds, ids = shown_intervals(found), np.load(evaluation / "predictions.npy")
    assert set(bounds) == set(metrics.SHOWN) - {"recall/100"}
    truth, rng = corpus.positives["test"], np.random.default_rng(0)
    drawn = []
    for _ in range(300):
        rows = rng.integers(len(ids), size=len(ids))
        part = truth.subset(rows)
        pairs = part.offsets, part.values
        drawn.append(metrics.evaluate(ids[rows], pairs, None, found.inverse, ks=(1, 5), recall_ks=()))
    for name, (low, high) in bounds.items():
        assert low < found.measured[name] < high
        expected = 1.96 * np.std([sample[name] for sample in drawn])
        assert (high - low) / 2 == pytest.approx(expected, rel=0.2), name


def test_one_query_gives_the_widest_interval(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", [[0]], ["a"], [str(i) for i in range(12)], train=[[0], [1], [2]])
    evaluation = write_evaluation(tmp_path / "e", corpus, np.arange(10)[None], np.ones((1, 10), np.float32))
    assert set(shown_intervals(report.EvaluationFiles.load(corpus, evaluation)).values()) == {(0.0, 100.0)}
    told = facts(curves={"encoder": [{"epoch": 0.0, "loss": 1.0}]})
    assert "One epoch, loss 1." in ReportPage(corpus, evaluation, told).page()


def test_a_model_that_is_always_right_has_intervals_and_a_champion_as_good_lies_within(tmp_path):
    truth = [[i % 5] for i in range(100)]
    corpus = write_corpus(tmp_path / "corpus", truth, [f"text {i}" for i in range(100)], [str(i) for i in range(20)])
    ids = np.array([[row[0], *range(5, 14)] for row in truth])
    evaluation = write_evaluation(tmp_path / "e", corpus, ids, np.ones((100, 10), np.float32))
    bounds = shown_intervals(report.EvaluationFiles.load(corpus, evaluation))
    for name in ("P/1", "PSP/1", "PSP/5", "nDCG/5"):
        assert bounds[name] == pytest.approx((96.38, 100), abs=0.01), name
    told = facts(champion={"version": "3", "gains": {"P/1": 0.0, "recall/100": 0.0}})
    text = Reader(ReportPage(corpus, evaluation, told).page()).text
    assert "P@1 100.0 96.4 to 100.0 ±0.0 over the champion, within the interval" in text
    assert text.count("within the interval") == 1, "recall@100 has no interval"
