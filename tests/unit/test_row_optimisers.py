"""Optimisers with moments of rows, against a loop over rows."""

from functools import partial

import pytest
import torch

from tests.unit.test_row_table import D, N, draws, loss_of, rate, slow
from xcmodels.nn import row_optimisers
from xcmodels.nn.row_optimisers import RowAdam, RowSGD, RowwiseAdam, RowwiseSGD
from xcmodels.nn.row_table import RowTable

SGD = {"momentum": 0.9, "weight_decay": 20.0}
RATES = {"adam": rate, "sgd": slow}
MAKERS = {"adam": RowwiseAdam, "sgd": partial(RowwiseSGD, **SGD)}
FULL = {"full adam": RowAdam, "full sgd": partial(RowSGD, **SGD)}


def trained(kind, start, restart_at=None, parts=1):
    """The table and its optimiser after the steps of `draws`; parts: updates that a step is cut into."""
    table = RowTable(start.clone()).train()
    optimiser = MAKERS[kind](table)
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        if step == restart_at:
            state = {name: value.clone() for name, value in optimiser.state().items()}
            table = RowTable(table.weight.clone()).train()
            optimiser = MAKERS[kind](table)
            optimiser.restore(state)
        rows_a, at_a = table.gather(a)
        rows_b, at_b = table.gather(b)
        loss_of(rows_a[at_a], rows_b[at_b], ta.to(rows_a.dtype), tb.to(rows_a.dtype)).backward()
        ids, gradients = table.take_gradients()
        optimiser.begin(RATES[kind](step), step)
        for some, theirs in zip(ids.chunk(parts), gradients.chunk(parts), strict=True):
            optimiser.update(some, theirs)
    optimiser.apply_pending_decay(99)
    return table, optimiser


def start_rows(dtype=torch.float64):
    return torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


def by_loop(kind, start):
    weight, square, touches = start.clone(), [0.0] * N, [0] * N
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        leaf = weight.clone().requires_grad_()
        loss_of(leaf[a], leaf[b], ta.double(), tb.double()).backward()
        if kind == "sgd":
            weight *= 1 - slow(step) * SGD["weight_decay"]
        for row in sorted({*a.tolist(), *b.tolist()}):
            g = leaf.grad[row]
            touches[row] += 1
            if kind == "sgd":    # as momentum does after as many gradients, all equal
                weight[row] -= slow(step) * g * (1 - 0.9 ** touches[row]) / (1 - 0.9)
                continue
            square[row] = 0.999 * square[row] + 0.001 * float(g @ g) / D
            weight[row] -= rate(step) * (1 - 0.999 ** touches[row]) ** 0.5 * g / (square[row] ** 0.5 + 1e-8)
    return weight


@pytest.mark.parametrize("kind", MAKERS)
def test_equals_a_loop_over_rows(kind):
    torch.testing.assert_close(trained(kind, start_rows())[0].weight, by_loop(kind, start_rows()), rtol=1e-11,
                               atol=1e-12)


@pytest.mark.parametrize(("kind", "full"), [(RowwiseAdam, RowAdam), (RowwiseSGD, RowSGD), (
    partial(RowwiseSGD, momentum=0.99), partial(RowSGD, momentum=0.99))])
def test_equal_gradients_move_a_row_as_full_moments_do(kind, full):
    """So learning rates are those of the full optimisers, for rows that move once or four hundred times."""
    ends = []
    for each in (kind, full):
        table = RowTable(torch.zeros(3, 4, dtype=torch.float64)).train()
        optimiser = each(table)
        for step in range(400):
            ids = torch.tensor([0, 1, 2][:3 if step == 7 else 2 if step % 10 == 0 else 1])
            optimiser.begin(0.01)
            optimiser.update(ids, torch.full((len(ids), 4), 0.3, dtype=torch.float64))
        ends.append(table.weight)
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("at", [1, 7])
def test_restored_state_goes_on_bit_for_bit(kind, dtype, at):
    whole, parts = (trained(kind, start_rows(dtype), restart_at=where) for where in (None, at))
    assert torch.equal(whole[0].weight, parts[0].weight)
    assert all(torch.equal(value, parts[1].state()[name]) for name, value in whole[1].state().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_step_in_parts_is_the_step(kind, dtype):
    one, three = (trained(kind, start_rows(dtype), parts=parts)[0].weight for parts in (1, 3))
    assert torch.equal(one, three) and not torch.equal(one, start_rows(dtype))


@pytest.mark.parametrize("kind", MAKERS | FULL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rows_that_fit_a_cache_change_no_bit(kind, dtype, monkeypatch):
    def moved() -> list[torch.Tensor]:
        table = RowTable(start_rows(dtype)).train()
        optimiser = (MAKERS | FULL)[kind](table)
        for step in range(4):
            ids = torch.arange(step, N, 2)
            optimiser.begin(0.01, step)
            optimiser.update(ids, torch.sin(torch.arange(1.0 + step, 1 + step + len(ids) * D).view(-1, D)))
        return [table.weight, *optimiser.state().values()]

    whole = moved()
    monkeypatch.setattr(row_optimisers, "_CACHED", 2 * D + 1)    # two rows at once
    assert all(torch.equal(one, other) for one, other in zip(whole, moved(), strict=True))


def test_untouched_rows_keep_their_bits_and_counts():
    table, optimiser = trained("adam", start_rows(torch.bfloat16))
    touched = torch.unique(torch.cat([torch.cat([a, b]) for a, b, *_ in draws(0)]))
    rest = torch.ones(N, dtype=torch.bool)
    rest[touched] = False
    assert rest.sum() >= 10
    assert torch.equal(table.weight[rest], start_rows(torch.bfloat16)[rest])
    assert not optimiser.touches[rest].any() and optimiser.touches[touched].all()


def test_counts_end_where_they_no_longer_matter():
    table = RowTable(torch.zeros(1, 2)).train()
    optimiser = RowwiseSGD(table, momentum=0.9)
    for _ in range(300):
        optimiser.begin(0.1)
        optimiser.update(torch.tensor([0]), torch.ones(1, 2))
    assert optimiser.touches.tolist() == [255]


def test_rows_are_read_as_float32_of_what_is_held():
    table = RowTable(torch.randn(N, D).bfloat16()).train()
    ids = torch.tensor([5, 3, 5, 39, 0])
    for rows, place in (table.gather(ids), table.eval().gather(ids)):
        assert rows.dtype == torch.float32
        assert torch.equal(rows[place], table.weight[ids].float())
    assert table.read_all().dtype == "float32"
