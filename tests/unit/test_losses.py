"""Losses against their equations written as loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import oracles
from xcmodels.nn import losses
from xcmodels.nn.autograd import SparseGradScores
from xcmodels.nn.losses import decoupled_softmax, supcon, weighted_bce


def triplet(scores, positives, weights, **how):
    """The triplet loss of scores that are given: they are their own products with the unit vectors."""
    counts = torch.ones_like(positives) if weights is None else weights > 0
    held = positives & counts
    active = torch.where(held, torch.arange(held.shape[1]), -1).sort(dim=1, descending=True).values
    products = SparseGradScores(scores, torch.eye(scores.shape[1], dtype=scores.dtype))
    products.values = scores.detach()    # a product would give the whole row what is not a number
    return losses.triplet(products, active, ~positives & counts, weights, **how)


def oracle(scores, positives, weights, *, margin, hard_positives, hard_negatives, temperature):
    """Mean over rows of sum_k p_k [s_k - s_l + margin]+, averaged over the hard positives l, each times its weight.

    Pairs of weight 0 are absent.
    """
    rows, plain = [], scores.detach().tolist()
    for r in range(scores.shape[0]):
        present = [c for c in range(scores.shape[1]) if weights is None or weights[r, c] > 0]
        pull = sorted((c for c in present if positives[r, c]), key=lambda c: plain[r][c])[:hard_positives]
        push = sorted((c for c in present if not positives[r, c]), key=lambda c: -plain[r][c])[:hard_negatives]
        if not pull or not push:
            continue
        top = max(plain[r][c] for c in push)
        raw = [math.exp((plain[r][c] - top) / temperature) if temperature > 0 else 1.0 for c in push]
        row = 0.0
        for positive in pull:
            for share, negative in zip(raw, push, strict=True):
                gap = scores[r, negative] - scores[r, positive] + margin
                if gap > 0:
                    worth = 1.0 if weights is None else float(weights[r, positive])
                    row = row + worth * share / sum(raw) * gap / len(pull)
        rows.append(row + 0 * scores.sum())
    return sum(rows) / len(rows) if rows else 0 * scores.sum()


def case(seed, rows=9, cols=11, absent=0.3, shift=0.0):
    torch.manual_seed(seed)
    scores = torch.randn(rows, cols, dtype=torch.float64) + shift
    positives = torch.rand(rows, cols) < 0.25
    positives[0], positives[1], positives[2] = False, True, False     # no positive; no negative; just one positive
    positives[2, 3] = True
    positives[3, :5] = True                                           # several
    weights = (torch.rand(rows, cols) >= absent).double()
    weights[4] = 0.0                                                  # nothing at all
    weights[5] = positives[5].double()                                # every negative is masked
    weights[2, 3] = 1.0
    weights[positives] *= torch.rand(int(positives.sum())) * 3 + 0.1    # of positives alone, as the data has it
    return scores.requires_grad_(), positives, weights


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 14), st.sampled_from([0.0, 0.05, 0.5, 2.0]),
       st.sampled_from([0.0, 0.3, 1.5]), st.booleans(), st.sampled_from([0.0, -9.0, 7.0]))
def test_equals_equation_1_and_its_gradient(  # noqa: PLR0917
        seed, pull, push, temperature, margin, masked, shift):
    scores, positives, weights = case(seed, shift=shift)
    kept = weights if masked else None
    how = {"margin": margin, "hard_positives": pull, "hard_negatives": push, "temperature": temperature}
    mine, wanted = triplet(scores, positives, kept, **how), oracle(scores, positives, kept, **how)
    torch.testing.assert_close(mine, wanted)
    torch.testing.assert_close(torch.autograd.grad(mine, scores)[0], torch.autograd.grad(wanted, scores)[0])


HARD = {"margin": 0.3, "hard_positives": 1, "hard_negatives": 3}


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_a_masked_violator_never_counts(temperature):
    """The published bug: a violator multiplied by 0 ranks above true negatives that score below zero."""
    scores = torch.tensor([[-0.2, -0.3, -0.9, 5.0, 0.4]])
    positives = torch.tensor([[True, False, False, False, True]])
    weights = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]])
    shares = torch.softmax(torch.tensor([-0.3, -0.9]) / temperature, 0) if temperature else torch.tensor([0.5, 0.5])
    loss = triplet(scores, positives, weights, temperature=temperature, **HARD)
    assert float(loss) == pytest.approx(float(shares[0]) * 0.2, rel=1e-5)
    for value in (-50.0, 50.0):
        moved = scores.clone()
        moved[0, 3], moved[0, 4] = value, -value
        assert torch.equal(triplet(moved, positives, weights, temperature=temperature, **HARD), loss)


def test_masked_entries_get_no_gradient():
    scores, positives, weights = case(3)
    triplet(scores, positives, weights, margin=0.3, hard_positives=2, hard_negatives=20, temperature=0.1).backward()
    assert (scores.grad[weights == 0] == 0).all()
    assert (scores.grad != 0).any()


@pytest.mark.parametrize("level", [-6.0, -40.0])
def test_shares_do_not_vanish_where_negatives_are_few_and_score_far_below_zero(level):
    scores = torch.tensor([[level, level + 0.1, 0.0]])
    positives = torch.tensor([[True, False, False]])
    weights = torch.tensor([[1.0, 1.0, 0.0]])
    assert float(triplet(scores, positives, weights, temperature=0.1, **HARD)) == pytest.approx(0.4, rel=1e-4)


def test_a_score_that_is_not_a_number_is_not_hidden():
    scores = torch.randn(4, 5)
    scores[2, 1] = torch.nan
    assert torch.isnan(triplet(scores, torch.eye(4, 5) > 0, None, temperature=0.1, **HARD))
    assert torch.isnan(triplet(torch.full((4, 5), torch.nan), torch.eye(4, 5) > 0, None, temperature=0.0, **HARD))
    masked = torch.ones(4, 5)
    masked[2, 1] = 0.0
    assert torch.isfinite(triplet(scores, torch.eye(4, 5) > 0, masked, temperature=0.1, **HARD))


def test_symmetric_use_is_the_transpose():
    scores, positives, weights = case(5)
    how = {"margin": 0.3, "hard_positives": 2, "hard_negatives": 4, "temperature": 0.1}
    one = triplet(scores.T, positives.T, weights.T, **how)
    torch.testing.assert_close(one, oracle(scores.T, positives.T, weights.T, **how))
    square = torch.randn(6, 6, dtype=torch.float64)
    alike, pairs = square + square.T, torch.eye(6) > 0
    torch.testing.assert_close(triplet(alike, pairs, None, **how), triplet(alike.T, pairs.T, None, **how))


def test_worked_by_hand():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.0, 0.8]])
    positives = torch.tensor([[True, False, False], [False, False, True]])
    loss = triplet(scores, positives, None, margin=0.3, hard_positives=1, hard_negatives=2, temperature=0.0)
    assert float(loss) == pytest.approx(((0.2 + 0.0) / 2 + (0.4 + 0.0) / 2) / 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([0.0, -9.0, 7.0]))
def test_softmax_losses_equal_their_equations(seed, decoupled, masked, shift):
    scores, positives, weights = case(seed, shift=shift)
    kept = weights if masked else None
    mine = (decoupled_softmax if decoupled else supcon)(scores, positives, kept)
    wanted = oracles.softmax(scores, positives, kept, decoupled)
    torch.testing.assert_close(mine, wanted)
    torch.testing.assert_close(torch.autograd.grad(mine, scores)[0], torch.autograd.grad(wanted, scores)[0])


@pytest.mark.parametrize("loss", [decoupled_softmax, supcon])
def test_softmax_losses_in_half_a_batch_without_a_pair(loss):
    """No positive in any row, no negative in any row, far scores: a number, and a gradient that is one."""
    for positives in (torch.zeros(3, 4, dtype=torch.bool), torch.ones(3, 4, dtype=torch.bool)):
        scores = (torch.randn(3, 4) * 1e4).requires_grad_()
        value = loss(scores, positives, None)
        assert torch.isfinite(value)
        assert torch.isfinite(torch.autograd.grad(value, scores)[0]).all()
    assert torch.isnan(loss(torch.full((2, 3), torch.nan), torch.eye(2, 3) > 0, None))


def test_positives_do_not_compete_in_the_decoupled_softmax():
    scores = torch.tensor([[2.0, 5.0, -1.0]], requires_grad=True)
    positives = torch.tensor([[True, True, False]])
    apart = torch.autograd.grad(decoupled_softmax(scores, positives, None), scores)[0][0]
    shared = torch.autograd.grad(supcon(scores, positives, None), scores)[0][0]
    assert (apart[:2] < 0).all() and apart[2] > 0
    assert shared[1] > 0, "supcon pushes the stronger positive down"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_bce_equals_equation_1(seed, masked):
    scores, positives, weights = case(seed)
    if masked:
        weights = weights * torch.rand_like(weights) * 30
    kept = weights if masked else None
    wanted = torch.zeros((), dtype=torch.float64)
    for r in range(scores.shape[0]):
        for c in range(scores.shape[1]):
            chance = torch.sigmoid(scores[r, c])
            term = -torch.log(chance if positives[r, c] else 1 - chance)
            wanted = wanted + term * (1.0 if kept is None else kept[r, c]) / scores.shape[0]
    mine = weighted_bce(scores, positives, kept)
    torch.testing.assert_close(mine, wanted)
    torch.testing.assert_close(torch.autograd.grad(mine, scores)[0], torch.autograd.grad(wanted, scores)[0])
