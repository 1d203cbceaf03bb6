"""ASTRA and Renee: the unbiased estimate, what a batch holds, what is mined when, training without label texts."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support import toy
from tests.support.toy import ASTRA, FAMILIES, NGAME, precision, toy_corpus
from xcmodels.data import seeds
from xcmodels.data.batching import Batch, BatchSide, shortlist_block, uniform_block
from xcmodels.data.corpus import Ragged, Side
from xcmodels.method import Mined
from xcmodels.methods.astra.method import astra
from xcmodels.methods.astra.stages import AstraStage, OneVsAll, prior_bias
from xcmodels.methods.presets import PRESETS, resolve
from xcmodels.nn.encoders import LABEL, QUERY, encode_all, load_encoder
from xcmodels.nn.losses import weighted_bce
from xcmodels.training.checkpoint import load_model, read_model
from xcmodels.training.local_run import embed, run_round, train_all

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained():
    return toy.trained("astra")


def test_how_far_classifiers_went_is_told_by_how_frequent_they_are(corpus, trained):
    model = OneVsAll(ASTRA, corpus)
    trained.method.stages[0].begin(model, corpus, None)
    start, frequencies = model.classifiers().copy(), corpus.frequencies(corpus.training_rows())
    load_model(model, trained.outs[list(trained.outs)[-1]])
    found: dict[str, list[float]] = {}
    for label, count in enumerate(frequencies.tolist()):
        went = np.linalg.norm(model.classifiers()[label] - start[label]) / np.linalg.norm(start[label])
        group = max(edge for edge in (0, 1, 2, 10) if edge <= count)
        found.setdefault(f"moved/{group}", []).append(went)
    assert trained.measured == pytest.approx({name: np.mean(values) for name, values in found.items()}, rel=1e-4)


def test_training_begins_with_the_encoder_of_module_m1_and_classifiers_at_its_label_embeddings(corpus):
    made = toy.trained("astra after M1")
    first, joint = made.method.stages
    before = made.outs[[name for name, round_ in made.rounds.items() if round_.stage == first.name][-1]]
    encoder = read_model(first, corpus, before)
    model = joint.build(corpus, {})
    joint.begin(model, corpus, before)
    assert all(torch.equal(value, encoder.state_dict()[name]) for name, value in model.encoder.state_dict().items())
    start = encode_all(encoder, corpus.sides["label"], LABEL)
    np.testing.assert_array_equal(model.classifiers(), start)
    end = read_model(joint, corpus, list(made.outs.values())[-1]).classifiers()
    moved = np.linalg.norm(end - start, axis=1) / np.linalg.norm(start, axis=1)
    frequencies = corpus.frequencies(corpus.training_rows())
    assert made.measured["moved/10"] == pytest.approx(moved[frequencies >= 10].mean(), rel=1e-4)
    served = load_encoder(made.retriever / "encoder")
    assert all(torch.equal(value, served.state_dict()[name].to(value)) for name, value in read_model(
        joint, corpus, list(made.outs.values())[-1]).encoder.state_dict().items())


@pytest.mark.parametrize(("changed", "message"), [
    ({}, "it has no module M1"),
    ({"m1": NGAME.m1, "dim": 24}, "dim must be 0 where start is encoder, got 24")])
def test_a_start_that_a_preset_cannot_make(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(ASTRA, start="encoder", **changed)


def test_learns_without_label_texts(tmp_path):
    """Classifiers begin about zero, and no label text is a training point."""
    corpus = toy_corpus(tmp_path / "corpus")
    nothing = Ragged(np.zeros(corpus.n_labels + 1, np.int64), np.empty(0, np.int32))
    corpus.sides["label"] = Side(nothing, np.zeros(corpus.n_labels, np.int32))
    config = replace(ASTRA, start="random", label_lr=0.3, epochs=16)
    assert precision(train_all(corpus, astra(config), tmp_path)) > 90


def test_learns_with_label_texts_as_points(tmp_path):
    corpus = toy_corpus(tmp_path / "corpus", augment=True)
    assert precision(train_all(corpus, astra(ASTRA), tmp_path)) > 90


def all_labels(scores, truth, banned):
    """Equation 1, a row: log(1 + e^-s) of positives, s + log(1 + e^-s) of the other labels but filter pairs."""
    total = 0.0
    for label, score in enumerate(scores):
        if label in truth:
            total = total + torch.log1p(torch.exp(-score))
        elif label not in banned:
            total = total + score + torch.log1p(torch.exp(-score))
    return total


def test_the_estimate_is_unbiased(tmp_path):
    """Lemma 4.1: the mean over every possible uniform draw is the loss over all labels, and so are its gradients."""
    corpus = toy_corpus(tmp_path, queries=60, labels=9, tests=5, validation=5)
    rng = np.random.default_rng(0)
    rows, k = np.array([3, 7, 8, 20]), 4
    scores = torch.randn(len(rows), 9, dtype=torch.float64, requires_grad=True)
    true, banned = corpus.positives["train"], corpus.filters["train"]
    free = [[label for label in range(9) if label not in true[row] and label not in banned[row]] for row in rows]
    mined = np.array([[*rng.permutation(each)[:2], -1] for each in free], dtype=np.int32)
    own = shortlist_block(corpus, rows, 9, mined, rng)
    found = weighted_bce(scores.gather(1, own.columns), own.positives, own.weights)
    draws = [np.array(pool) for pool in combinations(range(9), k)]
    for pool in draws:
        block = uniform_block(corpus, rows, pool, mined, 9 / k)
        found = found + weighted_bce(scores[:, pool], block.positives, block.weights) / len(draws)
    wanted = sum(all_labels(scores[i], true[row], banned[row]) for i, row in enumerate(rows)) / len(rows)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, scores)[0], torch.autograd.grad(wanted, scores)[0])


def test_some_positives_stand_for_all(corpus):
    """With fewer positives drawn than there are, the mean over draws is the sum over all of them."""
    rows = np.flatnonzero(corpus.positives["train"].lengths == 3)[:1]
    nothing = np.empty((1, 0), np.int32)
    sums = {}
    for seed in range(60):
        block = shortlist_block(corpus, rows, 2, nothing, np.random.default_rng(seed))
        assert block.positives.all()
        sums[frozenset(block.columns[0].tolist())] = block.weights[0].sum()
    assert len(sums) == 3 and all(len(drawn) == 2 for drawn in sums)
    assert all(total == pytest.approx(3.0) for total in sums.values())


def test_what_a_batch_holds(corpus, trained):
    last = list(trained.rounds.values())[-1]
    mined = trained.mined[last.name]
    rows = corpus.training_rows()[:40]
    batch = trained.method.stages[0].batch(corpus, last, mined, rows, seeds.generator(0, "batch"))
    own, uniform, pool = batch.blocks["shortlist"], batch.blocks["pool"], batch.sides["labels"].ids.tolist()
    assert pool == sorted(set(pool)) and len(pool) == 20
    for r, row in enumerate(rows):
        true, banned = corpus.positives["train"][row].tolist(), corpus.filters["train"][row].tolist()
        there = own.weights[r] > 0
        assert sorted(own.columns[r][own.positives[r]].tolist()) == true
        assert own.columns[r][there & ~own.positives[r]].tolist() == mined.negatives[row].tolist()
        excluded = {*true, *banned, *mined.negatives[row].tolist()}
        assert uniform.weights[r].tolist() == [0.0 if label in excluded else 3.0 for label in pool]
        assert not uniform.positives[r].any()
    biased = AstraStage(replace(ASTRA, unbiased=False)).batch(corpus, last, mined, rows, seeds.generator(0, "batch"))
    assert set(biased.blocks["pool"].weights.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", ["astra", "renee"])
def test_the_loss_is_the_papers(corpus, trained, name):
    stage = AstraStage(FAMILIES[name])
    model = stage.build(corpus, {}).train()
    stage.begin(model, corpus, None)
    last, rows = list(trained.rounds.values())[-1], corpus.training_rows()[:12]
    batch = stage.batch(corpus, last, trained.mined[last.name], rows, seeds.generator(0, "loss"))
    queries = model.encoder.heads[QUERY](model.encoder.backbone(batch.sides["queries"].tokens, QUERY))
    logits = 20 * queries @ model.labels.weight.T + model.bias
    mine, every = stage.loss(model, batch), torch.arange(corpus.n_labels)
    for term, block in (batch.blocks or {"pool": batch.block(slice(0, corpus.n_labels))}).items():
        pool = batch.sides["labels"].ids if "labels" in batch.sides else every
        columns = pool.expand(len(rows), -1) if block.columns is None else block.columns
        total = 0.0
        for r in range(len(rows)):
            for c, label in enumerate(columns[r]):
                sign = -1 if block.positives[r, c] else 1
                total = total + block.weights[r, c] * torch.log1p(torch.exp(sign * logits[r, label])) / len(rows)
        torch.testing.assert_close(mine.pop(term), total, rtol=1e-4, atol=1e-5)
    assert not mine


@pytest.mark.parametrize(("spread", "weight"), [(0.1, 1.0), (5.0, 1.0), (3.0, 40.0), (0.0, 1e6)])
def test_the_first_bias_expects_as_many_labels_as_there_are(spread, weight):
    rng = np.random.default_rng(3)
    scores, positives = rng.normal(4, spread, (20, 70)).astype(np.float32), rng.integers(1, 4, 20)
    bias = prior_bias(scores, weight, positives)
    expected = sum(weight / (1 + math.exp(-float(score) - bias)) for row in scores for score in row) / len(scores)
    assert expected == pytest.approx(positives.mean(), rel=1e-3)


@pytest.mark.parametrize(("start", "dim"), [("label", 0), ("random", 0), ("label", 8)])
def test_training_begins_at_the_prior(corpus, start, dim):
    """A bottleneck's vectors are not of unit length."""
    stage = AstraStage(replace(ASTRA, start=start, dim=dim))
    model = stage.build(corpus, {})
    stage.begin(model, corpus, None)
    batch = stage.batch(corpus, stage.rounds[0], Mined(), corpus.training_rows(), seeds.generator(0, "prior"))
    sides = {**batch.sides, "labels": BatchSide(torch.arange(corpus.n_labels))}
    logits = model.eval()(Batch(sides, {"pool": batch.blocks["pool"]}))["pool"].detach()
    positives = corpus.positives["train"].subset(corpus.training_rows()).lengths.mean()
    assert float(torch.sigmoid(logits).sum(1).mean()) == pytest.approx(positives, rel=0.1)


