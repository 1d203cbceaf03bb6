"""Models that others stored, as `encoder.source` names them: in half precision, of other types and vocabularies."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from tests.support.encoding import VOCABULARY, store_transformer, tokens
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import QUERY, build_encoder, load_encoder, save_encoder
from xcmodels.training.optimisers import Optimisers
from xcmodels.training_plan import TrainingPlan


def stored(folder, kind="Bert", dtype=torch.float32, **settings):
    """Return the settings of an encoder that begins as a transformer that is stored so."""
    source = store_transformer(folder, kind, dtype, **settings)
    return EncoderConfig(kind="transformer", source=source, tied=True, bf16=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_stored_in_half_precision_is_trained_and_served_in_single(idf, texts, tmp_path, dtype):
    encoder = build_encoder(stored(tmp_path / "half", dtype=dtype), idf, 0)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    optimisers = Optimisers(encoder, TrainingPlan(1, 64, 1e-4, {}, 0))
    optimisers.begin(1.0)
    (encoder.train()(texts, QUERY) * torch.arange(1.0, 17)).sum().backward()
    optimisers.finish()
    made = encoder.eval()(texts, QUERY)
    assert torch.isfinite(made).all()
    save_encoder(encoder, tmp_path / "encoder")
    assert torch.equal(load_encoder(tmp_path / "encoder").eval()(texts, QUERY), made)


@pytest.mark.parametrize(("kind", "most"), [("Bert", 32), ("Roberta", 30), ("MPNet", 30)])
def test_a_text_longer_than_the_model_takes(idf, tmp_path, kind, most):
    encoder = build_encoder(stored(tmp_path / kind, kind, pad_token_id=1), idf, 0).eval()
    assert torch.isfinite(encoder(tokens([([5] * (most - 2), [])]), QUERY)).all()
    with pytest.raises(ValueError, match=f"{most + 1} tokens with its marks, the encoder takes {most};"):
        encoder(tokens([([5] * (most - 1), [])]), QUERY)


@pytest.mark.parametrize(("named", "marks"), [({}, (7, 9)), ({"cls_token_id": 5}, (5, 9)),
                                              ({"bos_token_id": 2, "eos_token_id": 3}, (2, 3))])
def test_marks_are_those_of_the_models_own_vocabulary(idf, tmp_path, named, marks):
    """BERT's configurations name none, and of its vocabularies few have them at 101 and 102."""
    config = stored(tmp_path / "bert", **{"bos_token_id": None, "eos_token_id": None, **named})
    assert build_encoder(config, idf, 0).backbone.first == (101 if not named else marks[0]), "there is no tokenizer"
    tokenizer = Tokenizer(WordLevel({f"[{number}]": number for number in range(VOCABULARY)}, unk_token="[1]"))
    tokenizer.post_processor = TemplateProcessing(single="[7] $A [9]", special_tokens=[("[7]", 7), ("[9]", 9)])
    tokenizer.enable_padding(length=8)    # as MiniLM's does
    tokenizer.save(str(tmp_path / "bert" / "tokenizer.json"))
    backbone = build_encoder(config, idf, 0).backbone
    assert (backbone.first, backbone.last) == marks
