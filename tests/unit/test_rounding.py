"""Stochastic rounding to bfloat16: exact on average, against a table of all noise, and keyed by row alone."""

import pytest
import torch

from xcmodels.nn.rounding import NOISE_ROWS, add_noise, round_rows
from xcmodels.nn.row_optimisers import RowAdam, RowSGD, RowwiseAdam, RowwiseSGD
from xcmodels.nn.row_table import RowTable

VALUES = [0.1, -0.1, 1.0, -1.0, 0.0, 1 / 3, -1e-30, 1e-42, 3e38, 65504.0, 0.0078125, 1 + 2**-8, -(2 + 2**-7 + 2**-20)]


def neighbours(value):
    """The two bfloat16 values around a float32 one, by decoding: the lower half of its bits cut off, and one more."""
    bits = torch.tensor([value], dtype=torch.float32).view(torch.int32).item() & 0xFFFFFFFF
    low = bits & 0xFFFF0000
    both = torch.tensor([low, low + (0x10000 if bits != low else 0)], dtype=torch.int64).to(torch.int32)
    return both.view(torch.float32).double().tolist()


@pytest.mark.parametrize("value", VALUES)
def test_the_mean_over_all_noise_is_the_value(value):
    exact = torch.tensor([value], dtype=torch.float32)
    rounded = add_noise(exact.expand(1 << 16), torch.arange(1 << 16, dtype=torch.int32))
    assert rounded.dtype == torch.bfloat16
    assert set(rounded.double().tolist()) == set(neighbours(value))
    assert rounded.double().mean().item() == exact.double().item()


def test_what_is_no_number_stays_what_it_is():
    rounded = add_noise(torch.tensor([float("inf"), -float("inf"), float("nan")]), torch.full((3,), 65535).int())
    assert rounded[:2].tolist() == [float("inf"), -float("inf")] and rounded[2].isnan()


def test_each_key_draws_anew_and_the_mean_is_right():
    rows = torch.tensor([[0.1001, -0.7003, 3.14159]]).repeat(50, 1)
    ids, keys = torch.arange(50), 400
    mean = torch.stack([round_rows(rows, ids, key) for key in range(keys)]).double().mean((0, 1))
    for value, found in zip(rows[0].tolist(), mean.tolist(), strict=True):
        low, high = sorted(neighbours(value))
        share = (value - low) / (high - low)
        error = (high - low) * (share * (1 - share) / (keys * len(ids))) ** 0.5
        assert found == pytest.approx(value, abs=4.5 * error)
        assert abs(value - min(low, high, key=lambda near: abs(near - value))) > 9 * error    # the nearest is refused


def test_the_noise_of_a_row_is_its_own():
    rows = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(0, 5000, 10)
    whole = round_rows(rows, ids, 7)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    assert torch.equal(round_rows(rows[order], ids[order], 7), whole[order])
    assert torch.equal(round_rows(rows[100:], ids[100:], 7), whole[100:])
    assert (round_rows(rows, ids, 8) != whole).float().mean() > 0.2
    assert torch.equal(rows, torch.randn(500, 24, generator=torch.Generator().manual_seed(0)))    # not written to


def test_equal_rows_are_rounded_apart():
    """Two rows share their noise once in NOISE_ROWS pairs or less, and not the same two under another key."""
    ids, same = torch.arange(1000), torch.linspace(1, 1.99, 64).expand(1000, 64)
    shared = []
    for key in range(2):
        rounded = round_rows(same, ids, key).float()
        alike = (rounded[:, None] == rounded[None]).all(2).triu(1)
        assert 0 < alike.float().sum() / (1000 * 999 / 2) < 2 / NOISE_ROWS
        shared.append(alike)
    assert (shared[0] & shared[1]).sum() < 0.02 * shared[0].sum()


@pytest.mark.parametrize("kind", [RowAdam, RowwiseAdam, RowSGD, RowwiseSGD])
def test_steps_too_small_for_the_nearest_move_a_table_as_far(kind):
    """A thousand steps, each a fiftieth of the distance between neighbours at 1."""
    ends = {}
    for dtype in (torch.float32, torch.bfloat16):
        table = RowTable(torch.ones(40, 8, dtype=dtype)).train()
        optimiser = kind(table)
        for step in range(1000):
            optimiser.begin(2e-5 if "Adam" in kind.__name__ else 2e-6, step)
            optimiser.update(torch.arange(40), torch.ones(40, 8))
        ends[dtype] = table.weight.float()
    moved, exact = ends[torch.bfloat16].mean().item(), ends[torch.float32].mean().item()
    assert exact < 0.985
    assert moved == pytest.approx(exact, abs=0.004)


@pytest.mark.parametrize("kind", [RowAdam, RowwiseAdam, RowSGD, RowwiseSGD])
def test_shards_are_rounded_as_the_whole(kind):
    start = torch.randn(60, 6).bfloat16()
    whole = RowTable(start.clone(), name="labels")
    parts = [RowTable(start[rows].clone(), name="labels", n=60, first=rows.start) for rows in (slice(0, 25),
                                                                                              slice(25, 60))]
    optimisers = [kind(table) for table in (whole, *parts)]
    for step in range(6):
        ids = torch.randperm(60)[:30].sort().values
        gradients = torch.randn(30, 6)
        for optimiser in optimisers:
            here = (ids >= optimiser.table.first) & (ids < optimiser.table.first + len(optimiser.table.weight))
            optimiser.begin(0.01, step)
            optimiser.update(ids[here] - optimiser.table.first, gradients[here])
    assert torch.equal(torch.cat([part.weight for part in parts]), whole.weight)
    assert not torch.equal(whole.weight, start)
