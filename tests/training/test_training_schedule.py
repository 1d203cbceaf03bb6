"""How a stage is cut into rounds, epochs, passes and steps, and the rates of each."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.support.toy import ASTRA, toy_config, toy_corpus, trained
from tests.training.test_training import MINED, again
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.astra.stages import AstraStage
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame_m1 import STAGE, EncoderModule
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.training.local_run import run_round
from xcmodels.training.optimisers import Optimisers
from xcmodels.training_plan import RowRule

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


def test_the_rounds_follow_the_schedule(toy):
    shape = [(r.stage, r.index, r.first, r.stop, r.cluster_size, r.n_negatives) for r in toy.rounds.values()]
    assert shape == [("encoder", 0, 0, 4, 0, 0), ("encoder", 1, 4, 8, 4, 0), ("encoder", 2, 8, 12, 8, 0),
                     ("classifier", 0, 0, 6, 4, 0)]
    for name, round_ in toy.rounds.items():
        assert [each["epoch"] for each in toy.metrics[name]] == list(range(round_.first, round_.stop))


def test_the_learning_rate_rises_and_falls():
    plan = ngame(toy_config()).stages[0].plan
    n = 540
    assert plan.steps(n) == 12 * 9
    rates = [plan.lr_factor(step, n) for step in range(plan.steps(n))]
    assert rates[0] == pytest.approx(1 / 5)
    assert max(rates) == rates[4] == pytest.approx(1 - 4 / 108)
    assert rates[-1] == pytest.approx(1 / 108)
    assert all(rate > 0 for rate in rates)


def test_a_table_at_rate_0_stays_without_gradients_and_all_else_is_trained_alike(corpus):
    """ASTRA's tokens in the CPU presets; the rule of rate 0 is what a stage without it is compared with."""
    stage = AstraStage(replace(ASTRA, token_lr=0.0))
    rows, round_ = corpus.training_rows()[:32], stage.rounds[0]
    ends = []
    for tables in (stage.plan.tables, {**stage.plan.tables, "tokens": RowRule(0.0)}):
        model = stage.build(corpus, {})
        stage.begin(model, corpus, None)
        optimisers = Optimisers(model.train(), replace(stage.plan, tables=tables))
        for step in range(3):
            optimisers.begin(1.0)
            batch = stage.batch(corpus, round_, Mined({}), rows, seeds.generator(0, "step", step))
            sum(stage.loss(model, batch).values()).backward()
            gathered = len(model.encoder.tables()["tokens"]._gathered)
            optimisers.finish()
        ends.append((model.state_dict(), gathered, list(optimisers.rows)))
    (left_out, none, named), (at_0, some, all_named) = ends
    assert (none, some, named, all_named) == (0, 1, ["labels"], ["tokens", "labels"])
    assert all(torch.equal(value, at_0[name]) for name, value in left_out.items())


def test_small_data_makes_small_batches():
    plan = replace(ngame(toy_config()).stages[0].plan, batch_size=1024, epochs=8, warmup=50)
    assert [plan.batch_size_for(n) for n in (1, 400, 2_500, 20_480, 1_000_000)] == [64, 64, 125, 1024, 1024]
    assert [plan.steps_an_epoch(n) for n in (0, 1, 400, 2_500, 20_480, 1_000_000)] == [1, 1, 7, 20, 20, 977]
    assert replace(plan, batch_size=16).batch_size_for(400) == 16


def test_an_epoch_of_few_rows_is_several_passes():
    plan = replace(ngame(toy_config()).stages[0].plan, batch_size=1024, epochs=8, least_steps=80)
    assert [plan.passes(n) for n in (1, 400, 2_500, 20_480, 40_960, 81_920, 1_000_000)] == [80, 12, 4, 4, 2, 1, 1]
    assert [plan.steps_an_epoch(n) for n in (400, 20_480, 1_000_000)] == [84, 80, 977]
    assert plan.steps(400) == 8 * 84


def test_an_epoch_of_many_rows_is_a_part_of_a_pass():
    plan = replace(ngame(toy_config()).stages[0].plan, batch_size=1024, epochs=8, least_steps=40, most_steps=160)
    assert [plan.steps_an_epoch(n) for n in (400, 81_920, 163_840, 163_841, 1_000_000)] == [42, 80, 160, 160, 160]
    assert plan.steps(1_000_000) == 8 * 160 and plan.lr_factor(8 * 160, 1_000_000) == 0
    assert replace(plan, most_steps=30).steps_an_epoch(400) == 30


def test_an_epoch_that_is_a_part_of_a_pass_sees_other_rows_each_time(toy, tmp_path):
    config = toy_config()
    stage = Recording(replace(config, m1=replace(config.m1, most_steps=3)))
    _, epochs = again(toy, MINED, tmp_path, stage=stage)
    drawn = [rows for rows, _, _ in stage.seen]
    assert len(drawn) == 4 * 3 and len(epochs) == 4 and epochs[0]["loss"] > 0
    parts = [{row for rows in drawn[start:start + 3] for row in rows} for start in range(0, 12, 3)]
    assert all(len(part) == 3 * 60 for part in parts) and len(set.union(*parts)) > 2 * 3 * 60
    whole = Recording(config)
    again(toy, MINED, tmp_path / "whole", stage=whole)
    assert drawn[0] == whole.seen[0][0], "the first batch is as without a bound"


