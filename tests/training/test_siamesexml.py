"""SiameseXML: the likelihoods as the paper writes them, batches of labels, shortlist, partitions, what is served."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.support import toy
from tests.support.toy import SIAMESEXML
from tests.unit.test_losses import case
from xcmodels.data import seeds
from xcmodels.data.batching import sample_pair
from xcmodels.data.corpus import Ragged
from xcmodels.method import Mined
from xcmodels.methods.presets import PRESETS, resolve
from xcmodels.methods.siamesexml.config import SiamesexmlConfig
from xcmodels.methods.siamesexml.shortlist import smoothed as smoothed_labels
from xcmodels.methods.siamesexml.stages import EXTREME, INTERMEDIATE, SIAMESE, ExtremeModule, SiameseModule
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.nn.losses import bounded_nll
from xcmodels.nn.row_table import RowTable
from xcmodels.retrieval.centroids import label_centroids, queries_of
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import embed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["siamesexml", "siamesexml partitions", "siamesexml++"])
def trained(request):
    return toy.trained(request.param)


def config_of(trained) -> SiamesexmlConfig:
    return trained.method.stage(SIAMESE).config


def oracle(scores, positives, weights, *, c, d, most):
    """Mean over rows of -sum of ln p(y, s), p(+1, s) = c e^(ds) / e^d, p(-1, s) = 1 - p(+1, s), over S of each row."""
    total = 0.0
    for r in range(scores.shape[0]):
        present = [k for k in range(scores.shape[1]) if weights[r, k] > 0]
        pushed = sorted((k for k in present if not positives[r, k]), key=lambda k, r=r: -float(scores[r, k].detach()))
        for k in present:
            if positives[r, k]:
                total = total - weights[r, k] * torch.log(c * torch.exp(d * scores[r, k]) / math.exp(d))
        for k in pushed[:int(most[r])]:
            total = total - torch.log(1 - c * torch.exp(d * scores[r, k]) / math.exp(d))
    return total / scores.shape[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(0.9, 1.5), (0.75, 3.0)]), st.integers(0, 14))
def test_the_bounded_likelihood_equals_equation_5(seed, likelihood, most):
    made, positives, weights = case(seed)
    scores = torch.tanh(made.detach()).requires_grad_()
    hardest = torch.randint(0, most + 1, (len(scores),))
    c, d = likelihood
    mine = bounded_nll(scores, positives, weights, c=c, d=d, hard_negatives=hardest)
    wanted = oracle(scores, positives, weights, c=c, d=d, most=hardest) + 0 * scores.sum()
    torch.testing.assert_close(mine, wanted)
    torch.testing.assert_close(torch.autograd.grad(mine, scores)[0], torch.autograd.grad(wanted, scores)[0])


def test_a_perfect_score_has_a_bounded_loss_and_gradient():
    scores = torch.tensor([[1.0 + 1e-7, 1.0 + 1e-7]], requires_grad=True)
    loss = bounded_nll(scores, torch.tensor([[True, False]]), None, c=0.9, d=1.5, hard_negatives=torch.tensor([1]))
    assert float(loss.detach()) == pytest.approx(-math.log(0.9) - math.log(0.1), rel=1e-4)
    assert torch.isfinite(torch.autograd.grad(loss, scores)[0]).all()


def test_labels_are_drawn_by_a_power_of_their_frequency(corpus):
    stage = SiameseModule(replace(SIAMESEXML, power=0.45))
    drawn = np.concatenate([stage.order(corpus, Mined(), epoch) for epoch in range(400)])
    frequencies = np.zeros(corpus.n_labels)
    for row in corpus.training_rows():
        frequencies[corpus.positives["train"][row]] += 1
    share = np.bincount(drawn, minlength=corpus.n_labels) / len(drawn)
    off = {power: np.abs(share - frequencies**power / (frequencies**power).sum()).sum() for power in (0.3, 0.45, 0.6)}
    assert min(off, key=off.get) == 0.45 and off[0.45] < 0.06


def test_a_batch_of_labels(corpus):
    stage = SiameseModule(SIAMESEXML)
    labels = np.array([3, 7, 3, 50, 0, 41])
    batch = stage.batch(corpus, stage.rounds[0], Mined(), labels, seeds.generator(0, "labels"))
    first, second = batch.sides["queries"].ids.tolist(), batch.sides["seconds"].ids.tolist()
    rows, block, centroid = set(corpus.training_rows().tolist()), batch.blocks["text"], batch.blocks["centroid"]
    for r, label in enumerate(labels):
        assert label in corpus.positives["train"][first[r]] and label in corpus.positives["train"][second[r]]
        assert {first[r], second[r]} <= rows, "nothing is drawn from the validation split"
        assert (first[r] == second[r]) == (len(queries_of(corpus, False)[label]) == 1), "the centroid is of two queries"
        for c, query in enumerate(first):
            true = label in corpus.positives["train"][query]
            banned = label in corpus.filters["train"][query]
            assert block.positives[r, c] == true
            counts = r == c or not (true or banned)
            assert float(block.weights[r, c]) == counts
            assert float(centroid.weights[r, c]) == (counts and first[r] != second[r])


def test_two_queries_of_a_label_are_drawn_alike_and_never_the_same():
    several = Ragged(np.array([0, 1, 5]), np.array([9, 2, 4, 6, 8]))
    first, second = sample_pair(several, np.repeat([0, 1], 6000), seeds.generator(0, "pairs"))
    assert set(first[:6000]) == set(second[:6000]) == {9}
    pairs, counts = np.unique(np.stack([first, second])[:, 6000:], axis=1, return_counts=True)
    assert pairs.shape[1] == 12 and (pairs[0] != pairs[1]).all()
    assert np.abs(counts / 500 - 1).max() < 0.2


def test_what_is_indexed_is_what_module_i_trained(corpus, trained):
    """Texts, centroids and training queries of the indexes are module I's embeddings, whose loss is on the cosines."""
    config = config_of(trained)
    if config.joint:
        pytest.skip("module IV trains the embeddings further, and they are indexed as it leaves them")
    model, retriever = trained.method.stage(SIAMESE).build(corpus, {}).eval(), Retriever.load(trained.retriever)
    model.load_state_dict(load_file(trained.outs["siamese round 0"] / "model.safetensors"))
    rows = np.flatnonzero(corpus.positives["train"].lengths)
    with torch.no_grad():
        queries = model(corpus.sides["train"].tokens(rows), QUERY).numpy()
        labels = model(corpus.sides["label"].tokens(np.arange(corpus.n_labels)), "label").numpy()
    np.testing.assert_allclose(retriever.indexes["queries"].vectors, queries, atol=1e-5)
    np.testing.assert_allclose(retriever.indexes["texts"].vectors, smoothed_labels(config, corpus, labels), atol=1e-5)
    shown = retriever.embed(corpus.sides["train"].tokens(rows[:50]))
    np.testing.assert_allclose(shown[:, :queries.shape[1]], queries[:50], atol=1e-5)
    centroids = label_centroids(corpus, trained.vectors["queries"], with_validation=True)
    share = config.scored_centroid
    np.testing.assert_allclose(retriever.scorer.embeddings, labels + share * centroids, atol=1e-5)


