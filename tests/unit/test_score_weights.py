"""Fitted weights of scores: the loss against loops over queries, its gradient, and what the fit does."""

import math

import numpy as np
import pytest
import torch

from xcmodels.nn.losses import decoupled_softmax
from xcmodels.retrieval import score_weights
from xcmodels.retrieval.score_weights import DecoupledSoftmax, fit_weights

RNG = np.random.default_rng(0)
QUERIES, SHORTLIST, SCORES = 40, 12, 3
ROWS = np.repeat(np.arange(QUERIES), SHORTLIST)
X = RNG.normal(size=(len(ROWS), SCORES))
TRUE = np.array([2.0, 1.0, 0.0])
RELEVANT = X @ TRUE + RNG.gumbel(size=len(ROWS)) > 3.0
GAINS = RNG.uniform(0.5, 3, len(ROWS))
BEFORE = np.ones(SCORES)


def loss(weights: np.ndarray) -> float:
    """The mean over queries with a positive of its positives' -log(e^s+ / (e^s+ + sum over others of e^s-))."""
    total, judged = 0.0, 0
    for query in range(QUERIES):
        own = np.flatnonzero(query == ROWS)
        odds = {i: math.exp(sum(weights * X[i])) for i in own}
        positives = [i for i in own if RELEVANT[i]]
        others = sum(odds[i] for i in own if not RELEVANT[i])
        judged += bool(positives)
        for i in positives:
            share = GAINS[i] / sum(GAINS[j] for j in positives)
            total -= share * math.log(odds[i] / (odds[i] + others))
    return total / judged


def test_the_loss_is_that_of_loops_over_queries_and_their_positives():
    positives = np.bincount(ROWS, RELEVANT)
    assert positives.min() == 0 and positives.max() > 1
    made = DecoupledSoftmax(X, ROWS, RELEVANT, GAINS)
    for weights in (BEFORE, TRUE, -3 * TRUE, 40 * BEFORE):
        assert made(weights)[0] == pytest.approx(loss(weights), rel=1e-9)


def test_the_loss_is_that_by_which_encoders_are_trained_but_that_a_query_s_weights_have_a_mean_of_one():
    positives, gains = (torch.from_numpy(each.reshape(QUERIES, SHORTLIST)) for each in (RELEVANT, GAINS))
    known = (gains * positives).sum(1, keepdim=True)
    gains = gains * positives.sum(1, keepdim=True) / torch.where(known > 0, known, 1)
    gains = torch.where(positives, gains, 1.0)
    made = DecoupledSoftmax(X, ROWS, RELEVANT, GAINS)
    for weights in (BEFORE, TRUE):
        scores = torch.from_numpy((X @ weights).reshape(QUERIES, SHORTLIST))
        assert made(weights)[0] == pytest.approx(float(decoupled_softmax(scores, positives, gains)), rel=1e-9)


def test_the_gradient_is_the_slope_of_the_loss():
    made, step = DecoupledSoftmax(X, ROWS, RELEVANT, GAINS), 1e-6
    for weights in (BEFORE, TRUE):
        slopes = [(made(weights + step * unit)[0] - made(weights - step * unit)[0]) / (2 * step)
                  for unit in np.eye(SCORES)]
        assert made(weights)[1] == pytest.approx(slopes, abs=1e-6)


def test_weights_move_to_what_scores_are_worth():
    fitted = fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE)
    assert fitted[0] > fitted[1] > fitted[2] and fitted[0] > 1 > fitted[2]


def test_a_larger_penalty_keeps_weights_nearer(monkeypatch):
    free = fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE)
    monkeypatch.setattr(score_weights, "PENALTY", 10 * score_weights.PENALTY)
    near = fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE)
    assert 0 < np.linalg.norm(near - BEFORE) < np.linalg.norm(free - BEFORE) / 3


def test_of_many_positives_the_penalty_is_smaller(monkeypatch):
    positives = int(RELEVANT.sum())
    held = fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE)
    monkeypatch.setattr(score_weights, "FULL_UP_TO", positives)
    assert np.array_equal(fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE), held), "so few are held by PENALTY itself"
    monkeypatch.setattr(score_weights, "FULL_UP_TO", positives // 4)
    freer = fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE)
    monkeypatch.setattr(score_weights, "PENALTY", score_weights.PENALTY * (positives // 4) / positives)
    monkeypatch.setattr(score_weights, "FULL_UP_TO", positives)
    assert np.array_equal(fit_weights(X, ROWS, RELEVANT, GAINS, BEFORE), freer)
    assert np.linalg.norm(freer - BEFORE) > 1.5 * np.linalg.norm(held - BEFORE)


def test_without_a_positive_they_stay():
    assert np.array_equal(fit_weights(X, ROWS, np.zeros_like(RELEVANT), GAINS, BEFORE), BEFORE)
