"""One round of training, unbroken and broken in every way, ends in the same bits."""

import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.toy import toy_config, trained
from xcmodels.data.corpus import Texts
from xcmodels.method import Mined
from xcmodels.methods.ngame_m1 import STAGE, EncoderModule
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training import loop
from xcmodels.training.local_run import UNWATCHED, run_round
from xcmodels.training.loop import P1, Interrupted, Watch

MINED, CLASSIFIERS = "encoder round 1", "classifier round 0"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


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


@pytest.mark.parametrize("name", [MINED, CLASSIFIERS])
def test_several_threads_make_the_batches_of_one(toy, name, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_makers", lambda: 5)
    out, measured = again(toy, name, tmp_path)
    assert measured == toy.metrics[name]
    assert_same(out, toy.outs[name])


def test_a_round_can_be_repeated(toy, tmp_path):
    for name in toy.rounds:
        out, metrics = again(toy, name, tmp_path / name)
        assert_same(out, toy.outs[name])
        assert metrics == toy.metrics[name]


def test_another_seed_is_another_result(toy, tmp_path):
    out, _ = again(toy, MINED, tmp_path, stage=EncoderModule(toy_config(seed=1)))
    a, b = (load_file(folder / "model.safetensors") for folder in (out, toy.outs[MINED]))
    assert not torch.equal(a["backbone.table.weight"], b["backbone.table.weight"])


@pytest.mark.parametrize(("name", "every"), [("encoder round 0", 1), ("encoder round 0", 9), (MINED, 4),
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
    steps = (round_.stop - round_.first) * -(-len(toy.corpus.training_rows()) // 64)
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


def test_the_time_to_the_next_checkpoint_runs_on_from_epoch_to_epoch(toy, tmp_path, monkeypatch):
    """Each read of the clock is a second later: 9 steps are an epoch, so none takes as long as 30 seconds."""
    seconds = count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    again(toy, MINED, tmp_path, Watch(save_every=30.0))
    assert len(checkpoints(tmp_path)) == 1


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
    model = toy.method.stage(STAGE).build(toy.corpus, {})
    before = encode_all(model, toy.corpus.sides["test"], QUERY) @ encode_all(model, toy.corpus.sides["label"], LABEL).T
    untrained = precision(toy.corpus, lambda row: np.argsort(-before[row])[:5].tolist())
    assert fused > 90
    assert untrained < fused - 5
    losses = [each["loss"] for name in ("encoder round 0", "encoder round 1") for each in toy.metrics[name]]
    assert losses[3] < 0.5 * losses[0]
    assert toy.measured["relevant"] > 60


def test_rounds_of_one_stage_share_their_optimiser(toy):
    most = [int(load_file(toy.outs[name] / "optimiser.safetensors")["rows.tokens.touches"].max()) for name in toy.rounds
            if name.startswith(STAGE)]
    dense = [int(load_file(toy.outs[name] / "optimiser.safetensors")["dense.0.step"]) for name in toy.rounds
             if name.startswith(STAGE)]
    assert most == dense == [4 * 9, 8 * 9, 12 * 9]
    assert 1 < int(load_file(toy.outs[CLASSIFIERS] / "optimiser.safetensors")["rows.labels.touches"].max()) <= 6 * 9


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
