"""Refreshes on Dask: the same bytes wherever arrays are computed, and in spite of a worker that dies."""

import os
import pickle
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tasks.core.dask_workers import Workers
from tasks.core.files import folder_digests
from tasks.core.step import Console, Step, StepContext, run, run_all, unwatched
from tasks.core.store import Store
from tasks.plan import pipeline
from tasks.training import dask_executor, embed
from tasks.training.dask_executor import DaskExecutor, executor_for
from tests.support.fatal_jobs import kill_worker_once
from tests.support.long_tests import at_length
from tests.support.planted import QUICK, QUICK_JOINT
from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Ragged
from xcmodels.data.executor import IN_PROCESS, RowFunction, equal_cuts
from xcmodels.mining import clustering
from xcmodels.mining.per_query_index import PerQueryIndex
from xcmodels.training.frozen_layers import with_states


@pytest.fixture
def small_ranges(monkeypatch):
    make_ranges_small(monkeypatch)


def make_ranges_small(monkeypatch):
    """Make every corpus large, and jobs and ranges small: no range of vectors is a multiple of a batch."""
    monkeypatch.setattr(dask_executor, "SMALL", 0)
    for holder, name in ((dask_executor, "JOB_ROWS"), (embed, "EMBEDDED"), (clustering, "_RANGE"),
                         (PerQueryIndex, "chunk")):
        monkeypatch.setattr(holder, name, 250)


def in_small_ranges(action, context):
    """Run a step's action, on a worker, with small ranges."""
    with pytest.MonkeyPatch.context() as patch:
        make_ranges_small(patch)
        action(context)


def made_again(step, done, store, workers, folder, *, say=str):
    """Return what a step's action writes, by file, and what it says."""
    lines = list[str]()

    def told(line: str) -> None:
        lines.append(line)
        say(line)

    (folder / "out").mkdir(parents=True)
    inputs = {role: store.open(done[name]) for role, name in step.needs.items()}
    step.action(StepContext(folder / "out", inputs, folder / "scratch", store.home, workers, told, unwatched))
    return folder_digests(folder / "out"), lines


@pytest.mark.parametrize(("gpu", "address", "here"), [
    (False, None, False), (True, None, True), (True, "tcp://elsewhere:8786", False)])
def test_workers_of_a_run_do_not_share_its_gpu(tmp_path, small_ranges, monkeypatch, *, gpu, address, here):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    workers = Workers(address, 2)
    workers._client = SimpleNamespace(scheduler_info=lambda: {"workers": ["one", "two"]},
                                      get_metadata=lambda name, default: default)
    context = StepContext(tmp_path, {}, tmp_path / "scratch", tmp_path, workers, str, unwatched)
    assert (executor_for(context, toy_corpus(tmp_path / "corpus")) is IN_PROCESS) == here


def kind_of_workers(context: StepContext) -> None:
    context.say(f"embedded: {context.workers.are_embedded}, serial: {context.workers.is_serial}")


def test_a_step_on_a_worker_knows_its_workers(tmp_path, workers):
    step = Step("kind of workers", "evaluation", kind_of_workers, ("tasks.core.step",), {}, {})
    lines = list[str]()
    run(step, {}, Store(tmp_path), workers, Console(lines.append), by_worker=True)
    assert lines == ["embedded: True, serial: False"]
    with Workers(workers.client.scheduler.address, count=0) as theirs:
        assert not theirs.is_serial, "as many work as the scheduler has, whatever --workers says"


def test_a_worker_opens_a_corpus_with_the_states_of_its_texts(tmp_path):
    corpus = toy_corpus(tmp_path / "corpus")
    for side in ("train", "label"):
        n = len(corpus.sides[side])
        Ragged(np.arange(n + 1), np.ones((n, 2), np.float16)).save(tmp_path, side)
    with Workers(count=0) as none:
        executor = DaskExecutor(none, tmp_path, str)
        for folder in (tmp_path, None):
            file = pickle.loads(pickle.dumps(executor._file(with_states(corpus, folder))))
            texts = file.open(file.path).sides["label"].tokens(np.array([3]))
            assert (texts.states is not None) == (folder is not None)


OTHERS = at_length("as long again; ASTRA's refreshes are jobs of the same kinds")


@pytest.mark.parametrize(("method", "settings"), [
    ("astra", {"start": "label", "encoder.dim": "32", "prepare.vocabulary": "2000", "epochs": "2", "least_steps": "0",
               "refresh_from": "1", "refresh_every": "1", "index": "quantised"}),
    pytest.param("ngame", QUICK | {"encoder.batch": "300", "m1.epochs": "6", "m2.epochs": "1"}, marks=OTHERS),
    pytest.param("ramen-unidec", {f"base.{name}" if not name.startswith("prepare") else name: value
                                  for name, value in QUICK_JOINT.items()} | {"base.epochs": "5"}, marks=OTHERS)])