def test_negatives_are_mined_over_the_classifiers_of_the_round_before_the_last(corpus, trained):
    last = list(trained.rounds.values())[-1]
    source = trained.rounds[f"joint round {last.mined_by}"]
    assert (source.stop, last.first, last.stop) == (5, 6, 8)
    known = embed(corpus, trained.method.stages[0], trained.outs[source.name])
    held = load_file(trained.outs[source.name] / "model.safetensors")["labels.weight"].numpy()
    for row in corpus.training_rows()[:50]:
        order = np.argsort(-(held @ known["queries"][row]), kind="stable")
        excluded = {*corpus.positives["train"][row].tolist(), *corpus.filters["train"][row].tolist()}
        assert trained.mined[last.name].negatives[row].tolist() == [i for i in order.tolist() if i not in excluded][:5]


def test_rounds_end_where_vectors_are_taken():
    def shape(**changed):
        return [(r.first, r.stop, r.n_negatives, r.mined_by) for r in astra(replace(ASTRA, **changed)).rounds]

    assert shape(ahead=0) == [(0, 3, 0, -1), (3, 6, 5, 0), (6, 8, 5, 1)]
    assert shape(ahead=1) == [(0, 2, 0, -1), (2, 3, 0, -1), (3, 5, 5, 0), (5, 6, 5, 0), (6, 8, 5, 2)]
    assert shape(ahead=9) == [(0, 1, 0, -1), (1, 3, 0, -1), (3, 6, 5, 0), (6, 8, 5, 0)]
    assert shape(negatives="random") == shape(every_label=True) == [(0, 8, 0, -1)]


