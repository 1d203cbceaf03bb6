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
from xcmodels.method import Mined
from xcmodels.methods.presets import resolve
from xcmodels.methods.siamesexml.stages import ExtremeModule
from xcmodels.training import loop
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import run_round
from xcmodels.training.loop import P1, precision, validation_rows


@pytest.fixture(scope="module")
def toy():
    torch.set_num_threads(1)
    return trained("ngame")


@pytest.mark.parametrize("name", ["encoder round 1", "classifier round 0"])
def test_training_ends_with_the_same_bits_whether_it_is_judged_or_not(toy, tmp_path, monkeypatch, name):
    """Also: the mode that dropout goes by is back after each epoch."""
    monkeypatch.setattr(loop, "validation_rows", lambda corpus: np.empty(0, np.int64))
    round_ = toy.rounds[name]
    out, measured = run_round(toy.corpus, toy.method.stage(round_.stage), round_, toy.mined[name], tmp_path,
                              start=toy.starts[name], before=toy.befores[name])
    assert [epoch.keys() for epoch in measured] == [{"epoch", "loss"}] * len(measured)
    assert all({P1} < epoch.keys() for epoch in toy.metrics[name])
    for file in ("model.safetensors", "optimiser.safetensors"):
        mine, judged = load_file(out / file), load_file(toy.outs[name] / file)
        assert all(torch.equal(mine[key], judged[key]) for key in judged)


def test_it_is_what_exact_search_finds_less_filter_pairs(toy):
    name = "encoder round 2"
    model, rows = read_model(toy.method.stage("encoder"), toy.corpus, toy.outs[name]), validation_rows(toy.corpus)
    assert len(rows) > 50 and set(rows) <= set(toy.corpus.validation)
    queries, labels = toy.method.stage("encoder").ranking_vectors(model.eval(), toy.corpus, Mined(), rows)
    filters, truth, hits = toy.corpus.filters["train"], toy.corpus.positives["train"], 0
    assert any(len(filters[row]) for row in rows)
    for row, query in zip(rows, queries, strict=True):
        best = next(label for label in np.argsort(-labels @ query) if label not in filters[row])
        hits += best in truth[row]
    assert toy.metrics[name][-1][P1] == pytest.approx(100 * hits / len(rows))
    assert precision(toy.method.stage("encoder"), model, toy.corpus, Mined(), rows) == toy.metrics[name][-1][P1]


def corpus_of(labels: int, queries: int, held_out: int) -> Any:
    return SimpleNamespace(n_labels=labels, validation=np.arange(held_out), training_rows=lambda: range(queries),
                           train_positives=Ragged(np.arange(held_out + 1), np.zeros(held_out, np.int32)))


@pytest.mark.parametrize(("labels", "queries", "held_out", "judging"), [
    (100, 1000, 0, 0), (100, 1000, 50, 50), (100, 1000, 5000, 500), (1001, 1000, 50, 0), (1000, 1000, 50, 50),
    (200_000, 10**6, 50, 50), (200_001, 10**6, 50, 0)])
def test_where_it_would_cost_an_epoch_is_not_judged(labels, queries, held_out, judging):
    rows = validation_rows(corpus_of(labels, queries, held_out))
    assert len(rows) == len(set(rows)) == judging <= loop.VALIDATION_QUERIES


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
