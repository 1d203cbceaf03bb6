"""What `xc plan --labels` tells of time and disk space, from rates that are given."""

import numpy as np
import pytest

from data_contracts.errors import UsageError
from flows.size_plan import sizing
from tasks.training import dask_executor
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.resources import DASK_TEXTS, DISK, HOST, REFRESH, ROUND, Size, estimate, with_width
from xcmodels.retrieval import ann

WIDTH = 64
RATE = {"train": 1e-4, "process": 5e8, "encode": 1e-6, "cluster": 1e-7, "search exact": 1e-9, "search grouped": 1e-9,
        "rescore": 3e-5, "find group": 1e-8, "build": 1e-6}


def method_of(name, **changed):
    return METHODS[name].make(with_width(resolve(name, "cpu", changed).method, WIDTH))


def rates_of(name):
    """Rates of a method on both devices, the same at all widths."""
    return {device: {name: {"64": RATE, "384": RATE}} for device in ("cpu", "cuda")}


@pytest.mark.parametrize("more", [{"gpus": 8}, {"gpus": 8, "machines": 2}])
def test_an_epoch_takes_as_long_on_several_gpus(more):
    """Every process computes the steps of a bag of tokens in full."""
    one, several = (estimate(method_of("astra"), Size(10**6, 10**6, **gpus), rates_of("astra"))
                    for gpus in ({"gpus": 1}, more))
    assert several.epoch == one.epoch == pytest.approx(100.0)


def test_times_of_ngame_are_of_the_stage_that_was_measured():
    """Module M2, the largest, trains on vectors that are fixed; `bench_rates` measures M1, which makes them."""
    told = estimate(method_of("ngame"), Size(10**6, 2 * 10**6), rates_of("ngame"))
    encoder, classifier = method_of("ngame").stages
    mining = encoder.rounds[-1]
    assert told.timed == encoder.name and classifier.on_fixed_vectors and not mining.n_negatives
    clustering = 1e-7 * 2 * 10**6 * np.log2(2 * 10**6 / mining.cluster_size)
    assert told.refresh == pytest.approx(2.0 + clustering)    # no label is encoded for clusters
    refreshes = sorted({round_.first for round_ in encoder.rounds if round_.mines})
    assert told.every == refreshes[-1] - refreshes[-2]
    assert estimate(method_of("unidec"), Size(1000, 1000), rates_of("unidec")).timed == ""


def test_a_refresh_is_of_the_index_that_is_set():
    """All were told by the one that `index=auto` chooses: exact search of a million labels in a fourteenth of it."""
    size, points = Size(10**6, 10**5), 10**5
    encoding, groups = 1e-6 * 1.1e6, (24e-5 + 3e-5 + 2.5 * 1e-8 * points / 256) * points + 1.0
    told = {kind: estimate(method_of("astra", index=kind), size, rates_of("astra")).refresh for kind in ann.CHOICES}
    assert told == {"auto": pytest.approx(encoding + groups), "grouped": pytest.approx(encoding + groups),
                    "exact": pytest.approx(encoding + 1e-9 * 10**6 * points), "quantised": None, "hnsw": None}
    few = {kind: estimate(method_of("unidec", index=kind), Size(1000, points), rates_of("unidec")).refresh
           for kind in ("auto", "exact", "grouped")}
    assert few["auto"] == few["exact"] != few["grouped"]


def test_a_plan_says_that_a_refresh_by_a_graph_is_not_known(tmp_path):
    told = sizing("astra", "cpu", {"index": "hnsw"}, Size(5000, 20_000), width=WIDTH, home=tmp_path, gpu_memory=80)
    assert any(line.startswith("a refresh not known") for line in told.lines())


def test_a_plan_says_of_which_stage_its_times_are(tmp_path):
    told = sizing("ngame", "cpu", {}, Size(5000, 20_000), width=WIDTH, home=tmp_path, gpu_memory=80)
    assert any(line.startswith("an epoch ") and line.endswith(" of its stage encoder") for line in told.lines())
    assert told.to_json()["timed"] == "encoder"


@pytest.mark.parametrize(("option", "value"), [
    ("gpu-memory", 0.0), ("gpu-memory", -80.0), ("positives", -5.0), ("positives", 0.0), ("tokens", -3.0),
    ("tokens", float("nan")), ("tokens", float("inf"))])
def test_a_size_that_there_is_not_is_refused(tmp_path, option, value):
    """A GPU without memory ended in a division by zero; negative sizes needed less than nothing, and fitted."""
    given = {"gpu-memory": 80.0, "positives": 5.0, "tokens": 14.0} | {option: value}
    size = Size(1000, 1000, given["positives"], given["tokens"], gpus=1)
    with pytest.raises(UsageError, match=f"--{option} must be a number above 0, got {value:g}"):
        sizing("astra", "cpu", {}, size, width=WIDTH, home=tmp_path, gpu_memory=given["gpu-memory"])


def on_disk(name, size, phase, stage=""):
    return {part.what: part.size for part in estimate(method_of(name), size, {}, stage).held(DISK, phase)}


@pytest.mark.parametrize("name", ["unidec", "renee"])
def test_the_disk_holds_a_step_checkpoint_beside_what_rounds_leave(name):
    """Two while one replaces the other, or one beside the round's result; every round of every stage leaves one."""
    size, kept = Size(10**6, 10**6), "checkpoints of rounds, until the retriever stands"
    told = on_disk(name, size, ROUND)
    of_rounds = {len(stage.rounds): on_disk(name, size, ROUND, stage.name)[kept] for stage in method_of(name).stages}
    assert told[kept] == pytest.approx(sum(of_rounds.values()))
    assert told["its step checkpoint beside the last one, or beside its result"] == pytest.approx(
        max(left / rounds for rounds, left in of_rounds.items()))


def test_the_disk_holds_the_vectors_that_a_frozen_stage_trains_on():
    told = on_disk("ngame", Size(2000, 3000), ROUND)
    assert told["vectors of points and labels"] == 4 * WIDTH * 5000
    assert "vectors of points and labels" not in on_disk("unidec", Size(2000, 3000), ROUND)


def test_the_disk_holds_what_a_refresh_on_dask_writes():
    """Of as many texts as a run's workers share; vectors of the stage before are files already."""
    assert DASK_TEXTS == dask_executor.SMALL
    what, negatives = "what Dask workers share", method_of("unidec").stages[-1].rounds[-1].n_negatives
    assert negatives and on_disk("unidec", Size(300_000, 400_000), REFRESH)[what] == (
        4 * WIDTH * 700_000 + 5 * WIDTH * 300_000 + 4 * negatives * 400_000)
    assert what not in on_disk("unidec", Size(100_000, 400_000), REFRESH)
    assert what not in on_disk("siamesexml", Size(300_000, 400_000), REFRESH)
    assert what not in on_disk("unidec", Size(300_000, 400_000, gpus=1), REFRESH)    # there the run itself refreshes


def test_what_dask_workers_map_can_be_reclaimed():
    vectors = {"vectors of the points", "vectors of the labels, and their index"}
    for gpus, expected in ((0, vectors), (1, set())):
        told = estimate(method_of("unidec"), Size(300_000, 400_000, gpus=gpus), {}).held(HOST, REFRESH)
        assert {part.what for part in told if part.mapped and part.phase == REFRESH} == expected