def test_counts_of_each_mix():
    def counts(**changed):
        config = replace(ASTRA, ahead=0, epochs=9, **changed)
        return [config.counts(round_) for round_ in astra(config).rounds]

    assert counts() == [(0, 25), (5, 20), (5, 20)]
    assert counts(negatives="hard") == [(0, 25), (25, 0), (25, 0)]
    assert counts(negatives="random") == [(0, 25)]
    assert counts(negatives="curriculum") == [(0, 25), (12, 13), (25, 0)]


@pytest.mark.parametrize("preset", [name for name in PRESETS["astra"] if not name.startswith("cpu")])
def test_the_rates_of_a_gpu_preset_raise_the_logits_of_positives_by_a_useful_amount(corpus, preset, tmp_path):
    """In as many epochs as it has, each as the first: labels have nine queries here. A mean over a batch does not."""
    def raised(summed):
        config = replace(resolve("astra", preset, {"summed": summed}).method, encoder=ASTRA.encoder, batch_size=128,
                         warmup=0, hard=5, uniform=20)
        stage = AstraStage(config)
        model, rows = stage.build(corpus, {}), corpus.training_rows()
        truth = corpus.positives["train"].subset(rows)

        def logits():
            queries, labels = stage.ranking_vectors(model.eval(), corpus, Mined(), rows)
            return (queries @ labels.T)[np.repeat(np.arange(len(rows)), truth.lengths), truth.values].mean()

        before = logits()
        first = replace(stage.rounds[0], stop=1)
        out, _ = run_round(corpus, stage, first, Mined(), tmp_path / summed)
        load_model(model, out)
        return config.epochs * float(logits() - before)

    assert raised("true") > max(1, 20 * raised("false"))


def test_presets_hold_table_11():
    assert {"lf-amazontitles-131k", "lf-amazon-131k", "lf-wikipedia-500k", "lf-amazontitles-1.3m", "amazon-670k",
            "amazon-3m"} <= set(PRESETS["astra"])
    made = resolve("astra", "amazon-670k", {})
    assert (made.method.batch_size, made.method.uniform, made.method.hard) == (16 * 16, 16 * 400, 16 * 50)
    assert made.method.positives == 16 * 7
    # torch's SGD of momentum .9 makes ten times as much of a decay of .001
    assert made.method.weight_decay == pytest.approx(0.01)
    assert not made.prepare.augment and resolve("astra", "lf-amazon-131k", {}).prepare.augment
    for preset in PRESETS["astra"]:
        assert resolve("astra", preset, {"seed": "3"}).seed == 3
    assert resolve("renee", "cpu", {}).method.every_label
