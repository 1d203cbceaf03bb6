"""Training by rows against torch's Adam of each row alone and against a loop over rows."""

import pytest
import torch

from xcmodels.nn import distributed, row_optimisers
from xcmodels.nn.row_optimisers import RowAdam, RowSGD, RowwiseAdam
from xcmodels.nn.row_table import RowTable

N, D = 40, 6


def draws(seed, steps=12):
    """Ids of two gathers a step (repeated, overlapping, in no order) and a direction for each id."""
    torch.manual_seed(seed)
    for _ in range(steps):
        a, b = torch.randint(0, 25, (9,)), torch.randint(15, 30, (7,))
        yield a, b, torch.randn(9, D), torch.randn(7, D)


def loss_of(first, second, a_target, b_target):
    return (first * a_target).sum().tanh() + ((second - b_target) ** 2).sum() + first.square().sum() * second.sum()


def by_rows(start, rate, seed=0, dtype=torch.float64, restart_at=None):
    table = RowTable(start.clone().to(dtype)).train()
    adam = RowAdam(table)
    for step, (a, b, ta, tb) in enumerate(draws(seed)):
        if step == restart_at:
            state = {name: value.clone() for name, value in adam.state().items()}
            table = RowTable(table.weight.clone()).train()
            adam = RowAdam(table)
            adam.restore(state)
        rows_a, at_a = table.gather(a)
        rows_b, at_b = table.gather(b)
        loss_of(rows_a[at_a], rows_b[at_b], ta.to(dtype), tb.to(dtype)).backward()
        adam.begin(rate(step))
        adam.update(*table.take_gradients())
    return table, adam


def rate(step):
    return 0.05 * (1 - step / 20)


def test_a_row_is_trained_as_by_torchs_adam_of_this_row_alone(monkeypatch):
    """One that a batch does not touch is not stepped: neither its moments nor their bias know of the step."""
    start = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = [torch.nn.Parameter(row.clone()) for row in start]
    adams = [torch.optim.Adam([row], eps=0.0) for row in rows]
    monkeypatch.setattr(row_optimisers, "_EPSILON", 0.0)    # torch adds it to the deviation without its bias
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        weight = torch.stack(rows)
        loss_of(weight[a], weight[b], ta.double(), tb.double()).backward()
        for row, adam in enumerate(adams):
            if row in {*a.tolist(), *b.tolist()}:
                adam.param_groups[0]["lr"] = rate(step)
                adam.step()
            adam.zero_grad()
    torch.testing.assert_close(by_rows(start, rate)[0].weight, torch.stack(rows).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [RowAdam, RowwiseAdam])