@pytest.mark.parametrize("centroid", [0.3, 0.0])
def test_module_i_is_equation_6(corpus, centroid):
    stage = SiameseModule(replace(SIAMESEXML, centroid=centroid))
    model = stage.build(corpus, {}).eval()
    batch = stage.batch(corpus, stage.rounds[0], Mined(), np.arange(20), seeds.generator(0, "labels"))
    sides, (block, several) = batch.sides, (batch.blocks[name] for name in ("text", "centroid"))
    one, two = (model(sides[name].tokens, QUERY) for name in ("queries", "seconds"))
    text, how = model(sides["labels"].tokens, "label"), {"c": 0.9, "d": 1.5, "most": [3] * 20}
    wanted = {"text": (1 - centroid) * oracle(text @ one.T, block.positives, block.weights, **how)}
    if centroid:
        middle = F.normalize(one + two, dim=1)
        wanted["centroid"] = centroid * oracle(middle @ one.T, several.positives, several.weights, **how)
    mine = stage.loss(model, batch)
    assert mine.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)


def test_module_iv_scores_by_the_residual_layer_of_a_labels_partition(corpus, trained):
    stage, round_ = trained.method.stage(EXTREME), trained.rounds["extreme round 0"]
    model = stage.build(corpus, {}).eval()
    model.load_state_dict(load_file(trained.outs[round_.name] / "model.safetensors"))
    rows = corpus.training_rows()[:12]
    batch = stage.batch(corpus, round_, trained.mined[round_.name], rows, seeds.generator(0, "extreme"))
    columns, encoder = batch.blocks["shortlist"].columns, model.encoder
    inner = encoder(corpus.sides["train"].tokens(rows), INTERMEDIATE)
    scores, counts = model(batch, 2)
    block, every = batch.blocks["shortlist"], torch.zeros(columns.shape)
    for r in range(len(rows)):
        for c, label in enumerate(columns[r].tolist()):
            head = encoder.heads[f"extreme{label % stage.config.partitions}"]
            x = F.normalize(head(inner[r:r + 1]), dim=1)[0].detach()
            w = F.normalize(model.labels.weight[label], dim=0)
            every[r, c] = x @ w
    present = block.weights > 0
    for r in range(len(rows)):
        pushed = torch.nonzero(present[r] & ~block.positives[r])[:, 0].tolist()
        hardest = sorted(pushed, key=lambda c, r=r: -float(every[r, c]))[:2 * int(block.positives[r].sum())]
        pulled = torch.nonzero(present[r] & block.positives[r])[:, 0].tolist()
        assert torch.nonzero(counts[r])[:, 0].tolist() == sorted(pulled + hardest)
    torch.testing.assert_close(scores.detach()[counts], every[counts], rtol=1e-4, atol=1e-5)


