"""Texts of a small vocabulary and encoders of them, for the tests of encoders."""

import numpy as np
import pytest
import torch

from xcmodels.data.batching import BatchSide
from xcmodels.data.tokens import Tokens
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY

BAG = EncoderConfig(source="random", dim=12, idf_power=0.5)
VOCABULARY = 40


@pytest.fixture(scope="module")
def idf():
    return np.random.default_rng(0).uniform(0.1, 3, 2 * VOCABULARY).astype(np.float32)


@pytest.fixture
def texts():
    rng = np.random.default_rng(1)
    return tokens([(rng.integers(4, VOCABULARY, a), rng.integers(4, VOCABULARY, b))
                   for a, b in ((3, 2), (1, 0), (0, 4), (0, 0), (7, 9), (2, 1))])


def tokens(pairs):
    flat = [int(x) for title, content in pairs for part in (title, content) for x in part]
    return Tokens(torch.tensor(flat, dtype=torch.int64),
                  torch.tensor(np.cumsum([0] + [len(a) + len(b) for a, b in pairs])),
                  torch.tensor([len(a) for a, _ in pairs], dtype=torch.int64))


def store_transformer(folder, kind="Bert", dtype=torch.float32, **settings):
    """Store a transformer of one layer in a folder, and return the folder's name.

    Its padding token and its marks are unlike everything that is asked of it.
    """
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        **{"max_position_embeddings": 32, "bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.5, **settings})
    getattr(transformers, f"{kind}Model")(config).to(dtype).save_pretrained(folder)
    return str(folder)


def rows_of(made):
    for i in range(len(made)):
        yield made.ids[made.offsets[i]:made.offsets[i + 1]].tolist(), int(made.titles[i])


def trained(encoder, seed=5):
    """Move every tensor, so that titles differ from contents, sides from each other, heads from the identity."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in [*encoder.parameters(), *(table.weight for table in encoder.tables().values())]:
            tensor.add_(0.3 * torch.randn_like(tensor))
    return encoder


def both(encoder, queries, labels):
    pooled = encoder.pool({"queries": BatchSide(torch.arange(len(queries)), tokens=queries),
                           "labels": BatchSide(torch.arange(len(labels)), tokens=labels)})
    return encoder.view(pooled["queries"], QUERY), encoder.view(pooled["labels"], LABEL)
