"""Losses over every label by parts of the labels: those of one pool, with the same gradients and updates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.toy import ASTRA, UNIDEC, low_bytes, trained
from xcmodels.data import every_label, seeds
from xcmodels.data.batching import Batch, BatchSide, pooled_block
from xcmodels.data.every_label import every_label_batch
from xcmodels.method import Mined
from xcmodels.methods.astra.stages import AstraStage
from xcmodels.methods.unidec.stages import UnidecStage
from xcmodels.nn import losses
from xcmodels.training.optimisers import Optimisers

pytestmark = pytest.mark.usefixtures("one_thread")
STILL = {"every_label": True, "dropout": 0.0}
CASES = {"renee": replace(ASTRA, **STILL), "renee summed": replace(ASTRA, summed=True, **STILL),
         "renee decayed": replace(ASTRA, weight_decay=0.5, **STILL),
         "dexml": replace(toy.VARIANTS["dexml"], **STILL), "unidec": replace(UNIDEC, **STILL),
         "supcon": replace(UNIDEC, loss="supcon", bce=0.5, **STILL),
         "bce": replace(UNIDEC, softmax=0.0, bce=0.5, balance=0.0, serve="classifier", **STILL)}


@pytest.fixture(scope="module")
def corpus():
    """The toy corpus with filter pairs, and positives that weigh 1 to 3."""
    made = trained("astra").corpus
    return toy.weighted(made, 1.0 + np.arange(len(made.positives["train"].values)) % 3)


@pytest.fixture
def by_sevens(monkeypatch, corpus):
    """Labels in parts of seven."""
    monkeypatch.setattr(every_label, "PAIRS", 7 * 40)
    assert corpus.n_labels > 21


def rows_of(corpus):
    return np.sort(np.random.default_rng(0).choice(corpus.training_rows(), 40, replace=False))


def stage_of(config):
    return (AstraStage if hasattr(config, "uniform") else UnidecStage)(config)


def model_of(stage, corpus):
    """A model whose every tensor has moved from its start."""
    model = stage.build(corpus, {})
    torch.manual_seed(4)
    with torch.no_grad():
        for tensor in [*model.parameters(), *(table.weight for table in model.tables().values())]:
            tensor.add_((0.2 * torch.randn(tensor.shape)).to(tensor.dtype))
    return model.train()


def over_one_pool(stage, model, corpus, rows):
    """The terms of the loss by a pool of all labels and the losses of pools."""
    pool = np.arange(corpus.n_labels)
    block = pooled_block(corpus, rows, pool)
    queries = BatchSide(torch.from_numpy(rows), tokens=corpus.sides["train"].tokens(rows))
    if isinstance(stage, UnidecStage):
        labels = BatchSide(torch.from_numpy(pool), tokens=corpus.sides["label"].tokens(pool))
        batch = Batch({"queries": queries, "labels": labels}, {"pool": block})
        return stage.terms(model, batch, model.encoder.pool(batch.sides))
    batch = Batch({"queries": queries, "labels": BatchSide(torch.from_numpy(pool))}, {"pool": block})
    factor = len(rows) if stage.config.summed else 1
    return {"pool": factor * losses.weighted_bce(model(batch)["pool"], block.positives, block.weights)}


def test_a_part_is_the_block_of_its_labels(corpus, by_sevens):
    rows = np.concatenate([rows_of(corpus)[::-1], corpus.training_rows()[:3]])
    side = BatchSide(torch.from_numpy(rows))
    batch = every_label_batch(corpus, rows, Batch({"queries": side}, {}))
    whole = pooled_block(corpus, rows, np.arange(corpus.n_labels))
    parts = batch.parts()
    assert [parts[0].start, parts[-1].stop] == [0, corpus.n_labels] and len(parts) > 3
    assert (whole.weights == 0).any() and (whole.weights > 1).any()
    for part in parts:
        block = batch.block(part)
        assert torch.equal(block.positives, whole.positives[:, part])
        assert torch.equal(block.weights, whole.weights[:, part].float())
        cells = torch.zeros_like(block.positives)
        cells[batch.positive_cells(part)] = True
        assert torch.equal(cells, block.positives & (block.weights > 0))


def test_a_batch_that_is_moved_still_meets_every_label(corpus):
    rows = rows_of(corpus)
    batch = every_label_batch(corpus, rows, Batch({"queries": BatchSide(torch.from_numpy(rows))}, {}))
    moved = batch.map(torch.clone).to(torch.device("cpu"))    # to pinned memory, then to a GPU
    assert type(moved) is type(batch) and moved.n_labels == batch.n_labels
    for name in ("rows", "labels", "positives", "weights"):
        assert torch.equal(getattr(moved, name), getattr(batch, name))
    assert torch.equal(moved.sides["queries"].ids, batch.sides["queries"].ids)


def test_no_negatives_are_mined_where_every_label_is_one():
    assert UNIDEC.negatives and not any(round_.n_negatives for round_ in stage_of(CASES["unidec"]).rounds)
    assert any(round_.n_negatives for round_ in stage_of(UNIDEC).rounds)


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_moments_are_those_of_one_pool(name, corpus, by_sevens):
    stage, rows, ends = stage_of(CASES[name]), rows_of(corpus), []
    for parts in (False, True):
        model = model_of(stage, corpus)
        optimisers = Optimisers(model, stage.plan)
        if parts:
            batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "all"))
            assert len(batch.parts()) > 3
            terms = stage.loss(model, batch)
        else:
            for table in model.tables().values():
                table.in_parts = False
            terms = over_one_pool(stage, model, corpus, rows)
        optimisers.begin(1.0, 5)
        sum(terms.values()).backward()
        gradients = {key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}
        optimisers.finish()
        # Not the tables that Adam has moved: its first step is the sign of a gradient, however small that is. Nor how
        # often rows were touched: one pool encodes labels' texts even where no term of the loss reads them.
        moments = {key: value for key, value in optimisers.rows_state().items() if not key.endswith("touches")}
        ends.append((terms, gradients, moments))
    pool, parts = ends
    assert parts[0].keys() == pool[0].keys()
    for term, value in pool[0].items():
        assert parts[0][term].item() == pytest.approx(value.item(), rel=1e-5), term
    for mine, wanted in zip(parts[1:], pool[1:], strict=True):
        assert mine.keys() == wanted.keys()
        for key, value in wanted.items():
            assert (mine[key] - value).double().norm() <= 1e-4 * value.double().norm(), key


def test_what_drops_out_drops_out_again_when_a_part_is_computed_again(corpus, by_sevens):
    """Its gradient is that of the loss: the loss falls along it as it says."""
    stage = stage_of(replace(CASES["dexml"], dropout=0.3, head="tanh"))
    model = model_of(stage, corpus)
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows_of(corpus), seeds.generator(0, "all"))

    def loss():
        torch.manual_seed(1)
        return sum(stage.loss(model, batch).values())

    with torch.no_grad():
        assert float(loss()) == float(loss())
    loss().backward()
    weight = model.encoder.heads["label"].linear.weight if "label" in model.encoder.heads else \
        model.encoder.heads["query"].linear.weight
    step, gradient = 1e-3 / weight.grad.norm(), weight.grad.clone()
    with torch.no_grad():
        weight.add_(gradient, alpha=float(step))
        above = float(loss())
        weight.sub_(gradient, alpha=float(2 * step))
        below = float(loss())
    assert (above - below) / (2 * 1e-3) == pytest.approx(float(gradient.norm()), rel=0.05)


@pytest.mark.parametrize("name", ["renee", "unidec"])
def test_no_more_rows_are_gathered_at_once_than_a_part_has(name, corpus, by_sevens, monkeypatch):
    """Of classifiers in bfloat16, 2 d bytes a label: their rows in float32 would take twice as many."""
    from xcmodels.nn.row_table import RowTable

    stage = stage_of(low_bytes(CASES[name]))
    model = model_of(stage, corpus)
    optimisers, kept, gather = Optimisers(model, stage.plan), [], RowTable.gather

    def watched(table, ids):
        found = gather(table, ids)
        if table.name == "labels":
            kept.append(sum(len(leaf) for _, leaf in table._gathered) + sum(len(ids) for ids, _ in table._summed))
        return found

    monkeypatch.setattr(RowTable, "gather", watched)
    before = model.labels.weight.clone()
    terms = stage.loss(model, stage.batch(corpus, stage.rounds[0], Mined(), rows_of(corpus), seeds.generator(0, "all")))
    optimisers.begin(1.0, 5)
    sum(terms.values()).backward()
    optimisers.finish()
    assert len(kept) >= 2 * corpus.n_labels // 7 and max(kept) == 7
    assert (model.labels.weight != before).any(1).all()