def test_module_iv_takes_kappa_negatives_of_every_positive_though_few_are_drawn(corpus, trained):
    """S_i of section 3 has all of P_i, and kappa |P_i| negatives; one that is drawn for three weighs as three."""
    stage, round_ = trained.method.stage(EXTREME), trained.rounds["extreme round 0"]
    few = type(stage)(replace(stage.config, positives=1))
    rows = corpus.training_rows()
    rows = rows[corpus.train_positives.lengths[rows] == 3][:5]
    batch = few.batch(corpus, round_, trained.mined[round_.name], rows, seeds.generator(0, "extreme"))
    model, block = few.build(corpus, {}).eval(), batch.blocks["shortlist"]
    _, counts = model(batch, 2)
    assert len(rows) and block.positives.sum(1).tolist() == [1] * len(rows)
    assert ((block.weights > 0) & ~block.positives).sum(1).min() > 6
    assert (counts & ~block.positives).sum(1).tolist() == [6] * len(rows)


def test_hard_negatives_come_from_the_three_indexes(corpus, trained):
    """By brute force: texts smoothed over correlated labels, centroids, the labels of the nearest training queries."""
    round_ = trained.rounds["extreme round 0"]
    known = embed(corpus, trained.method.stage(SIAMESE), trained.outs["siamese round 0"])
    queries, labels, rows = known["queries"], known["labels"], corpus.training_rows()
    centroids = np.zeros_like(labels)
    for row in rows:
        centroids[corpus.positives["train"][row]] += queries[row]
    centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    smoothed = smoothed_labels(config_of(trained), corpus, labels)
    assert np.linalg.norm(smoothed, axis=1) == pytest.approx(np.ones(len(smoothed)), abs=1e-5)
    for row in rows[:25]:
        near = rows[np.argsort(-(queries[rows] @ queries[row]), kind="stable")[:4]]
        proposed = {label for other in near for label in corpus.positives["train"][other].tolist()}
        for vectors in (smoothed, centroids):
            proposed |= {*np.argsort(-(vectors @ queries[row]), kind="stable")[:20].tolist()}
        proposed -= {*corpus.positives["train"][row].tolist(), *corpus.filters["train"][row].tolist()}
        worth = (labels + centroids) @ queries[row]
        best = sorted(proposed, key=lambda label, worth=worth: -worth[label])[:8]
        assert trained.mined[round_.name].negatives[row].tolist() == best


