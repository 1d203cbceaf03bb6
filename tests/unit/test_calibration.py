"""Confidence: it rises with the score and is as often right as it says, and what a threshold leaves is counted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from tasks.evaluation.thresholds import TRIED, Answers, advice, at_threshold, recommended
from tests.support import oracles
from xcmodels.checks import Unusable
from xcmodels.retrieval import calibration
from xcmodels.retrieval.calibration import (
    FILE,
    FLATTEST,
    STIFFNESS,
    UNKNOWN,
    Calibration,
    ScoredPairs,
    calibrate,
    calibration_error,
    fit,
)

CHANCES = {"a line": lambda s: expit(2 * s - 1), "bent": lambda s: expit(np.where(s > 0.5, 6 * s - 3, 0.2 * s - 0.1)),
           "steps": lambda s: np.where(s < -0.3, 0.02, np.where(s < 0.8, 0.4, 0.97)),
           "rare": lambda s: expit(3 * s - 7)}


def drawn(chance, n, seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1, n)
    return scores.astype(np.float32), rng.random(n) < chance(scores)


@pytest.mark.parametrize(("chance", "most"), zip(CHANCES.values(), (1.5, 2.5, 6.5, 0.5), strict=True), ids=CHANCES)
def test_it_is_as_often_right_as_it_says(chance, most):
    """A jump is followed as far as bends allow."""
    made = fit(*drawn(chance, 4000, 0), 800)
    scores, right = drawn(chance, 40_000, 1)
    assert calibration_error(made(scores), right) < most and made.queries == 800


@pytest.mark.parametrize("chance", CHANCES.values(), ids=CHANCES)
def test_a_hundred_answers_are_not_taken_for_more_than_they_are(chance):
    made, (scores, right) = fit(*drawn(chance, 100, 2), 20), drawn(chance, 40_000, 3)
    assert calibration_error(made(scores), right) < 10.0


@pytest.mark.parametrize("chance", CHANCES.values(), ids=CHANCES)
def test_a_higher_score_is_a_higher_confidence(chance):
    scores, right = drawn(chance, 500, 4)
    made = fit(scores, right, 100)
    at = np.linspace(-3, 3, 2001)
    assert (np.diff(made(at)) > 0).all()
    extreme = made(np.array([-1e9, -50, 50, 1e9, -np.inf, np.inf]))
    assert ((extreme >= 0) & (extreme <= 1)).all() and extreme[4] == 0 and extreme[5] == 1
    naive = [oracles.confidence(made.scores.tolist(), made.log_odds.tolist(), score) for score in at]
    np.testing.assert_allclose(made(at), naive, atol=1e-12)


@pytest.mark.parametrize("chance", CHANCES.values(), ids=CHANCES)
def test_no_other_line_fits_better(chance):
    scores, right = drawn(chance, 300, 5)
    made, rng = fit(scores, right, 60), np.random.default_rng(0)

    def misfit(log_odds):
        return oracles.misfit(made.scores.tolist(), log_odds.tolist(), scores.tolist(), right.tolist(), STIFFNESS)

    least, flattest = misfit(made.log_odds), FLATTEST / scores.std() * np.diff(made.scores)
    for _ in range(30):
        steps = np.maximum(np.diff(made.log_odds) + rng.normal(0, 0.05, len(made.scores) - 1), flattest)
        other = made.log_odds[0] + rng.normal(0, 0.05) + np.append(0, np.cumsum(steps))
        assert misfit(other) > least - 1e-4


def test_few_answers_make_no_certainty():
    scores = np.array([0.1, 0.5, 0.9], np.float32)
    for right, low, high in ((np.zeros(3, bool), 0.0, 0.3), (np.ones(3, bool), 0.7, 1.0)):
        sure = fit(scores, right, 1)(scores)
        assert ((sure > low) & (sure < high)).all()
    assert fit(scores[:1], np.ones(1, bool), 1)(scores).shape == (3,)
    assert fit(np.full(40, 2.0), np.arange(40) < 10, 8)(np.array([2.0])) == pytest.approx(11 / 42, abs=0.03)
    assert fit(scores[:0], np.zeros(0, bool), 0) is UNKNOWN


def test_versions_whose_scores_differ_say_the_same():
    """One scores as another does, times seven less three: their confidences are those of the same queries."""
    scores, right = drawn(CHANCES["bent"], 2000, 6)
    one, other = fit(scores, right, 400), fit(7 * scores - 3, right, 400)
    np.testing.assert_allclose(one(scores), other(7 * scores - 3), atol=5e-3)


def test_what_is_fitted_is_what_later_queries_could_be_asked(corpus, monkeypatch):
    rng, n, width = np.random.default_rng(0), len(corpus.validation), corpus.n_labels
    keys = np.sort(rng.permutation(n * width)[:n * 20])
    pairs = ScoredPairs(keys // width, keys % width, rng.integers(0, 9, len(keys)).astype(np.float32))
    monkeypatch.setattr(calibration, "fit", lambda scores, right, queries: (scores.tolist(), right.tolist(), queries))
    for held in (corpus.validation, np.flatnonzero([7 in corpus.positives["train"][row] for row in range(600)])[:n]):
        part = vars(corpus).copy()
        asked = object.__new__(type(corpus))
        vars(asked).update(part | {"validation": held})
        kept = pairs.rows < len(held)
        mine = ScoredPairs(*(each[kept] for each in pairs))
        scores, right, queries = calibrate(asked, mine)
        wanted = oracles.held_out_answers(asked, *mine, calibration.BEST)
        assert list(zip(scores, right, strict=True)) == wanted
        assert 0 < queries <= len(held) and len(wanted) < len(mine.rows)


def test_save_and_load(tmp_path):
    made = fit(*drawn(CHANCES["bent"], 300, 7), 60)
    made.save(tmp_path)
    again = Calibration.load(tmp_path)
    assert np.array_equal(made.scores, again.scores) and np.array_equal(made.log_odds, again.log_odds)
    assert again.queries == 60


@pytest.mark.parametrize("change", [
    {"scores": [0, 0, 1]}, {"log_odds": [1, 0, 2]}, {"scores": [0, 1]}, {"scores": [0, 1, math.nan]}, {"queries": None},
    {"scores": "0, 1, 2"}, {"log_odds": [[0, 1, 2]]}, {"scores": [0], "log_odds": [0]}, {"scores": [], "log_odds": []},
    None])
def test_a_damaged_file_is_an_error(tmp_path, change):
    (tmp_path / FILE).write_text("{" if change is None else json.dumps(
        {"scores": [0, 1, 2], "log_odds": [0, 1, 2], "queries": 3} | change))
    with pytest.raises(Unusable, match=r"calibration\.json, which turns scores into confidences, cannot be read"):
        Calibration.load(tmp_path)
    with pytest.raises(Unusable, match="train the retriever again"):
        Calibration.load(tmp_path / "nowhere")


@pytest.mark.parametrize(("n", "values"), [(1, 3), (7, 4), (15, 100), (100, 5), (1000, 10_000)])
def test_the_calibration_error_is_the_oracles(n, values):
    rng = np.random.default_rng(n)
    sure = rng.integers(0, values, n) / values
    right = rng.random(n) < sure**2
    assert calibration_error(sure, right) == pytest.approx(oracles.calibration_error(sure, right, 15))
    assert calibration_error(sure, right, 4) == pytest.approx(oracles.calibration_error(sure, right, 4))
    assert calibration_error(sure[:0], right[:0]) == 0


def some_answers(seed=0, n=400, k=6):
    rng = np.random.default_rng(seed)
    sure = -np.sort(-rng.random((n, k)).round(2), axis=1)
    sure[rng.random(n) < 0.1, 3:] = -1
    return Answers(sure, (rng.random((n, k)) < sure) & (sure >= 0), rng.integers(k, 9, n))


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_what_a_threshold_leaves_is_the_oracles(threshold):
    answers = some_answers()
    found = at_threshold(answers, threshold)
    sure = np.where(answers.confidences < 0, -np.inf, answers.confidences)
    wanted = oracles.at_threshold(sure, answers.right, answers.positives, threshold)
    assert (found.right, found.found, found.labels, found.silent) == pytest.approx(wanted)


def test_the_lowest_threshold_that_is_right_enough_is_recommended():
    answers = some_answers()
    found = recommended(answers, 0.8)
    assert found.right >= 0.8
    assert all(at_threshold(answers, threshold).right < 0.8 for threshold in TRIED if threshold < found.threshold)
    assert advice(answers, 0.8).startswith(f"For 80% right, the threshold is {found.threshold:.2f}: ")
    wrong = replace(answers, right=np.zeros_like(answers.right))
    assert recommended(wrong, 0.8) is None
    assert advice(wrong, 0.8) == "At no threshold are 80% of the labels given right."
