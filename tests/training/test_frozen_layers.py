"""Layers that are not trained, run once: what follows begins at their states and gives the same vectors and models."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.encoding import tokens
from tests.support.toy import made_by, toy_corpus
from xcmodels.data.corpus import Corpus
from xcmodels.data.hidden_states import HiddenStates
from xcmodels.data.tokens import join
from xcmodels.nn import transformer
from xcmodels.nn.encoder_config import QUERY, EncoderConfig
from xcmodels.nn.encoders import HeadConfig, build_encoder, encode_all, siamese
from xcmodels.nn.transformer import Transformer
from xcmodels.training.frozen_layers import write_states
from xcmodels.training.local_run import train_all, with_states
from xcmodels.training.step_graph import FROZEN, TRAIN, training_steps

DIM, MOST = 16, 9


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


def with_encoder(config, encoder):
    return replace(config, base=with_encoder(config.base, encoder)) if hasattr(config, "base") else replace(
        config, encoder=encoder)


def config_of(folder, model, **changed) -> EncoderConfig:
    model.save_pretrained(folder)
    return replace(EncoderConfig(kind="transformer", source=str(folder), batch=64, bf16=False, trained_layers=1,
                                 drops=False, cache_frozen=True, max_tokens=MOST), **changed)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> EncoderConfig:
    """A transformer of three layers of which one is trained."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return config_of(tmp_path_factory.mktemp("bert"), BertModel(BertConfig(
        vocab_size=400, hidden_size=DIM, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, initializer_range=0.5)))


@pytest.fixture(scope="module")
def known(corpus, bert, tmp_path_factory) -> Corpus:
    """The corpus with the states of its texts."""
    write_states(corpus, bert, folder := tmp_path_factory.mktemp("hidden"), graphs=True)
    return Corpus(corpus.folder, folder)


def test_states_are_those_between_two_layers(corpus, known, bert):
    model = build_encoder(bert, corpus.idf, 0).eval().backbone.model
    side, hidden = corpus.sides["train"], known.sides["train"].hidden
    assert known.sides["test"].hidden is None
    for row in (0, 1, 63, 64, len(side) - 1):
        ids = side.tokens(np.array([row])).ids[:MOST]
        wanted = model(input_ids=torch.tensor([[101, *ids, 102]]), output_hidden_states=True).hidden_states[2][0]
        np.testing.assert_allclose(hidden[row].astype(np.float32), wanted.detach().numpy(), rtol=0, atol=5e-3)


@pytest.mark.parametrize("side", ["train", "label"])
def test_vectors_from_states_are_those_of_the_texts(corpus, known, bert, side):
    encoder = build_encoder(bert, corpus.idf, 0)
    with torch.no_grad():    # a layer that was trained meanwhile
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    wanted, made = (encode_all(encoder, each.sides[side], QUERY) for each in (corpus, known))
    assert not np.array_equal(made, wanted)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=5e-3)


def test_layers_below_do_not_run_again(corpus, known, bert):
    encoder, runs = build_encoder(bert, corpus.idf, 0).train(), []
    for number, layer in enumerate(encoder.backbone.model.encoder.layer):
        layer.register_forward_hook(lambda *_, number=number: runs.append(number))
    encoder(known.sides["train"].tokens(np.arange(4)), QUERY)
    assert set(runs) == {2}
    assert len(encoder.backbone.model.encoder.layer) == 3, "the model is whole again"
    encoder(corpus.sides["train"].tokens(np.arange(4)), QUERY)
    assert set(runs) == {0, 1, 2}


def test_gradients_from_states_are_those_from_texts(corpus, known, bert):
    encoder = build_encoder(bert, corpus.idf, 0, siamese(bert, HeadConfig("linear"))).train()
    rows, gradients = np.arange(40), []
    for each in (corpus, known):
        encoder.zero_grad()
        (encoder(each.sides["train"].tokens(rows), QUERY) * torch.arange(1.0, DIM + 1)).sum().backward()
        gradients.append(torch.cat([torch.zeros_like(value).flatten() if value.grad is None else value.grad.flatten()
                                    for value in encoder.parameters()]))
    wanted, made = gradients
    assert 0 < (made - wanted).norm() < 0.01 * wanted.norm()


def test_rows_of_a_gpu_begin_at_states_too(known, bert, monkeypatch):
    monkeypatch.setattr(transformer, "ROW", 24)
    own = build_encoder(bert, known.idf, 0).eval().backbone
    texts = known.sides["train"].tokens(np.arange(50))
    wanted = own(texts, QUERY)
    own.model.set_attn_implementation("sdpa")    # as where there is a GPU
    torch.testing.assert_close(own._in_rows(texts, *own._lengths(texts)), wanted, rtol=1e-4, atol=1e-5)