def test_answers_mix_classifiers_with_texts_and_centroids(corpus, trained):
    retriever = Retriever.load(trained.retriever)
    mix, d = retriever.scorer, retriever.scorer.classifiers.shape[1]
    assert set(retriever.proposers) == {"texts", "centroids", "queries"}
    assert len(retriever.indexes["queries"].vectors) == (corpus.positives["train"].lengths > 0).sum()
    assert mix.alpha == trained.measured["alpha"] and 0 <= mix.alpha <= 1
    assert trained.measured["validation/P/1"] >= max(trained.measured["validation/P/1/classifiers"],
                                                     trained.measured["validation/P/1/embeddings"])
    tokens = retriever.tokenizer(["l3w1 l3w0"], ["l3w2"])
    query = retriever.embed(tokens)
    ids, scores = retriever.search(tokens, 5)
    embedded = encode_all(retriever.encoder, corpus.sides["label"], LABEL) + \
        config_of(trained).scored_centroid * retriever.indexes["centroids"].vectors
    for label, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True):
        part = label % mix.partitions
        x = query[0, d * (1 + part):d * (2 + part)]
        similar = query[0, :d] if config_of(trained).scored_query == "intermediate" else x
        wanted = mix.alpha * (mix.classifiers[label] @ x) + (1 - mix.alpha) * (embedded[label] @ similar)
        assert score == pytest.approx(float(wanted), abs=1e-5)
    assert ids[0, 0] == 3


def test_only_the_joint_method_moves_the_backbone_and_none_the_heads(trained):
    """Were the queries' head to move, label texts, read by a head of their own, would be left behind."""
    before = load_file(trained.outs["siamese round 0"] / "model.safetensors")
    after = load_file(trained.outs["extreme round 0"] / "model.safetensors")
    same = torch.equal(before["backbone.table.weight"], after["encoder.backbone.table.weight"])
    assert same != config_of(trained).joint
    for side in ("query", "label"):
        assert torch.equal(before[f"heads.{side}.inner.weight"], after[f"encoder.heads.{side}.inner.weight"])


@pytest.mark.parametrize("joint", [False, True])
def test_the_encoder_that_is_served_has_the_type_that_it_was_trained_in(corpus, joint):
    config = replace(SIAMESEXML, joint=joint, extreme=replace(SIAMESEXML.extreme, table_dtype="bfloat16"))
    model = ExtremeModule(config).build(corpus, {})
    (tokens,) = {module.weight.dtype for module in model.encoder.modules() if isinstance(module, RowTable)}
    assert (tokens, model.labels.weight.dtype) == (torch.bfloat16 if joint else torch.float32, torch.bfloat16)


def test_presets_hold_section_4():
    for method, joint in (("siamesexml", False), ("siamesexml++", True)):
        for preset in PRESETS[method]:
            made = resolve(method, preset, {"seed": "3"}).method
            assert made.seed == 3 and made.joint == joint
            assert (made.siamese.c, made.siamese.d, made.extreme.c, made.extreme.d) == (0.9, 1.5, 0.75, 3.0)
            paper = preset == "paper"
            assert made.centroid == 0.3
            assert (made.power, made.scored_centroid, made.scored_query) == (
                (0.45, 1.0, "final") if paper else (1.0, 0.0, "intermediate"))
