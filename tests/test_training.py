"""One round of training, unbroken and broken in every way, ends in the same bits."""

import hashlib
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.toy import toy_config, toy_corpus, trained
from xcmodels.data.corpus import Texts
from xcmodels.method import Mined
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame.stages import ENCODER, EncoderModule
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import UNWATCHED, run_round
from xcmodels.training.loop import Interrupted, Watch
from xcmodels.training.optimisers import Optimisers
from xcmodels.training.validation import P1

MINED, CLASSIFIERS = "encoder round 1", "classifier round 0"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def toy():
    return trained()


def again(toy, name, folder, watch=UNWATCHED, stage=None):
    round_ = toy.rounds[name]
    return run_round(toy.corpus, stage or toy.method.stage(round_.stage), round_, toy.mined[name], folder,
                     start=toy.starts[name], watch=watch)


def stop_after(steps):
    """A watch that asks to stop after `steps` steps."""
    done = []
    return Watch(report=done.append, stop=lambda: len(done) >= steps)


def interrupted(toy, name, folder, steps, stage=None):
    with pytest.raises(Interrupted, match="saved at step"):
        again(toy, name, folder, stop_after(steps), stage)


def assert_same(one: Path, other: Path):
    assert sorted(file.name for file in one.iterdir()) == ["model.safetensors", "optimiser.safetensors"]
    for file in ("model.safetensors", "optimiser.safetensors"):
        a, b = load_file(one / file), load_file(other / file)
        assert a.keys() == b.keys()
        assert [name for name in a if not torch.equal(a[name], b[name])] == []


def checkpoints(folder):
    return sorted((folder / "scratch").glob("*.safetensors"))


def test_a_round_can_be_repeated(toy, tmp_path):
    for name in toy.rounds:
        out, metrics = again(toy, name, tmp_path / name)
        assert_same(out, toy.outs[name])
        assert metrics == toy.metrics[name]


def test_another_seed_is_another_result(toy, tmp_path):
    out, _ = again(toy, MINED, tmp_path, stage=EncoderModule(toy_config(seed=1)))
    a, b = (load_file(folder / "model.safetensors") for folder in (out, toy.outs[MINED]))
    assert not torch.equal(a["backbone.table.weight"], b["backbone.table.weight"])


@pytest.mark.parametrize(("name", "every"), [("encoder round 0", 1), ("encoder round 0", 9), (MINED, 4), (MINED, 7),
                                             (CLASSIFIERS, 5)])
