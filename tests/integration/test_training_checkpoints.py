"""Step checkpoints: killed, damaged, of another model; a round goes on from the newest sound one."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data_contracts.errors import Stopped
from tasks.core.dask_workers import Workers
from tasks.core.step import Console, run
from tasks.core.store import Store
from tasks.plan import pipeline
from tests.support.planted import QUICK, write_planted
from tests.support.toy import trained
from tests.training.test_training import MINED, again, assert_same, checkpoints, interrupted
from xcmodels.training.loop import Watch

pytestmark = pytest.mark.usefixtures("one_thread")

KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np, torch
from tests.support.toy import toy_config
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.ngame_m1 import EncoderModule
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


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


def test_a_step_that_was_stopped_goes_on_where_it_was(tmp_path):
    """A run's step saves where its next attempt looks: results are equal without, and hours of training lost."""
    plan = pipeline(write_planted(tmp_path / "raw", train=300, test=40, labels=20), "ngame", "cpu-learned",
                    {**QUICK, "m1.epochs": "8", "m1.refresh_from": "8"})
    store, done = Store(tmp_path / "home"), {}

    def steps_taken(most):
        """Train the first round until it has taken `most` optimiser steps; return how many it took."""
        seen = []

        @contextmanager
        def watch(_):
            yield seen.append, lambda: len(seen) >= most

        with suppress(Stopped):
            run(plan.train[0], done, store, none, Console(watch=watch))
        return len(seen)

    with Workers(count=0) as none:
        for step in plan.prepare:
            done[step.name] = run(step, done, store, none).artifact
        assert [steps_taken(most) for most in (15, 10, 999)] == [15, 10, 15], "of 8 epochs of 5 steps"
    assert store.find(plan.train[0].key(done)) is not None


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
