"""Texts on disk: what is written part by part is one numpy array, and every string comes back. Pairs by row."""

import numpy as np
import pytest

from xcmodels.data import corpus
from xcmodels.data.corpus import BITS, Ragged, Texts


@pytest.mark.parametrize("count", [0, 1, 7, 8, 30])
def test_texts_written_by_parts_come_back_from_arrays_that_numpy_reads(tmp_path, monkeypatch, count):
    monkeypatch.setattr(corpus, "_TOGETHER", 8)
    texts = [f"{'é' * (number % 5)}{number or ''}" for number in range(count)]
    Texts.save(tmp_path, "said", (text for text in texts))
    whole = "".join(texts).encode()
    assert np.load(tmp_path / "said.values.npy").tobytes() == whole
    np.save(tmp_path / "wanted.npy", np.frombuffer(whole, dtype=np.uint8))
    assert (tmp_path / "said.values.npy").read_bytes() == (tmp_path / "wanted.npy").read_bytes()
    read = Texts.load(tmp_path, "said")
    assert [read[row] for row in range(len(read))] == read.take(np.arange(count)) == texts


@pytest.mark.parametrize(("rows", "pairs"), [(0, 0), (5, 0), (1, 3), (40, 300)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_pairs_are_grouped_by_row_and_sorted_within(rows, pairs, kind):
    rng, most = np.random.default_rng(pairs), (1 << BITS) - 1
    row = rng.integers(0, max(rows - 3, 1), pairs)    # the last rows have none
    value = rng.choice([0, 1, 7, most - 1, most], pairs).astype(kind)
    wanted = [sorted(value[row == each].tolist()) for each in range(rows)]
    for made in (Ragged.of_pairs(row, value, rows), Ragged.of_keys(row << BITS | value, rows)):
        assert [made[each].tolist() for each in range(rows)] == wanted
        assert len(made) == rows
    assert Ragged.of_pairs(row, value, rows).values.dtype == kind
