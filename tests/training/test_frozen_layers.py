"""Frozen layers, run once: what follows begins at the states that they made, and gives the same vectors and models."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.encoding import tokens
from tests.support.toy import made_by, toy_corpus
from xcmodels.checks import Unusable
from xcmodels.data import frozen_states, seen_texts
from xcmodels.data.corpus import Corpus
from xcmodels.data.frozen_states import FrozenStates
from xcmodels.data.tokens import join
from xcmodels.nn import text_layout
from xcmodels.nn.encoder_config import QUERY, EncoderConfig
from xcmodels.nn.encoders import HeadConfig, build_encoder, encode_all, siamese
from xcmodels.nn.transformer import Transformer
from xcmodels.retrieval.lexicon import make_lexicon
from xcmodels.training.frozen_layers import with_states, write_states
from xcmodels.training.local_run import run_frozen_layers, train_all
from xcmodels.training.step_graph import FROZEN, TRAIN, training_steps

DIM, MOST, VOCABULARY = 16, 9, 314    # of the toy corpus, as many
SIZES = {"num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 32, "vocab_size": VOCABULARY}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


def saved(folder, model, **changed) -> EncoderConfig:
    """Save a transformer; return the settings of an encoder of which the top one of its layers is trained."""
    model.save_pretrained(folder)
    return replace(EncoderConfig(kind="transformer", source=str(folder), batch=64, bf16=False, trained_layers=1,
                                 drops=False, cache_frozen=True, max_tokens=MOST), **changed)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> EncoderConfig:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return saved(tmp_path_factory.mktemp("bert"), BertModel(BertConfig(
        **SIZES, hidden_size=DIM, intermediate_size=24, initializer_range=0.5)))


def other(name, folder) -> EncoderConfig:
    """A transformer of another kind; ELECTRA's embeddings are narrower than its states."""
    from transformers import DistilBertConfig, DistilBertModel, ElectraConfig, ElectraModel

    torch.manual_seed(0)
    if name == "electra":
        return saved(folder, ElectraModel(ElectraConfig(
            **SIZES, embedding_size=8, hidden_size=DIM, intermediate_size=24, initializer_range=0.5)))
    return saved(folder, DistilBertModel(DistilBertConfig(
        vocab_size=VOCABULARY, n_layers=3, n_heads=2, max_position_embeddings=32, dim=DIM, hidden_dim=24,
        initializer_range=0.5)))


@pytest.fixture(scope="module")
def known(corpus, bert, tmp_path_factory) -> Corpus:
    """The corpus with the states of its texts."""
    write_states(corpus, bert, folder := tmp_path_factory.mktemp("states"), graphs=True)
    return with_states(corpus, folder)


def with_encoder(config, encoder):
    return replace(config, base=with_encoder(config.base, encoder)) if hasattr(config, "base") else replace(
        config, encoder=encoder)


def test_states_are_those_between_two_layers(corpus, known, bert):
    model = build_encoder(bert, corpus.idf, 0).eval().backbone.model
    side, states = corpus.sides["train"], known.sides["train"].states
    assert known.sides["test"].states is None and corpus.sides["train"].states is None
    for row in (0, 1, 63, 64, len(side) - 1):
        ids = side.tokens(np.array([row])).ids[:MOST]
        wanted = model(input_ids=torch.tensor([[101, *ids, 102]]), output_hidden_states=True).hidden_states[2][0]
        np.testing.assert_allclose(states[row].astype(np.float32), wanted.detach().numpy(), rtol=0, atol=5e-3)


def close_but_not_equal(corpus, known, config, side):
    """Check the vectors of a side's texts, by layers that were trained, from their states against those from all."""
    encoder = build_encoder(config, corpus.idf, 0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    wanted, made = (encode_all(encoder, each.sides[side], QUERY) for each in (corpus, known))
    assert not np.array_equal(made, wanted)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=5e-3)


@pytest.mark.parametrize("kind", ["transformer", "both"])
@pytest.mark.parametrize("side", ["train", "label"])
def test_vectors_from_states_are_those_of_the_texts(corpus, known, bert, side, kind):
    close_but_not_equal(corpus, known, replace(bert, kind=kind), side)


