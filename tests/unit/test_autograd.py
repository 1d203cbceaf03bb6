"""Scores of which few are trained and vectors at unit length, against what torch makes of the plain formulas."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from xcmodels.nn.autograd import SparseGradScores, dropout, normalise, weighted_sums


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_scores_and_gradients_are_those_of_a_dense_product(seed, rows, columns, chosen, fixed):
    torch.manual_seed(seed)
    one, other = torch.randn(rows, 4, dtype=torch.float64), torch.randn(columns, 4, dtype=torch.float64)
    one.requires_grad_(not fixed)
    other.requires_grad_()
    places = torch.randint(columns, (rows, chosen))    # a column more than once among them
    worth = torch.randn(rows, chosen, dtype=torch.float64)
    given = [each for each in (one, other) if each.requires_grad]
    products, dense = SparseGradScores(one, other), one @ other.T
    torch.testing.assert_close(products.values, dense.detach())
    torch.testing.assert_close(products.pick(places), dense.gather(1, places))
    mine = torch.autograd.grad((products.pick(places) * worth).sum(), given)
    wanted = torch.autograd.grad((dense.gather(1, places) * worth).sum(), given)
    for found, true in zip(mine, wanted, strict=True):
        torch.testing.assert_close(found, true)


def test_every_run_sums_in_the_same_order():
    torch.manual_seed(0)
    one, other = torch.randn(300, 16), torch.randn(200, 16, requires_grad=True)
    places = torch.randint(200, (300, 30))
    first, *others = (torch.autograd.grad(SparseGradScores(one, other).pick(places).square().sum(), other)[0]
                      for _ in range(5))
    assert all(torch.equal(first, each) for each in others)


def test_a_column_beyond_those_that_there_are_is_refused():
    with pytest.raises(RuntimeError, match="out of bounds"):
        SparseGradScores(torch.randn(2, 3), torch.randn(4, 3)).pick(torch.tensor([[4], [0]]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 9),
       st.sampled_from([1e-5, 1.0, 1e6]))
def test_unit_vectors_and_their_gradients_are_those_of_normalize(seed, rows, parts, dim, scale):
    torch.manual_seed(seed)
    vectors = (scale * torch.randn(rows, parts, dim, dtype=torch.float64)).requires_grad_()
    worth = torch.randn(rows, parts, dim, dtype=torch.float64)
    torch.testing.assert_close(normalise(vectors), F.normalize(vectors, dim=-1))
    (mine,) = torch.autograd.grad((normalise(vectors) * worth).sum(), vectors)
    (wanted,) = torch.autograd.grad((F.normalize(vectors, dim=-1) * worth).sum(), vectors)
    torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-9 / scale)


def test_a_text_without_tokens_stays_at_the_origin_and_moves_nothing():
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    normalise(vectors).sum().backward()
    assert normalise(vectors).tolist()[0] == [0.0, 0.0] and vectors.grad[0].tolist() == [0.0, 0.0]
    assert torch.isnan(normalise(torch.tensor([[torch.nan, 1.0]]))).any()    # what is not a number is not hidden


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 3), st.booleans())
def test_weighted_sums_and_their_gradients_are_those_of_a_loop(seed, lengths, sums, fixed):
    torch.manual_seed(seed)
    rows, ids = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randint(4, (sum(lengths),))
    weights = torch.randn(sums, len(ids), dtype=torch.float64, requires_grad=not fixed)
    offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
    wanted = torch.stack([torch.cat([sum((weight[at] * rows[ids[at]] for at in range(start, stop)), 0 * rows[0])
                                     for weight in weights]) for start, stop in pairwise(offsets.tolist())])
    found = weighted_sums(rows, weights, ids, offsets)
    torch.testing.assert_close(found, wanted)
    worth, given = torch.randn_like(wanted), [each for each in (rows, weights) if each.requires_grad]
    for mine, true in zip(torch.autograd.grad((found * worth).sum(), given, allow_unused=True),
                          torch.autograd.grad((wanted * worth).sum(), given, allow_unused=True), strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if true is None else true)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    vectors = torch.ones(400, 500, requires_grad=True)
    out = dropout(vectors, 0.3, training=True)
    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / 0.7))
    assert torch.equal(torch.autograd.grad(out.sum(), vectors)[0], out.detach())
    assert dropout(vectors, 0.3, training=False) is vectors and dropout(vectors, 0.0, training=True) is vectors