def test_every_pass_of_an_epoch_sees_every_row_once_in_an_order_of_its_own(toy, tmp_path):
    seen = []

    class Noted(EncoderModule):
        def batch(self, corpus, round_, mined, rows, rng):
            seen.append(rows)
            return super().batch(corpus, round_, mined, rows, rng)

    config = toy_config()
    once = replace(config, m1=replace(config.m1, epochs=1, refresh_from=1))
    thrice = replace(once, m1=replace(once.m1, least_steps=3 * ngame(once).stages[0].plan.steps_per_pass(540)))
    orders = []
    for number, each in enumerate((once, thrice)):
        seen.clear()
        stage = Noted(each)
        run_round(toy.corpus, stage, stage.rounds[0], Mined(), tmp_path / str(number))
        orders.append(np.concatenate(seen))
    rows = toy.corpus.training_rows()
    assert len(orders[0]) == len(rows) and len(orders[1]) == 3 * len(rows)
    passes = orders[1].reshape(3, -1)
    assert all(sorted(each) == rows.tolist() for each in passes.tolist())
    assert np.array_equal(passes[0], orders[0]) and not np.array_equal(passes[0], passes[1])


def test_a_batch_as_large_as_a_cluster_is_one_and_none_is_short(toy, tmp_path):
    """A batch is a cluster in Algorithm 1 of UniDEC; cut by full batches, most would be of two unrelated ones."""
    config = toy_config()
    plan = replace(config.m1, epochs=1, refresh_from=0, batch_size=50, cluster_size=50, cluster_max=50)
    stage = Recording(replace(config, m1=plan))
    rows = toy.corpus.training_rows()
    vectors = np.random.default_rng(0).random((len(toy.corpus.sides["train"]), 4), np.float32)
    clusters = balanced_kmeans(vectors, 50, seed=0, rows=rows)
    run_round(toy.corpus, stage, stage.rounds[0], Mined(clusters=clusters), tmp_path)
    of = dict(zip(rows.tolist(), clusters.tolist(), strict=True))
    batches = [[of[row] for row in drawn] for drawn, _, _ in stage.seen]
    assert {len(batch) for batch in batches} == {49, 50}
    assert all(Counter(batch).most_common(1)[0][1] >= len(batch) - 2 for batch in batches)


def test_a_cosine_falls_late_and_ends_at_nothing():
    plan = replace(ngame(toy_config()).stages[0].plan, decay="cosine", warmup=0)
    n, steps = 540, 12 * 9
    for step in range(steps):
        assert plan.lr_factor(step, n) == pytest.approx((1 + math.cos(math.pi * step / steps)) / 2)
    assert plan.lr_factor(steps // 4, n) > 0.85 and plan.lr_factor(3 * steps // 4, n) < 0.15


def test_training_rows_leave_out_validation_and_queries_without_labels(toy, tmp_path):
    rows = toy.corpus.training_rows()
    assert len(np.intersect1d(rows, toy.corpus.validation)) == 0
    assert len(rows) == 600 - 60
    other = toy_corpus(tmp_path, queries=60, labels=10, tests=5, validation=6, augment=True)
    assert set(range(60, 70)) < set(other.training_rows().tolist())
    own = [label for row in range(60) for label in other.positives["train"][row].tolist()]
    assert other.frequencies().tolist() == [own.count(label) for label in range(10)]


def test_the_schedule_reaches_both_optimisers(toy):
    """A first step of Adam moves every touched entry by the learning rate, wherever it points."""
    stage = toy.method.stage(STAGE)
    model = stage.build(toy.corpus, {})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = toy.corpus.training_rows()[:64]
    batch = stage.batch(toy.corpus, toy.rounds["encoder round 0"], Mined(), rows, np.random.default_rng(0))
    optimisers = Optimisers(model.train(), stage.plan)
    optimisers.begin(0.25)
    stage.loss(model, batch)["triplet"].backward()
    optimisers.finish()
    moved = {name: float((value - before[name]).abs().max()) for name, value in model.state_dict().items()}
    assert moved["heads.query.outer.weight"] == pytest.approx(0.25 * 2e-3, rel=1e-2)
    assert moved["backbone.table.weight"] == pytest.approx(0.25 * 1e-2, rel=1e-2)


class Recording(EncoderModule):
    """Remembers the draws and the rows of every batch."""

    def batch(self, corpus, round_, mined, rows, rng):
        self.seen = [*getattr(self, "seen", []), (rows.tolist(), rng.bit_generator.state["state"]["state"],
                                                  float(torch.rand(1)))]
        return super().batch(corpus, round_, mined, rows, rng)


def test_every_batch_has_draws_of_its_own_and_an_epoch_every_row_once(toy, tmp_path):
    stage = Recording(toy_config())
    again(toy, MINED, tmp_path, stage=stage)
    assert len({state for _, state, _ in stage.seen}) == 36
    assert len({draw for _, _, draw in stage.seen}) == 36
    epochs = [[row for rows, _, _ in stage.seen[start:start + 9] for row in rows] for start in range(0, 36, 9)]
    assert all(sorted(epoch) == toy.corpus.training_rows().tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    clusters = dict(zip(toy.corpus.training_rows().tolist(), toy.mined[MINED].clusters.tolist(), strict=True))
    for epoch in epochs:
        of = [clusters[row] for row in epoch]
        assert sum(a != b for a, b in pairwise(of)) == len(set(of)) - 1


@pytest.mark.parametrize(("epochs", "first", "edges"), [(9, 4, [(0, 4), (4, 8), (8, 9)]), (4, 4, [(0, 4)]),
                                                        (3, 4, [(0, 3)]), (5, 0, [(0, 4), (4, 5)])])
def test_rounds_of_odd_schedules(epochs, first, edges):
    config = toy_config()
    method = ngame(replace(config, m2=replace(config.m2, epochs=epochs, refresh_from=first, refresh_every=4)))
    assert [(r.first, r.stop) for r in method.rounds if r.stage != STAGE] == edges
