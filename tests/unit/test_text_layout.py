"""Where texts lie that a transformer encodes together: whole, in their order, and in few shapes."""

import numpy as np
import pytest
import torch

from xcmodels.nn.text_layout import TOGETHER, RowLayout, padded_parts


@pytest.mark.parametrize("compiled", [True, False])
def test_parts_hold_every_text_once_by_size(compiled):
    rng = np.random.default_rng(0)
    for sizes in (rng.integers(2, 50, 2000), rng.integers(2, 6, 3), rng.geometric(.05, 500) + 1,
                  np.array([5000, 7, 7])):
        order = torch.from_numpy(sizes.argsort(kind="stable"))
        parts = padded_parts(order, sizes, compiled=compiled)
        assert torch.equal(torch.cat([part.texts[:part.count] for part in parts]), order)
        for part in parts:
            assert (sizes[part.texts.numpy()] <= part.width).all() and part.width <= sizes.max()
            assert (part.texts[part.count:] == part.texts[part.count - 1]).all() and len(part.texts) < 2 * part.count
            assert compiled or part.width == sizes[part.texts.numpy()].max()
            assert len(part.texts) == 1 or len(part.texts) * part.width <= TOGETHER["cpu"]


def test_shapes_of_parts_repeat():
    """Of texts of every size up to 50: at most two shapes a width, one of them of the last part of a batch."""
    rng, shapes, parts = np.random.default_rng(0), set(), 0
    for _ in range(50):
        sizes = np.append(rng.binomial(48, rng.beta(2, 3, 2000)) + 2, 50)
        made = padded_parts(torch.from_numpy(sizes.argsort(kind="stable")), sizes, compiled=True)
        full = {(len(part.texts), part.width) for part in made[:-1]}
        assert full <= {(TOGETHER["cpu"] // width, width) for _, width in full}
        shapes |= {(len(part.texts), part.width) for part in made}
        parts += len(made)
    assert len({width for _, width in shapes}) <= 20 and len(shapes) <= 30 < parts / 20


def test_one_text_is_not_padded():
    (part,) = padded_parts(torch.tensor([0]), np.array([23]), compiled=True)
    assert (part.texts.tolist(), part.count, part.width) == ([0], 1, 23)


@pytest.mark.parametrize("size", [2, 9, 17, 31, 33, 50, 512])
def test_padding_is_at_most_an_eighth(size):
    sizes = np.append(np.full(4000, size), 2 * size)
    parts = padded_parts(torch.from_numpy(sizes.argsort(kind="stable")), sizes, compiled=True)
    assert parts[0].width <= max(size + 1, 1.125 * size)


def test_rows_hold_every_text_whole_and_are_few_in_number():
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(10):
        sizes = rng.integers(2, 50, 2000)
        layout = RowLayout.of(sizes)
        cells = np.concatenate([np.arange(size) + begin for size, begin in
                                zip(sizes.tolist(), layout.begins.tolist(), strict=True)])
        assert len(np.unique(cells)) == len(cells) == layout.tokens and cells.max() < layout.rows * layout.width
        column = layout.begins.numpy() % layout.width
        assert (column + sizes <= layout.width).all()
        assert layout.tokens > .75 * layout.rows * layout.width
        shapes.add((layout.rows, layout.width))
    assert len(shapes) <= 3
    assert RowLayout.of(np.array([300, 2])).width == 304
