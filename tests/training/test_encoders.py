"""Encoders: the bag of tokens against a loop, the transformer against itself, and both through a folder."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.encoding import BAG, VOCABULARY, both, rows_of, tokens, trained
from tests.support.toy import toy_corpus
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, HeadConfig, Layout, build_encoder, encode_all, load_encoder, save_encoder


def weight_of_place(encoder, which, side, place, title):
    """A sum's weight of a token's side, field and place in it; the places past the last share its weight."""
    if encoder.backbone.places is None:
        return 1.0
    field, at = (0, place) if place < title else (1, place - title)
    places = encoder.backbone.places[which][0 if encoder.config.tied or side == QUERY else 1]
    return places[field, min(at, places.shape[1] - 1)].double()


def by_hand(encoder, made, side):
    """normalise(u + U gelu(W [u, u'] + b)), u the unit sum of idf * place * embedding of title and content rows."""
    table, idf = encoder.backbone.table.weight.double(), encoder.backbone.idf.double()
    head = encoder.heads[side if side in encoder.heads else QUERY]
    out = []
    for ids, title in rows_of(made):
        units = []
        for which in range(encoder.backbone.sums):
            total = torch.zeros(encoder.backbone.dim).double()
            for place, token in enumerate(ids):
                row = token if place < title else token + encoder.backbone.vocabulary
                total = total + idf[row] * weight_of_place(encoder, which, side, place, title) * table[row]
            units.append(total / max(float(total.detach().norm()), 1e-12))
        hidden = head.inner.weight.double() @ torch.cat(units) + head.inner.bias.double()
        gelu = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        moved = units[0] + head.outer.weight.double() @ gelu
        out.append(moved / max(float(moved.detach().norm()), 1e-12))
    return torch.stack(out).float()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("side", [QUERY, LABEL])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("places", "sums"), [(0, 1), (1, 2), (3, 1), (3, 3), (24, 2)])
def test_a_bag_equals_a_loop(idf, texts, tied, side, training, places, sums):  # noqa: PLR0917
    encoder = trained(build_encoder(replace(BAG, tied=tied, places=places, sums=sums), idf, 0)).train(training)
    torch.testing.assert_close(encoder(texts, side), by_hand(encoder, texts, side), rtol=1e-5, atol=1e-5)


HEADS = {"unit": HeadConfig("unit"), "residual": HeadConfig("residual", dropout=0.5),
         "tanh": HeadConfig("tanh", 7, 0.5), "linear": HeadConfig("linear")}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("places", "sums"), [(0, 1), (1, 2), (3, 1), (3, 3), (24, 2)])
@pytest.mark.parametrize("view", [*HEADS, "label of all"])
def test_one_text_by_numpy_is_the_same_vector(idf, texts, tied, places, sums, view):  # noqa: PLR0917
    layout = Layout(HEADS, {**{name: (name,) for name in HEADS}, "label of all": tuple(HEADS)})
    encoder = build_encoder(replace(BAG, tied=tied, places=places, sums=sums), idf, 0, layout)
    one = trained(encoder).eval().in_numpy(view)
    wanted = encoder(texts, view).detach().numpy()
    found = [one(texts.part(slice(row, row + 1))) for row in range(len(texts))]
    assert [each.shape for each in found] == [(1, encoder.width(view))] * len(texts)
    assert {each.dtype for each in found} == {np.dtype(np.float32)}
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-6)


def test_at_the_start_the_head_is_the_identity_and_fields_are_alike(idf, texts):
    encoder = build_encoder(BAG, np.ones_like(idf), 0).eval()
    assert torch.equal(encoder.backbone.table.weight[:VOCABULARY], encoder.backbone.table.weight[VOCABULARY:])
    first = encoder.backbone(texts, QUERY)[:, :encoder.backbone.dim]
    torch.testing.assert_close(encoder(texts, QUERY), torch.nn.functional.normalize(first, dim=1))
    torch.testing.assert_close(encoder(texts, QUERY), encoder(texts, LABEL))
    other = tokens([(ids, []) for ids, _ in rows_of(texts)])
    torch.testing.assert_close(encoder(other, QUERY), encoder(texts, QUERY))


def test_the_power_of_idf(idf):
    for power in (0.0, 0.5, 1.0):
        weights = build_encoder(replace(BAG, idf_power=power), idf, 0).backbone.idf
        assert weights.numpy() == pytest.approx(idf**power, rel=1e-6)
        assert weights.dtype == torch.float32