@pytest.mark.parametrize("name", ["distilbert", "electra"])
def test_other_transformers_begin_at_states_too(corpus, name, tmp_path):
    config = replace(other(name, tmp_path / "model"), max_tokens=0)
    (tmp_path / "states").mkdir()
    write_states(corpus, config, tmp_path / "states", graphs=False)
    close_but_not_equal(corpus, with_states(corpus, tmp_path / "states"), config, "train")


def test_frozen_layers_do_not_run_again(corpus, known, bert):
    encoder, runs = build_encoder(bert, corpus.idf, 0).train(), []
    for number, layer in enumerate(encoder.backbone.model.encoder.layer):
        layer.register_forward_hook(lambda *_, number=number: runs.append(number))
    encoder(known.sides["train"].tokens(np.arange(4)), QUERY)
    assert set(runs) == {2}
    assert len(encoder.backbone.model.encoder.layer) == 3, "the model is whole again"
    encoder(corpus.sides["train"].tokens(np.arange(4)), QUERY)
    assert set(runs) == {0, 1, 2}


def test_states_are_of_no_use_to_a_transformer_that_is_trained_whole(corpus, known, bert):
    whole = build_encoder(replace(bert, trained_layers=-1), corpus.idf, 0)
    wanted, made = (encode_all(whole, each.sides["label"], QUERY) for each in (corpus, known))
    np.testing.assert_array_equal(made, wanted)


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


@pytest.mark.parametrize("bf16", [False, True])
def test_rows_of_a_gpu_begin_at_states_too(known, bert, monkeypatch, *, bf16):
    monkeypatch.setattr(text_layout, "ROW", 24)
    own = build_encoder(bert, known.idf, 0).train().backbone
    texts = known.sides["train"].tokens(np.arange(50))
    wanted = own(texts, QUERY)
    own.model.set_attn_implementation("sdpa")    # as where there is a GPU
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        made = own._in_rows(texts, *own._lengths(texts))
    torch.testing.assert_close(made, wanted, rtol=0, atol=0.1 if bf16 else 1e-5)
    assert len(own.model.encoder.layer) == 3


def test_states_go_along_with_their_texts(known):
    side, label = known.sides["train"], known.sides["label"]
    texts, rows = side.tokens(np.arange(10)), np.array([7, 2])
    picked, part = side.tokens(rows), texts.part(slice(2, 8))
    both = join(picked, label.tokens(rows), part)
    for made, wanted in ((picked, [(side, row) for row in rows]), (part, [(side, row) for row in range(2, 8)]),
                         (both, [*((each, row) for each in (side, label) for row in rows),
                                 *((side, row) for row in range(2, 8))])):
        every = np.arange(len(wanted))
        np.testing.assert_array_equal(made.states.read(every), np.concatenate([of.states[row] for of, row in wanted]))
        for place, (of, row) in enumerate(wanted):
            own = made.states.padded(every, 30)[place]
            np.testing.assert_array_equal(own[:len(of.states[row])], of.states[row])
            assert not own[len(of.states[row]):].any()
    assert both.to(torch.device("meta")).states is both.states
    assert join(picked, tokens([([5, 6], [])])).states is None, "where some are unknown, all layers run"


def test_who_reads_ids_alone_reads_no_states(known, monkeypatch):
    """Training texts are read by 65,536 for their digests: their states would be gigabytes."""
    monkeypatch.setattr(frozen_states.FrozenStates, "read", lambda *_: pytest.fail("states were read"))
    assert len(seen_texts.trained_on(known))
    make_lexicon(known.sides["train"], VOCABULARY).side(known.sides["label"])


@pytest.mark.parametrize("name", ["ngame", "astra", "unidec", "siamesexml", "ramen", "ramen-unidec"])
def test_only_what_encodes_texts_reads_the_states(bert, name):
    method = made_by(name, with_encoder(toy.FAMILIES[name], bert))
    first, *steps = training_steps(method)
    assert (first.kind, first.needs) == (FROZEN, {})
    for step in steps:
        on_vectors = step.stage != "" and method.stage(step.stage).on_fixed_vectors
        assert ("states" in step.needs) != on_vectors, step.name
        assert step.kind != TRAIN or ("vectors" in step.needs) == on_vectors


