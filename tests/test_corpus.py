"""Texts on disk: what is written part by part is one numpy array, and every string comes back."""

import numpy as np
import pytest

from xcmodels import corpus
from xcmodels.corpus import Texts


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
