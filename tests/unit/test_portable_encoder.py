"""The encoder that an exported folder's own code computes, head by head, against xcflow's."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from tasks.export.sentence_folder import plain_modules, portable_encoder
from tests.support.encoding import VOCABULARY, store_transformer, trained
from xcmodels.data.tokens import Tokenizer, learn_backend
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, HeadConfig, build_encoder, siamese


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return store_transformer(tmp_path_factory.mktemp("bert"))


def padded(tokens):
    """Return the ids, the mask and the types (n, w) of texts."""
    lengths, places = tokens.offsets.diff()[:, None], torch.arange(int(tokens.offsets.diff().max()))
    mask = places < lengths
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    ids[mask] = tokens.ids
    return ids, mask.long(), (mask & (places >= tokens.titles[:, None])).long()


@pytest.mark.parametrize("kind", ["unit", "gelu", "residual", "tanh", "linear"])
@pytest.mark.parametrize("backbone", ["bag", "transformer", "both"])
def test_every_head_over_every_backbone(source, idf, texts, backbone, kind):
    source = "random" if backbone == "bag" else source
    config = EncoderConfig(kind=backbone, source=source, dim=16, places=4, bf16=False)
    encoder = trained(build_encoder(config, idf, 0, siamese(config, HeadConfig(kind)))).eval()
    tokenizer = Tokenizer(learn_backend(["a text"], 30), max_title=7, max_content=9)
    made = portable_encoder(encoder, tokenizer, untitled=False)
    with torch.inference_mode():
        for view in (QUERY, LABEL):
            np.testing.assert_allclose(made(*padded(texts), view), encoder(texts, view), rtol=0, atol=1e-5)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_word_longer_than_its_first_tokens_have_characters(source, idf, limit):
    config = EncoderConfig(kind="transformer", source=source, tied=True, max_tokens=limit, bf16=False)
    encoder = trained(build_encoder(config, idf, 0)).eval()
    tokenizer = Tokenizer(learn_backend(["x" * 900, "fox"], VOCABULARY), max_title=7, max_content=9)
    made = SentenceTransformer(modules=plain_modules(encoder, tokenizer, untitled=False), device="cpu")
    texts = ["x" * 3000, "x" * 200 + " fox", "fox" + " " * 200 + "fox"]
    with torch.inference_mode():
        np.testing.assert_allclose(made.encode(texts), encoder(tokenizer(texts), QUERY), rtol=0, atol=1e-5)