@pytest.mark.parametrize("changed", [{"cache_frozen": False}, {"kind": "bag"}, {"trained_layers": 0},
                                     {"trained_layers": -1}])
def test_nothing_is_kept_where_no_layer_is_frozen_or_none_is_trained(bert, changed):
    steps = training_steps(made_by("ngame", replace(toy.NGAME, encoder=replace(bert, **changed))))
    assert all(step.kind != FROZEN and "states" not in step.needs for step in steps)


def test_it_trains_what_the_whole_transformer_trains(corpus, bert, tmp_path):
    def losses(corpus, config, name):
        made = train_all(corpus, made_by("unidec", replace(toy.UNIDEC, encoder=config, epochs=4)), tmp_path / name)
        return made.corpus, [epoch["loss"] for epochs in made.metrics.values() for epoch in epochs]

    (tmp_path / "kept" / "states").mkdir(parents=True)
    (tmp_path / "kept" / "states" / "train.offsets.npy").touch()    # of a run that was killed
    known, made = losses(corpus, bert, "kept")
    _, whole = losses(known, replace(bert, cache_frozen=False), "whole")
    assert made != whole, "states were not used"
    np.testing.assert_allclose(made, whole, rtol=1e-3)
    assert losses(corpus, bert, "again")[1] == made


def test_anchors_have_states_where_graphs_are_trained_on(bert, tmp_path):
    corpus = toy_corpus(tmp_path / "corpus")
    method = made_by("ramen", with_encoder(toy.FAMILIES["ramen"], bert))
    known = run_frozen_layers(corpus, method, tmp_path / "states")
    assert corpus.graphs
    assert all(len(graph.anchors.states) == len(graph.anchors) for graph in known.graphs.values())
    write_states(corpus, bert, tmp_path, graphs=False)
    assert all(graph.anchors.states is None for graph in with_states(corpus, tmp_path).graphs.values())
    (tmp_path / "label.offsets.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"label\.offsets"):
        with_states(corpus, tmp_path)


def test_all_layers_trained_leave_none_frozen(corpus, bert, tmp_path):
    with pytest.raises(Unusable, match=r"trained_layers is 3, all of the encoder's layers, so none is frozen; lower"):
        write_states(corpus, replace(bert, trained_layers=3), tmp_path, graphs=False)


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda states: states.flip(0), r"makes other vectors where it begins at its top layers"),
    (lambda states: states[:, :DIM // 2], r"cannot begin at its top layers \(.*\)")])
def test_a_transformer_that_cannot_begin_at_its_top_layers(corpus, bert, tmp_path, monkeypatch, *, spoil, message):
    """Its states alone give other vectors, or none."""
    whole = Transformer.frozen_states
    monkeypatch.setattr(Transformer, "frozen_states", lambda self, texts: spoil(whole(self, texts)))
    with pytest.raises(Unusable, match=message + r"; set encoder\.cache_frozen=false"):
        write_states(corpus, bert, tmp_path, graphs=False)
    assert list(tmp_path.iterdir()) == []


def test_states_beyond_float16_are_refused(corpus, bert, tmp_path, monkeypatch):
    whole, calls = Transformer.frozen_states, []

    def too_large_later(self, texts):
        calls.append(len(texts))
        return whole(self, texts) * (1e6 if len(calls) > 4 else 1)    # of neither side that is tried

    monkeypatch.setattr(Transformer, "frozen_states", too_large_later)
    with pytest.raises(Unusable, match=r"states beyond the range of float16; set encoder\.cache_frozen=false"):
        write_states(corpus, bert, tmp_path, graphs=False)


def test_states_of_two_files_are_told_apart():
    first, second = (np.arange(first, first + 12, dtype=np.float16).reshape(6, 2) for first in (0, 100))
    states = frozen_states.joined([FrozenStates.of(second, np.array([1]), np.array([2])),
                                   FrozenStates.of(first, np.array([0, 3]), np.array([1, 3]))])
    assert states.read(np.array([2, 0])).tolist() == [[6, 7], [8, 9], [10, 11], [102, 103], [104, 105]]
    assert states.take(slice(1, 3)).read(np.array([0])).tolist() == [[0, 1]]
