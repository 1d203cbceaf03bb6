"""P@1 an epoch: it is what exact search finds, costs what it may, and leaves training as it is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.toy import trained
from xcmodels.data.batching import BatchSide
from xcmodels.data.corpus import Ragged
from xcmodels.data.judged_answers import JudgedAnswers
from xcmodels.method import Mined
from xcmodels.methods.presets import resolve
from xcmodels.methods.siamesexml.stages import ExtremeModule
from xcmodels.training import loop
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import run_round
from xcmodels.training.loop import P1, validated_places, validation_precision


@pytest.fixture(scope="module")
def toy():
    torch.set_num_threads(1)
    return trained("ngame")


@pytest.mark.parametrize("name", ["encoder round 1", "classifier round 0"])
def test_training_ends_with_the_same_bits_whether_it_is_judged_or_not(toy, tmp_path, monkeypatch, name):
    """Also: the mode that dropout goes by is back after each epoch."""
    monkeypatch.setattr(loop, "validation_is_cheap", lambda corpus: False)
    round_ = toy.rounds[name]
    out, measured = run_round(toy.corpus, toy.method.stage(round_.stage), round_, toy.mined[name], tmp_path,
                              start=toy.starts[name], before=toy.befores[name])
    assert [epoch.keys() for epoch in measured] == [{"epoch", "loss"}] * len(measured)
    assert all({P1} < epoch.keys() for epoch in toy.metrics[name])
    for file in ("model.safetensors", "optimiser.safetensors"):
        mine, judged = load_file(out / file), load_file(toy.outs[name] / file)
        assert all(torch.equal(mine[key], judged[key]) for key in judged)


def test_it_is_what_exact_search_finds_among_what_a_test_would_judge(toy):
    """Less filter pairs, pairs that training shows the other way round and labels that no training query has."""
    name, corpus = "encoder round 2", toy.corpus
    held = JudgedAnswers.of(corpus)
    model, places = read_model(toy.method.stage("encoder"), corpus, toy.outs[name]), validated_places(held)
    assert len(places) > 50
    queries, labels = toy.method.stage("encoder").ranking_vectors(model.eval(), corpus, Mined(),
                                                                  corpus.validation[places])
    filters, truth, rows, hits = corpus.filters["train"], corpus.positives["train"], corpus.training_rows(), 0
    known = set(truth.subset(rows).values.tolist())
    shown = {(label, own) for row in rows for label in truth[row].tolist() for own in filters[row].tolist()}
    assert any(len(filters[row]) for row in corpus.validation[places])
    for row, query in zip(corpus.validation[places], queries, strict=True):
        own = filters[row].tolist()
        judged = [label for label in np.argsort(-labels @ query).tolist()
                  if label in known and label not in own and not any((mine, label) in shown for mine in own)]
        hits += judged[0] in truth[row]
        assert set(truth[row].tolist()) & set(judged)
    assert toy.metrics[name][-1][P1] == pytest.approx(100 * hits / len(places))
    again = validation_precision(toy.method.stage("encoder"), model, corpus, Mined(), held)
    assert again == toy.metrics[name][-1][P1]


@pytest.mark.parametrize(("labels", "queries", "judged"), [
    (1001, 1000, False), (1000, 1000, True), (200_000, 10**6, True), (200_001, 10**6, False)])
def test_where_it_would_cost_an_epoch_is_not_judged(labels, queries, judged):
    corpus: Any = SimpleNamespace(n_labels=labels, training_rows=lambda: range(queries))
    assert loop.validation_is_cheap(corpus) == judged


@pytest.mark.parametrize(("queries", "judged"), [(0, 0), (50, 50), (5000, 500)])
def test_at_most_so_many_queries_are_judged(queries, judged):
    truth, none = np.arange(queries) * 101, Ragged(np.zeros(queries + 1, np.int64), np.zeros(0, np.int32))
    places = validated_places(JudgedAnswers(truth, none, np.ones(101, bool)))
    assert len(places) == len(set(places)) == judged <= loop.VALIDATION_QUERIES


def test_labels_of_a_partition_are_judged_under_its_layer(toy):
    """As SiameseXML's loss scores them."""
    stage = ExtremeModule(resolve("siamesexml", "cpu", {
        "partitions": "3", "serve": "mixed", "encoder.source": "random", "encoder.dim": "16"}).method)
    model = stage.build(toy.corpus, {}).eval()
    torch.manual_seed(0)
    for parameter in model.encoder.heads.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.labels.weight.normal_()
    rows, every = np.arange(20), torch.arange(toy.corpus.n_labels).expand(20, -1)
    queries, labels = stage.ranking_vectors(model, toy.corpus, Mined(), rows)
    tokens = toy.corpus.sides["train"].tokens(rows)
    with torch.inference_mode():
        inner = model.encoder(tokens, "intermediate")
        ones = torch.ones(every.shape)
        block = SimpleNamespace(columns=every, weights=ones, positives=ones.bool(),
                                n_positives=torch.full((len(rows),), toy.corpus.n_labels))
        batch: Any = SimpleNamespace(blocks={"shortlist": block},
                                     sides={"queries": BatchSide(torch.from_numpy(rows), vectors=inner)})
        scores, _ = model(batch, 1)
    np.testing.assert_allclose(queries @ labels.T, scores.numpy(), atol=1e-5)