def test_gradients_do_not_depend_on_how_threads_meet():
    """A batch large enough for torch to share it out; the same on every repetition, bit for bit."""
    rng, before = np.random.default_rng(0), torch.get_num_threads()
    many = tokens([(rng.integers(4, VOCABULARY, 30), rng.integers(4, VOCABULARY, 70)) for _ in range(800)])
    pull = torch.randn(800, 12, generator=torch.Generator().manual_seed(0))
    seen = []
    try:
        torch.set_num_threads(2)
        encoder = build_encoder(BAG, np.ones(2 * VOCABULARY, np.float32), 0).train()
        for _ in range(25):
            encoder.zero_grad()
            (encoder(many, LABEL) * pull).sum().backward()
            seen.append([encoder.backbone.table.take_gradients()[1], *(each.grad for each in encoder.parameters()
                                                                   if each.grad is not None)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for each in seen[1:] for one, other in zip(seen[0], each, strict=True))


def test_tied_or_a_head_a_side(idf, texts):
    tied, untied = (trained(build_encoder(replace(BAG, tied=tied), idf, 0)).eval() for tied in (True, False))
    assert torch.equal(tied(texts, QUERY), tied(texts, LABEL))
    assert not torch.allclose(untied(texts, QUERY), untied(texts, LABEL))


@pytest.mark.parametrize("side", [QUERY, LABEL])
def test_vectors_are_unit_and_an_empty_text_is_finite(idf, texts, side):
    encoder = trained(build_encoder(BAG, idf, 0)).eval()
    vectors = encoder(texts, side)
    assert vectors.norm(dim=1).tolist() == pytest.approx([1.0] * len(texts), rel=1e-5)
    fresh = build_encoder(BAG, idf, 0).train()
    empty = fresh(tokens([([], [])] * 2), side)
    assert torch.isfinite(empty).all()
    empty.sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in fresh.heads[side].parameters())
    assert fresh(tokens([]), side).shape == (0, 12)


def test_tokens_are_left_out_in_training_only(idf):
    encoder = trained(build_encoder(replace(BAG, token_dropout=0.4), idf, 0))
    many = tokens([([i], []) for i in range(4, 40)] * 40)
    assert torch.equal(encoder.eval().backbone(many, QUERY), encoder.backbone(many, QUERY))
    whole = encoder.backbone(many, QUERY)
    torch.manual_seed(0)
    part = encoder.train().backbone(many, QUERY)
    gone = (part == 0).all(1)
    assert 0.36 < gone.float().mean() < 0.44
    torch.testing.assert_close(part[~gone], whole[~gone])
    torch.manual_seed(0)
    assert torch.equal(encoder.backbone(many, QUERY), part)


def test_both_sides_at_once(idf, texts):
    encoder = trained(build_encoder(BAG, idf, 0)).train()
    labels = tokens([([9, 5], [5]), ([], [7])])
    queries, others = both(encoder, texts, labels)
    torch.testing.assert_close(queries, encoder(texts, QUERY))
    torch.testing.assert_close(others, encoder(labels, LABEL))
    encoder.backbone.table.take_gradients()
    (queries.sum() + others.sum()).backward()
    both(encoder, texts, labels)[0].sum().backward()
    assert encoder.backbone.table.take_gradients()[0].tolist() == sorted(
        {x + VOCABULARY * (place >= title) for made in (texts, labels) for ids, title in rows_of(made)
         for place, x in enumerate(ids)})


def test_the_seed_decides_the_start(idf):
    a, b, c = (build_encoder(BAG, idf, seed).backbone.table.weight for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_bag_through_a_folder(idf, texts, tmp_path):
    config = replace(BAG, tied=False, token_dropout=0.3, batch=7)
    encoder = trained(build_encoder(config, idf, 0)).eval()
    save_encoder(encoder, tmp_path / "encoder")
    state = torch.get_rng_state()
    again = load_encoder(tmp_path / "encoder").eval()
    assert torch.equal(torch.get_rng_state(), state), "reading draws nothing from the generator of the process"
    assert (again.backbone.dim, again.backbone.batch, again.backbone.dropout) == (12, 7, 0.3)
    for side in (QUERY, LABEL):
        assert torch.equal(again(texts, side), encoder(texts, side))
    again.train()(texts, QUERY).sum().backward()


def test_kinds_and_sources_that_do_not_exist(idf, tmp_path):
    with pytest.raises(ValueError, match="kind must be one of bag, transformer, both, got 'bags'"):
        replace(BAG, kind="bags")
    with pytest.raises(ValueError, match="a folder or a hub id where kind is transformer, got 'random'"):
        EncoderConfig(kind="transformer", source="random")
    with pytest.raises(ValueError, match=r"encoder\.source '.*' is neither a folder of a model nor one that can be"):
        build_encoder(replace(BAG, source=str(tmp_path)), idf, 0)


def test_encoding_a_side_in_parts(tmp_path):
    corpus = toy_corpus(tmp_path, queries=50, labels=8, tests=5, validation=5)
    config = replace(BAG, batch=7, token_dropout=0.5)
    encoder = trained(build_encoder(config, corpus.idf, 0)).train()
    whole = encode_all(encoder, corpus.sides["train"], QUERY)
    assert whole.shape == (50, 12)
    assert whole.dtype == np.float32
    some = np.array([33, 2, 2, 49, 0, 7, 8, 9])
    np.testing.assert_allclose(encode_all(encoder, corpus.sides["train"], QUERY, rows=some), whole[some], atol=1e-6)
    with torch.no_grad():
        at_once = encoder.eval()(corpus.sides["train"].tokens(np.arange(50)), QUERY).numpy()
    np.testing.assert_allclose(whole, at_once, atol=1e-6)
    assert encode_all(encoder, corpus.sides["train"], QUERY, rows=np.array([], np.int64)).shape == (0, 12)