def test_the_number_of_workers_changes_no_byte(planted, tmp_path, workers, small_ranges, *, method, settings):
    plan = pipeline(planted, method, "cpu-learned", settings)
    store = Store(tmp_path / "home")
    with Workers(count=0) as none:
        done = run_all([*plan.prepare, *plan.train], store, none)
    refreshes = [step for step in plan.train if step.kind in ("mined", "vectors")]
    assert refreshes
    for step in refreshes:
        wanted = folder_digests(store.open(done[step.name]))
        del wanted["MANIFEST.json"]
        found, lines = made_again(step, done, store, workers, tmp_path / step.name / "two")
        assert found == wanted, step.name
        assert any("on Dask" in line for line in lines), lines
        with Workers(workers.client.scheduler.address) as theirs:
            found, lines = made_again(step, done, store, theirs, tmp_path / step.name / "theirs")
        assert found == wanted and any("on Dask" in line for line in lines)
        with Workers(count=1) as one:
            found, lines = made_again(step, done, store, one, tmp_path / step.name / "one")
        assert found == wanted and not any("on Dask" in line for line in lines), "one worker is not faster"
    store.forget(step.key(done))
    lines = list[str]()
    again = run(replace(step, action=partial(in_small_ranges, step.action)), done, store, workers,
                Console(lines.append), by_worker=True)
    assert not again.reused and again.artifact.digest == done[step.name].digest
    assert any("on Dask" in line for line in lines), "the jobs of a step that a worker makes run on all workers"


def squares(marker: Path) -> RowFunction:
    """Return a function that returns rows and their squares; the first time, it is killed between two ranges."""
    def part(low: int, high: int) -> np.ndarray:
        if low % 8:
            kill_worker_once(marker, low)
        return np.arange(low, high)[:, None] ** [1, 2]

    return part


def test_a_killed_workers_rows_are_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_executor, "JOB_ROWS", 8)
    with Workers(count=2) as workers:
        executor = DaskExecutor(workers, tmp_path, str)
        found = executor.compute_rows("squares", squares, equal_cuts(3, 100), tmp_path / "marker")
        assert (tmp_path / "marker").exists()
        wanted = IN_PROCESS.compute_rows("squares", squares, equal_cuts(3, 100), tmp_path / "marker")
        np.testing.assert_array_equal(found, wanted)
        kept = workers.client.run(lambda: len(dask_executor._prepared))
        assert set(kept.values()) == {0}, "models and files are freed"


def test_the_workers_share_what_they_import(workers):
    """They are forked from one process."""
    (parent,) = set(workers.client.run(os.getppid).values())
    assert parent != os.getpid() and psutil.Process(parent).ppid() == os.getpid()
    assert all(workers.client.run(lambda: "torch" in sys.modules).values())


def test_no_worker_is_paused_for_pages_of_files_that_it_maps(workers):
    assert [worker["memory_limit"] for worker in workers.client.scheduler_info()["workers"].values()] == [0, 0]


def test_a_worker_that_is_killed_during_a_refresh_changes_no_byte(planted, tmp_path, small_ranges):
    """It is killed after the step's first line, before what it has made is all that the step needs."""
    plan = pipeline(planted, "unidec", "cpu-learned", QUICK_JOINT | {"epochs": "5"})
    store = Store(tmp_path / "home")
    place = [step.kind for step in plan.train].index("mined")
    step = plan.train[place]
    with Workers(count=0) as none:
        done = run_all([*plan.prepare, *plan.train[:place + 1]], store, none)
    wanted = folder_digests(store.open(done[step.name]))
    del wanted["MANIFEST.json"]
    with Workers(count=2) as workers:
        victims = list(workers.client.run(os.getpid).values())[:1]

        def kill_one(line: str) -> None:
            if victims:
                os.kill(victims.pop(), signal.SIGKILL)

        assert made_again(step, done, store, workers, tmp_path / "made", say=kill_one)[0] == wanted
    assert not victims


def test_the_same_bytes_as_numpy_writes(tmp_path):
    """Of any shape, with no rows too, and where an array is a part of a mapped file."""
    with Workers(count=0) as none:
        executor = DaskExecutor(none, tmp_path, str)
        for number, array in enumerate((np.arange(7), np.ones((5, 3), np.float32), np.zeros((0, 4), np.int32))):
            np.save(tmp_path / "wanted.npy", array)
            made = executor.compute_rows("copies", copied, equal_cuts(2, len(array)), array)
            executor.save(tmp_path / "found.npy", made)
            assert (tmp_path / "found.npy").read_bytes() == (tmp_path / "wanted.npy").read_bytes(), number
            mapped = np.load(tmp_path / "wanted.npy", mmap_mode="r")
            again = executor.compute_rows("copies", copied, equal_cuts(2, len(array)), mapped)
            np.testing.assert_array_equal(again, array)
        part = np.load(tmp_path / "found.npy", mmap_mode="r")[:0]
        assert len(executor.compute_rows("copies", copied, [0, 0], part)) == 0
        some = np.lib.format.open_memmap(tmp_path / "some.npy", "w+", np.int64, (9,))
        some[:] = range(9)
        np.testing.assert_array_equal(executor.compute_rows("copies", copied, equal_cuts(2, 4), some[5:]), [5, 6, 7, 8])


def copied(array: np.ndarray) -> RowFunction:
    return lambda low, high: array[low:high]
