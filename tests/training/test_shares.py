"""How the texts of a batch are shared by processes that train a transformer together."""

import numpy as np
import pytest
import torch

from xcmodels.data.frozen_states import FrozenStates
from xcmodels.data.tokens import Tokens
from xcmodels.nn import distributed


def some_tokens(lengths):
    offsets = np.append(0, np.cumsum(lengths))
    states = FrozenStates.of(np.arange(2 * offsets[-1]).reshape(-1, 2).astype(np.float16), offsets[:-1],
                             np.asarray(lengths))
    return Tokens(torch.arange(offsets[-1]), torch.from_numpy(offsets), torch.from_numpy(np.minimum(lengths, 3)),
                  states=states)


@pytest.mark.parametrize("texts", [[], [4], [5, 0, 0, 3], list(range(19, -1, -1))])
def test_some_of_the_texts_are_what_each_alone_is(texts):
    lengths = np.random.default_rng(0).integers(0, 9, 20)
    tokens = some_tokens(lengths)
    taken = tokens.take(np.array(texts, np.int64))
    assert len(taken) == len(texts) and taken.offsets.tolist() == np.append(0, np.cumsum(lengths[texts])).tolist()
    for place, text in enumerate(texts):
        alone = tokens.part(slice(text, text + 1))
        assert taken.part(slice(place, place + 1)).ids.tolist() == alone.ids.tolist()
        assert taken.titles[place] == alone.titles[0]
        assert np.array_equal(taken.states.read(np.array([place])), alone.states.read(np.array([0])))


@pytest.mark.parametrize("processes", [2, 3])
def test_every_process_encodes_about_as_many_tokens(monkeypatch, processes):
    """Queries and the labels of a batch come one after another, and labels are short."""
    rng = np.random.default_rng(1)
    sizes = np.concatenate([rng.integers(10, 30, 1024), rng.integers(3, 7, 700)])
    shares = []
    monkeypatch.setattr(distributed, "count", lambda: processes)
    monkeypatch.setattr(distributed._Gather, "apply", lambda own, order: own)
    for process in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda process=process: process)
        distributed.by_shares(sizes, lambda texts: shares.append(texts) or torch.zeros(len(texts), 1))
    assert sorted(np.concatenate(shares)) == list(range(len(sizes)))
    tokens = [sizes[share].sum() for share in shares]
    assert max(tokens) - min(tokens) <= sizes.max()