def test_stopped_again_and_again(toy, tmp_path, name, every):
    """9 steps are an epoch of this corpus, so that some stops fall on its end."""
    stops = 0
    while True:
        try:
            out, metrics = again(toy, name, tmp_path, stop_after(every))
            break
        except Interrupted:
            assert len(checkpoints(tmp_path)) == 1
            stops += 1
    round_ = toy.rounds[name]
    steps = (round_.last - round_.first) * -(-len(toy.corpus.training_rows()) // 64)
    assert stops == steps // every
    assert_same(out, toy.outs[name])
    assert metrics == toy.metrics[name]


def test_watching_changes_nothing(toy, tmp_path):
    seen = []
    out, _ = again(toy, MINED, tmp_path, Watch(report=seen.append, save_every=0.0))
    assert_same(out, toy.outs[MINED])
    steps = -(-len(toy.corpus.training_rows()) // 64)
    assert [each.done for each in seen] == list(range(4 * steps + 1, 8 * steps + 1))
    assert {each.steps for each in seen} == {12 * steps}
    assert [each.epoch for each in seen] == np.repeat([4, 5, 6, 7], steps).tolist()
    mean = np.mean([each.loss for each in seen if each.epoch == 5])
    assert toy.metrics[MINED][1] | {P1: 0.0} == {"epoch": 5.0, "loss": pytest.approx(mean), P1: 0.0}
    assert len(checkpoints(tmp_path)) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np, torch
from tests.support.toy import toy_config
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.ngame.stages import EncoderModule
from xcmodels.training import checkpoint
from xcmodels.training.local_run import run_round
from xcmodels.training.loop import Watch

corpus, clusters, start, folder, how = sys.argv[1:]
torch.set_num_threads(1)
stage = EncoderModule(toy_config())
done, save = [], checkpoint.save_file

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def report(progress):
    done.append(progress)
    if how == "between" and len(done) == 13:
        die()

def half(tensors, path, **rest):
    save(tensors, path, **rest)
    if len(done) == 11:
        with open(path, "rb+") as handle:
            handle.truncate(path.stat().st_size // 2)
        die()

if how == "saving":
    checkpoint.save_file = half
run_round(Corpus(Path(corpus)), stage, stage.rounds[1], Mined(np.load(clusters)), Path(folder), start=Path(start),
          watch=Watch(report=report, save_every=0.0))
"""


def test_killed_in_the_middle(toy, tmp_path):
    """Once between a step and its checkpoint, once while a checkpoint is half written."""
    np.save(tmp_path / "clusters.npy", toy.mined[MINED].clusters)
    given = [str(toy.corpus.folder), str(tmp_path / "clusters.npy"), str(toy.starts[MINED])]
    children = {how: subprocess.Popen([sys.executable, "-c", KILLED, *given, str(tmp_path / how), how],
                                      env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()})
                for how in ("between", "saving")}
    assert [child.wait(120) for child in children.values()] == [-signal.SIGKILL] * 2
    for how, steps in (("between", 12), ("saving", 10)):
        assert not list((tmp_path / how / "out").iterdir())
        assert [int(file.name.split("-")[0]) * 9 + int(file.name.split("-")[1]) - 36
                for file in checkpoints(tmp_path / how)] == [steps]
        seen = []
        out, metrics = again(toy, MINED, tmp_path / how, Watch(report=seen.append))
        assert len(seen) == 36 - steps
        assert_same(out, toy.outs[MINED])
        assert metrics == toy.metrics[MINED]


def flip(file):
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, lambda file: os.truncate(file, file.stat().st_size // 2),
                                    lambda file: file.write_bytes(b"")])
def test_a_damaged_checkpoint_is_passed_over(toy, tmp_path, damage, caplog):
    interrupted(toy, MINED, tmp_path, 12)
    damage(checkpoints(tmp_path)[0])
    seen = []
    out, metrics = again(toy, MINED, tmp_path, Watch(report=seen.append))
    assert len(seen) == 36
    assert "damaged and passed over" in caplog.text
    assert_same(out, toy.outs[MINED])
    assert metrics == toy.metrics[MINED]


def test_an_older_sound_checkpoint_is_taken_where_the_newest_is_damaged(toy, tmp_path):
    interrupted(toy, MINED, tmp_path, 5)
    older = checkpoints(tmp_path)[0]
    shutil.copy(older, tmp_path / "kept")
    interrupted(toy, MINED, tmp_path, 6)
    shutil.copy(tmp_path / "kept", older)
    assert len(checkpoints(tmp_path)) == 2
    flip(checkpoints(tmp_path)[1])
    seen = []
    out, _ = again(toy, MINED, tmp_path, Watch(report=seen.append))
    assert len(seen) == 31
    assert_same(out, toy.outs[MINED])


def test_stopping_where_a_damaged_checkpoint_lies_saves_a_sound_one(toy, tmp_path):
    interrupted(toy, MINED, tmp_path, 12)
    flip(checkpoints(tmp_path)[0])
    interrupted(toy, MINED, tmp_path, 12)
    seen = []
    out, _ = again(toy, MINED, tmp_path, Watch(report=seen.append))
    assert len(seen) == 24
    assert_same(out, toy.outs[MINED])


@pytest.mark.parametrize("left_out", ["optimiser.rows.tokens.mean", "model.heads.label.outer.weight"])
def test_a_checkpoint_that_does_not_fit_leaves_no_trace(toy, tmp_path, left_out, caplog):
    """Whole by its sha256, but of another model: nothing of it may reach the one being trained."""
    interrupted(toy, MINED, tmp_path, 12)
    file = checkpoints(tmp_path)[0]
    with safe_open(file, "pt") as handle:
        about = handle.metadata()
    tensors = load_file(file)
    del tensors[left_out]
    save_file(tensors, file, metadata=about)
    file.rename(file.with_name(f"000005-000000003-{hashlib.sha256(file.read_bytes()).hexdigest()}.safetensors"))
    out, _ = again(toy, MINED, tmp_path)
    assert "does not fit" in caplog.text
    assert_same(out, toy.outs[MINED])


class Poisoned(EncoderModule):
    """Its loss is not a number at one step."""

    def loss(self, model, batch):
        terms = super().loss(model, batch)
        self.rows = batch.sides["queries"].ids
        self.calls = getattr(self, "calls", 0) + 1
        return {name: term * (torch.nan if self.calls == 8 else 1.0) for name, term in terms.items()}


def test_a_loss_that_is_not_a_number_says_where(toy, tmp_path):
    interrupted(toy, MINED, tmp_path, 6)
    kept = checkpoints(tmp_path)
    stage = Poisoned(toy_config())
    with pytest.raises(FloatingPointError) as caught:
        again(toy, MINED, tmp_path, stage=stage)
    # 6 steps, then 8: step 13 of the stage's epochs of 9, counted from 0 in epochs 4 and 5
    assert "loss is nan at encoder epoch 5 step 4" in str(caught.value)
    assert str(stage.rows[:5].tolist()) in str(caught.value)
    assert checkpoints(tmp_path) == kept
    assert not list((tmp_path / "out").iterdir())
    out, _ = again(toy, MINED, tmp_path)
    assert_same(out, toy.outs[MINED])


def test_a_model_that_diverges_is_noticed(toy, tmp_path):
    """Scores that are not numbers must not vanish in the loss's masks."""
    config = toy_config()
    stage = EncoderModule(replace(config, m1=replace(config.m1, table_lr=1e38)))
    with pytest.raises(FloatingPointError, match="encoder epoch 0 step"):
        run_round(toy.corpus, stage, stage.rounds[0], Mined(), tmp_path)


def test_the_rounds_follow_the_schedule(toy):
    shape = [(r.stage, r.index, r.first, r.last, r.cluster_size, r.negatives) for r in toy.rounds.values()]
    assert shape == [("encoder", 0, 0, 4, 0, 0), ("encoder", 1, 4, 8, 4, 0), ("encoder", 2, 8, 12, 8, 0),
                     ("classifier", 0, 0, 6, 4, 0)]
    for name, round_ in toy.rounds.items():
        assert [each["epoch"] for each in toy.metrics[name]] == list(range(round_.first, round_.last))


def test_the_learning_rate_rises_and_falls():
    plan = ngame(toy_config()).stages[0].plan
    n = 540
    assert plan.steps(n) == 12 * 9
    rates = [plan.rate(step, n) for step in range(plan.steps(n))]
    assert rates[0] == pytest.approx(1 / 5)
    assert max(rates) == rates[4] == pytest.approx(1 - 4 / 108)
    assert rates[-1] == pytest.approx(1 / 108)
    assert all(rate > 0 for rate in rates)


def test_small_data_makes_small_batches():
    plan = replace(ngame(toy_config()).stages[0].plan, batch_size=1024, epochs=8, warmup=50)
    assert [plan.rows(n) for n in (1, 400, 2_500, 20_480, 1_000_000)] == [64, 64, 125, 1024, 1024]
    assert [plan.steps_an_epoch(n) for n in (0, 1, 400, 2_500, 20_480, 1_000_000)] == [1, 1, 7, 20, 20, 977]
    assert replace(plan, batch_size=16).rows(400) == 16


def test_an_epoch_of_few_rows_is_several_passes():
    plan = replace(ngame(toy_config()).stages[0].plan, batch_size=1024, epochs=8, least_steps=80)
    assert [plan.passes(n) for n in (1, 400, 2_500, 20_480, 40_960, 81_920, 1_000_000)] == [80, 12, 4, 4, 2, 1, 1]
    assert [plan.steps_an_epoch(n) for n in (400, 20_480, 1_000_000)] == [84, 80, 977]
    assert plan.steps(400) == 8 * 84


def test_every_pass_of_an_epoch_sees_every_row_once_in_an_order_of_its_own(toy, tmp_path):
    seen = []

    class Noted(EncoderModule):
        def batch(self, corpus, round_, mined, rows, rng):
            seen.append(rows)
            return super().batch(corpus, round_, mined, rows, rng)

    config = toy_config()
    once = replace(config, m1=replace(config.m1, epochs=1, refresh_from=1))
    thrice = replace(once, m1=replace(once.m1, least_steps=3 * ngame(once).stages[0].plan.steps_a_pass(540)))
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


def test_a_cosine_falls_late_and_ends_at_nothing():
    plan = replace(ngame(toy_config()).stages[0].plan, decay="cosine", warmup=0)
    n, steps = 540, 12 * 9
    for step in range(steps):
        assert plan.rate(step, n) == pytest.approx((1 + math.cos(math.pi * step / steps)) / 2)
    assert plan.rate(steps // 4, n) > 0.85 and plan.rate(3 * steps // 4, n) < 0.15


def test_training_rows_leave_out_validation_and_queries_without_labels(toy, tmp_path):
    rows = toy.corpus.training_rows()
    assert len(np.intersect1d(rows, toy.corpus.validation)) == 0
    assert len(rows) == 600 - 60
    other = toy_corpus(tmp_path, queries=60, labels=10, tests=5, validation=6, augment=True)
    assert set(range(60, 70)) < set(other.training_rows().tolist())
    own = [label for row in range(60) for label in other.positives["train"][row].tolist()]
    assert other.frequencies().tolist() == [own.count(label) for label in range(10)]


def test_the_second_module_leaves_the_encoder_alone(toy):
    before = load_file(toy.outs["encoder round 2"] / "model.safetensors")
    served = load_file(toy.retriever / "encoder" / "model.safetensors")
    assert all(torch.equal(before[name], served[name]) for name in before)
    start, end = toy.vectors["labels"], load_file(toy.outs[CLASSIFIERS] / "model.safetensors")["table.weight"].numpy()
    assert start.shape == end.shape
    assert np.abs(start - end).max() > 0.01


def precision(corpus, predict):
    """P@1 in percent over test queries that keep a positive after their filter pairs are taken away."""
    hits = []
    for row in range(len(corpus.sides["test"])):
        banned = set(corpus.filters["test"][row].tolist())
        true = set(corpus.positives["test"][row].tolist()) - banned
        if true:
            hits.append(next(label for label in predict(row) if label not in banned) in true)
    assert len(hits) > 100
    return 100 * np.mean(hits)


def test_it_learns_what_is_planted(toy):
    titles, contents = (list(Texts.load(toy.corpus.folder, f"test.{part}")) for part in ("title", "content"))
    found = Retriever.load(toy.retriever).predict(titles, k=5, contents=contents)
    fused = precision(toy.corpus, lambda row: [label.id for label in found[row]])
    model = toy.method.stage(ENCODER).build(toy.corpus, {})
    before = encode_all(model, toy.corpus.sides["test"], QUERY) @ encode_all(model, toy.corpus.sides["label"], LABEL).T
    untrained = precision(toy.corpus, lambda row: np.argsort(-before[row])[:5].tolist())
    assert fused > 90
    assert untrained < fused - 5
    losses = [each["loss"] for name in ("encoder round 0", "encoder round 1") for each in toy.metrics[name]]
    assert losses[3] < 0.5 * losses[0]
    assert toy.measured["relevant"] > 60


def test_rounds_of_one_stage_share_their_optimiser(toy):
    steps = [int(load_file(toy.outs[name] / "optimiser.safetensors")["rows.tokens.steps"]) for name in toy.rounds
             if name.startswith(ENCODER)]
    dense = [int(load_file(toy.outs[name] / "optimiser.safetensors")["dense.0.step"]) for name in toy.rounds
             if name.startswith(ENCODER)]
    assert steps == dense == [4 * 9, 8 * 9, 12 * 9]
    assert int(load_file(toy.outs[CLASSIFIERS] / "optimiser.safetensors")["rows.labels.steps"]) == 6 * 9


def test_the_schedule_reaches_both_optimisers(toy):
    """A first step of Adam moves every touched entry by the learning rate, wherever it points."""
    stage = toy.method.stage(ENCODER)
    model = stage.build(toy.corpus, {})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = toy.corpus.training_rows()[:64]
    batch = stage.batch(toy.corpus, toy.rounds["encoder round 0"], Mined(), rows, np.random.default_rng(0))
    optimisers = Optimisers(model.train(), model.tables(), stage.plan)
    stage.loss(model, batch)["triplet"].backward()
    optimisers.step(0.25)
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


def test_one_positive_is_drawn_in_the_first_module_and_all_count_in_the_second(toy):
    rows = toy.corpus.training_rows()[:50]
    positives = [set(toy.corpus.positives["train"][row].tolist()) for row in rows]
    for name in (MINED, CLASSIFIERS):
        stage = toy.method.stage(toy.rounds[name].stage)
        batch = stage.batch(toy.corpus, toy.rounds[name], toy.mined[name], rows, np.random.default_rng(0))
        pool, block = batch.sides["labels"].ids.tolist(), batch.blocks["triplet"]
        assert pool == sorted(set(pool))
        for r, true in enumerate(positives):
            assert {pool[c] for c in np.flatnonzero(block.positives[r])} == true & set(pool)
            pulled = {pool[c] for c in np.flatnonzero(block.positives[r] & (block.weights[r] > 0))}
            assert pulled == true if name == CLASSIFIERS else len(pulled) == 1
    assert np.array_equal(batch.sides["queries"].vectors, toy.vectors["queries"][rows])


def test_the_retriever_holds_the_trained_classifiers(toy):
    trained_weights = load_file(toy.outs[CLASSIFIERS] / "model.safetensors")["table.weight"].numpy()
    assert np.array_equal(Retriever.load(toy.retriever).indexes["labels"].vectors, trained_weights)


@pytest.mark.parametrize(("epochs", "first", "edges"), [(9, 4, [(0, 4), (4, 8), (8, 9)]), (4, 4, [(0, 4)]),
                                                        (3, 4, [(0, 3)]), (5, 0, [(0, 4), (4, 5)])])
def test_rounds_of_odd_schedules(epochs, first, edges):
    config = toy_config()
    method = ngame(replace(config, m2=replace(config.m2, epochs=epochs, refresh_from=first, refresh_every=4)))
    assert [(r.first, r.last) for r in method.rounds if r.stage != ENCODER] == edges