def test_a_row_moves_by_the_rate_whenever_it_is_first_touched(kind):
    """What torch's SparseAdam does not: there a row that is touched first in the thousandth step moves 2.5 rates."""
    table = RowTable(torch.zeros(2, 3, dtype=torch.float64))
    adam = kind(table)
    for step in range(1000):
        adam.begin(0.01)
        ids = torch.arange(1 if step < 999 else 2)
        adam.update(ids, torch.full((len(ids), 3), -0.7, dtype=torch.float64))
    torch.testing.assert_close(table.weight[1], torch.full((3,), 0.01, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(table.weight[0], 1000 * table.weight[1], rtol=1e-6, atol=0)


def test_equals_a_loop_over_rows():
    start = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight, mean, square = start.clone(), torch.zeros(N, D).double(), torch.zeros(N, D).double()
    touches = [0] * N
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        leaf = weight.clone().requires_grad_()
        loss_of(leaf[a], leaf[b], ta.double(), tb.double()).backward()
        for row in sorted({*a.tolist(), *b.tolist()}):
            g = leaf.grad[row]
            mean[row] = 0.9 * mean[row] + 0.1 * g
            square[row] = 0.999 * square[row] + 0.001 * g * g
            touches[row] += 1
            scale = rate(step) * (1 - 0.999 ** touches[row]) ** 0.5 / (1 - 0.9 ** touches[row])
            weight[row] -= scale * mean[row] / (square[row].sqrt() + 1e-8)
    table, adam = by_rows(start, rate)
    torch.testing.assert_close(table.weight, weight, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(adam.mean, mean)
    torch.testing.assert_close(adam.square, square)
    assert adam.touches.tolist() == touches


def test_untouched_rows_stay_bit_for_bit():
    start = torch.randn(N, D)
    table, adam = by_rows(start, rate, dtype=torch.float32)
    touched = torch.unique(torch.cat([torch.cat([a, b]) for a, b, *_ in draws(0)]))
    rest = torch.ones(N, dtype=torch.bool)
    rest[touched] = False
    assert rest.sum() >= 10
    assert torch.equal(table.weight[rest], start[rest])
    assert (table.weight[touched] != start[touched]).any(1).all()
    assert (adam.mean[rest] == 0).all()


def test_a_row_that_waits_keeps_its_moments():
    table = RowTable(torch.zeros(3, 2)).train()
    adam = RowAdam(table)
    for ids in ([0], [1], [1]):
        rows, place = table.gather(torch.tensor(ids))
        rows[place].sum().backward()
        adam.begin(0.1)
        adam.update(*table.take_gradients())
    assert torch.allclose(adam.mean[0], torch.tensor(0.1))
    assert adam.touches.tolist() == [1, 2, 0]


@pytest.mark.parametrize("at", [1, 7])
def test_restored_state_goes_on_bit_for_bit(at):
    start = torch.randn(N, D)
    whole, parts = (by_rows(start, rate, dtype=torch.float32, restart_at=where) for where in (None, at))
    assert torch.equal(whole[0].weight, parts[0].weight)
    assert all(torch.equal(whole[1].state()[name], parts[1].state()[name]) for name in RowAdam.moments)


def test_gathering_gives_the_rows_asked_for():
    table = RowTable(torch.randn(N, D)).train()
    ids = torch.tensor([5, 3, 5, 39, 0])
    rows, place = table.gather(ids)
    assert torch.equal(rows[place], table.weight[ids])
    assert rows.requires_grad
    assert len(rows) == 4


def test_nothing_is_kept_outside_training():
    table = RowTable(torch.randn(N, D)).eval()
    rows, place = table.gather(torch.tensor([4, 4]))
    assert not rows.requires_grad
    assert torch.equal(rows[place], table.weight[[4, 4]])
    table.train()
    with torch.no_grad():
        rows, _ = table.gather(torch.tensor([4]))
    assert not rows.requires_grad
    assert table.take_gradients() is None


def test_gradients_are_taken_once():
    table = RowTable(torch.zeros(4, 2)).train()
    for ids in ([2, 1], [1, 1]):
        rows, place = table.gather(torch.tensor(ids))
        rows[place].sum().backward()
    ids, gradients = table.take_gradients()
    assert ids.tolist() == [1, 2]
    assert gradients.tolist() == [[3, 3], [1, 1]]
    assert table.take_gradients() is None


def test_rows_that_were_asked_for_and_not_used_have_no_gradient():
    table = RowTable(torch.ones(4, 2)).train()
    table.gather(torch.tensor([1]))
    assert table.take_gradients() is None


@pytest.mark.parametrize("kind", [RowAdam, RowSGD])
def test_ids_of_either_width_train_the_same_rows(kind):
    """A corpus holds its labels as int32, and methods pass them on as they are."""
    ends = []
    for width in (torch.int32, torch.int64):
        table = RowTable(torch.arange(8.0).view(4, 2)).train()
        rows, at = table.gather(torch.tensor([3, 1, 3], dtype=width))
        rows[at].square().sum().backward()
        optimiser = kind(table)
        optimiser.begin(0.1)
        optimiser.update(*table.take_gradients())
        ends.append(table.weight)
    assert torch.equal(*ends) and not torch.equal(ends[0], torch.arange(8.0).view(4, 2))


SGD = {"momentum": 0.9, "weight_decay": 20.0}


def slow(step):
    return rate(step) / 50


def sgd_by_rows(start, dtype=torch.float64, restart_at=None):
    table = RowTable(start.clone().to(dtype)).train()
    sgd = RowSGD(table, **SGD)
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        if step == restart_at:
            state = {name: value.clone() for name, value in sgd.state().items()}
            table = RowTable(table.weight.clone()).train()
            sgd = RowSGD(table, **SGD)
            sgd.restore(state)
        rows_a, at_a = table.gather(a)
        rows_b, at_b = table.gather(b)
        loss_of(rows_a[at_a], rows_b[at_b], ta.to(dtype), tb.to(dtype)).backward()
        sgd.begin(slow(step))
        sgd.update(*table.take_gradients())
    sgd.apply_pending_decay()
    return table, sgd


def test_sgd_equals_decay_of_every_row_at_every_step():
    """The dense oracle: all rows decay at each step, touched ones move along their momentum."""
    start = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight, velocity = start.clone(), torch.zeros(N, D).double()
    for step, (a, b, ta, tb) in enumerate(draws(0)):
        leaf = weight.clone().requires_grad_()
        loss_of(leaf[a], leaf[b], ta.double(), tb.double()).backward()
        weight *= 1 - slow(step) * 20
        for row in sorted({*a.tolist(), *b.tolist()}):
            velocity[row] = 0.9 * velocity[row] + leaf.grad[row]
            weight[row] -= slow(step) * velocity[row]
    table, sgd = sgd_by_rows(start)
    torch.testing.assert_close(table.weight, weight, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(sgd.velocity, velocity)


def test_sgd_without_decay_is_torchs_where_every_row_is_touched():
    start = torch.randn(N, D, dtype=torch.float64)
    table, weight = RowTable(start.clone()).train(), torch.nn.Parameter(start.clone())
    mine, torchs = RowSGD(table, momentum=0.9), torch.optim.SGD([weight], lr=0.01, momentum=0.9)
    for step in range(5):
        rows, place = table.gather(torch.arange(N))
        (rows[place].square().sum() + step * rows.sum()).backward()
        mine.begin(0.01)
        mine.update(*table.take_gradients())
        torchs.zero_grad()
        (weight.square().sum() + step * weight.sum()).backward()
        torchs.step()
    torch.testing.assert_close(table.weight, weight.detach())


@pytest.mark.parametrize("rank", [0, 1])
def test_of_fewer_rows_than_processes_none_holds_all(rank, monkeypatch):
    """One that has the only row would not take part where the others sum."""
    monkeypatch.setattr(distributed, "count", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    table = RowTable.zeros(1, D)
    assert not table.holds_all_rows and len(table.weight) == rank


@pytest.mark.parametrize("at", [1, 5, 11])
def test_when_sgd_is_saved_shows_in_no_bit(at):
    start = torch.randn(N, D)
    whole, parts = (sgd_by_rows(start, torch.float32, restart_at=where) for where in (None, at))
    assert torch.equal(whole[0].weight, parts[0].weight)
    assert all(torch.equal(value, parts[1].state()[name]) for name, value in whole[1].state().items())