def test_states_go_along_with_their_texts(known):
    side = known.sides["train"]
    texts, rows = side.tokens(np.arange(10)), np.array([7, 2])
    picked, part = side.tokens(rows), texts.part(slice(2, 8))
    both = join(picked, part)
    for made, wanted in ((picked, rows), (part, range(2, 8)), (both, [*rows, *range(2, 8)])):
        assert made.hidden.offsets.tolist() == made.hidden.host_offsets.tolist()
        for place, row in enumerate(wanted):
            own = made.hidden.values[made.hidden.offsets[place]:made.hidden.offsets[place + 1]]
            np.testing.assert_array_equal(own.numpy(), side.hidden[row])
    moved = both.to(torch.device("meta")).hidden
    assert moved.values.is_meta and moved.offsets.is_meta and not moved.host_offsets.is_meta
    assert join(picked, tokens([([5, 6], [])])).hidden is None, "where some are unknown, all layers run"
    padded = HiddenStates.of(np.arange(6, dtype=np.float16).reshape(3, 2), np.array([0, 1, 3])).at(torch.tensor([1]), 3)
    assert padded[0, :2].tolist() == [[2, 3], [4, 5]]


@pytest.mark.parametrize("name", ["ngame", "astra", "unidec", "siamesexml", "ramen", "ramen-unidec"])
def test_only_what_encodes_texts_reads_the_states(bert, name):
    method = made_by(name, with_encoder(toy.FAMILIES[name], bert))
    first, *steps = training_steps(method)
    assert (first.kind, first.needs) == (FROZEN, {})
    for step in steps:
        on_vectors = step.stage != "" and method.stage(step.stage).frozen
        assert ("hidden" in step.needs) != on_vectors, step.name
        assert step.kind != TRAIN or ("vectors" in step.needs) == on_vectors


def test_it_trains_what_the_whole_transformer_trains(corpus, bert, tmp_path):
    def trained(config, name):
        return train_all(corpus, made_by("unidec", replace(toy.UNIDEC, encoder=config, epochs=4)), tmp_path / name)

    made, again = trained(bert, "kept"), trained(bert, "again")
    whole = trained(replace(bert, cache_frozen=False), "whole")
    (name, losses), = ((name, [epoch["loss"] for epoch in epochs]) for name, epochs in list(made.metrics.items())[-1:])
    assert losses == [epoch["loss"] for epoch in again.metrics[name]]
    np.testing.assert_allclose(losses, [epoch["loss"] for epoch in whole.metrics[name]], rtol=0.02)


def test_anchors_have_states_where_graphs_are_trained_on(bert, tmp_path):
    corpus = toy_corpus(tmp_path / "corpus")
    method = made_by("ramen", with_encoder(toy.FAMILIES["ramen"], bert))
    known = with_states(corpus, method, tmp_path / "hidden")
    assert corpus.graphs
    assert all(len(graph.anchors.hidden) == len(graph.anchors) for graph in known.graphs.values())
    write_states(corpus, bert, tmp_path, graphs=False)
    assert all(graph.anchors.hidden is None for graph in Corpus(corpus.folder, tmp_path).graphs.values())


@pytest.mark.parametrize("changed", [{"cache_frozen": False}, {"kind": "bag"}, {"trained_layers": 0},
                                     {"trained_layers": -1}])
def test_nothing_is_kept_where_no_layer_is_frozen_or_none_is_trained(bert, changed):
    steps = training_steps(made_by("ngame", replace(toy.NGAME, encoder=replace(bert, **changed))))
    assert all(step.kind != FROZEN and "hidden" not in step.needs for step in steps)


def test_all_layers_trained_leave_none_to_run_once(corpus, bert, tmp_path):
    with pytest.raises(ValueError, match=r"trained_layers must be at most 2, the encoder's layers less one, or "
                                         r"encoder\.cache_frozen=false, got 3"):
        write_states(corpus, replace(bert, trained_layers=3), tmp_path, graphs=False)


def test_a_transformer_that_cannot_begin_at_its_top_layers(corpus, bert, tmp_path, monkeypatch):
    """Its states alone would give other vectors."""
    whole = Transformer.frozen_states

    def of_other_layers(self, texts):
        states = whole(self, texts)
        return replace(states, values=states.values.flip(0))

    monkeypatch.setattr(Transformer, "frozen_states", of_other_layers)
    with pytest.raises(ValueError, match=r"cannot begin at its top layers; set encoder\.cache_frozen=false"):
        write_states(corpus, bert, tmp_path, graphs=False)
    assert list(tmp_path.iterdir()) == []
