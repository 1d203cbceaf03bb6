"""MLflow shows what the store holds: once, in the end, whatever was killed, away or deleted meanwhile."""

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from tasks.tracking import mlflow_run
from tasks.tracking.tracker import StepMetrics, Tracker
from tests.support import tiny

ROOT = Path(__file__).resolve().parents[2]
ABOUT: dict[str, Any] = {
    "experiment": "xc", "name": "ngame · tiny", "params": {"method": "ngame", "preset": "cpu", "m1.epochs": "2"},
    "config_yaml": "m1:\n  epochs: 2\n", "data": {"tiny": {"path": "/data/tiny", "digest": "ab" * 32}},
    "tags": {"preset": "cpu"}}
DECILES = [{"decile": 1, "recall/5": 10.0}, {"decile": 2, "recall/5": 20.0}]
STEPS = [
    StepMetrics("m1 round 1", "1" * 64, [{"epoch": 0.0, "loss": 2.0}, {"epoch": 1.0, "loss": 1.0}], "m1",
                seconds=4, group="train"),
    StepMetrics("m1 round 2", "2" * 64, [{"epoch": 2.0, "loss": 0.5, "validation/P@1": 40.0}], "m1", seconds=2.5,
                group="train"),
    StepMetrics("build retriever", "3" * 64, {"pairs": 7, "kind": "tree", "none": None},  # type: ignore[dict-item]
                prefix="retriever", seconds=1, group="build"),
    StepMetrics("evaluate", "4" * 64, {"P@1": 60.0, "PSP/5": 3.25, "index/embedding/recall/100": 99.5},
                tables={"decile": DECILES}),
]


@pytest.fixture
def home(tmp_path):
    """HOME with an empty database; there is a space in its path, as there is in many."""
    return tiny.fresh_store(tmp_path / "my home").home


def started(home, key="k1"):
    tracker = Tracker(home)
    assert tracker.start(key, **ABOUT)
    return tracker


def points(home):
    """Return every point of every metric: (name, step, value), sorted; what is sent twice shows here."""
    with sqlite3.connect(home / "mlflow.db") as database:
        return sorted(database.execute("SELECT key, step, value FROM metrics"))


def whole(home):
    """Return what MLflow holds of the run, without ids and times."""
    with Tracker(home).required() as client:
        [experiment] = [each for each in client.search_experiments() if each.name == "xc"]
        return sorted((run.info.run_name, run.info.status, run.data.metrics, run.data.params, {
            key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.parent")})
            for run in client.search_runs([experiment.experiment_id]))


EXPECTED = [("retriever/pairs", 0, 7.0), ("test/P/1", 0, 60.0), ("test/PSP/5", 0, 3.25),
            ("test/index/embedding/recall/100", 0, 99.5), ("time/build", 0, 1.0), ("time/train", 0, 6.5),
            ("train/loss", 0, 2.0), ("train/loss", 1, 1.0), ("train/loss", 2, 0.5), ("validation/P/1", 2, 40.0)]


def test_a_run_shows_what_it_did(home):
    tracker = started(home)
    tracker.sync(STEPS)
    tracker.log_text("<p>report</p>", "report.html")
    tracker.finish("FINISHED", "+1.2 P@1\n\n    xc run --data tiny")
    assert tracker.close() == []
    assert points(home) == EXPECTED
    nested, parent = whole(home)
    assert nested[:3] == ("m1", "FINISHED", {"train/loss": 0.5, "validation/P/1": 40.0})
    assert parent[:2] == ("ngame · tiny", "FINISHED")
    assert parent[3] == ABOUT["params"]
    assert parent[4]["mlflow.note.content"].startswith("+1.2 P@1")
    assert parent[4]["xc.data.tiny"] == "ab" * 32
    with tracker.required() as client:
        run = client.get_run(tracker.run_id)
        assert [(each.dataset.name, each.dataset.source) for each in run.inputs.dataset_inputs] == [
            ("tiny", '{"uri": "/data/tiny"}')]
        with tiny.global_uri(tracker.uri):
            table = client.load_table(run.info.experiment_id, "decile.json", [tracker.run_id])
        assert table.to_dict("records") == DECILES
        assert {each.path for each in client.list_artifacts(tracker.run_id)} == {
            "config.yaml", "decile.json", "report.html"}


def test_sent_twice_is_there_once(home):
    tracker = started(home)
    for steps in (STEPS[:1], STEPS[:2], STEPS, STEPS):
        tracker.sync(steps)
    again = started(home)
    again.sync(STEPS)
    assert again.run_id == tracker.run_id
    # the total of a group grows with its steps, so it has a point for each; all else has one
    assert sorted([*EXPECTED, ("time/train", 0, 4.0)]) == points(home)


def test_a_finished_run_stays_as_it_was(home):
    tracker = started(home)
    tracker.sync(STEPS)
    tracker.finish("FINISHED", "first")
    with tracker.required() as client:
        before = client.get_run(tracker.run_id).info
        again = started(home)
        again.sync(STEPS)
        again.finish("FINISHED", "second")
        after = client.get_run(tracker.run_id)
    assert (after.info.status, after.info.end_time) == (before.status, before.end_time)
    assert after.data.tags["mlflow.note.content"] == "second"


def test_another_key_is_another_run(home):
    assert started(home, "k1").run_id != started(home, "k2").run_id


def test_a_result_that_changed_is_sent_again(home):
    tracker = started(home)
    tracker.sync([StepMetrics("evaluate", "4" * 64, {"P/1": 60.0})])
    tracker.sync([StepMetrics("evaluate", "5" * 64, {"P/1": 61.0})])
    assert {value for key, _, value in points(home) if key == "test/P/1"} == {60.0, 61.0}


def test_a_file_is_shown_again_only_when_it_changed(home, tmp_path):
    tracker, page = started(home), tmp_path / "page.svg"
    page.write_text("<svg/>")
    tracker.log_file(page, "plots")
    shown = home / "mlartifacts" / "xc" / tracker.run_id / "artifacts" / "plots" / "page.svg"
    first = shown.stat().st_mtime_ns
    started(home).log_file(page, "plots")
    assert shown.stat().st_mtime_ns == first
    page.write_text("<svg></svg>")
    started(home).log_file(page, "plots")
    assert shown.read_text() == "<svg></svg>"


def test_there_are_at_most_a_hundred_metrics(home, caplog):
    tracker = started(home)
    tracker.sync([StepMetrics("evaluate", "4" * 64, {f"m{i:03}": float(i) for i in range(150)}), STEPS[0]])
    assert len({key for key, _, _ in points(home)}) == mlflow_run.MAX_KEYS
    assert "left out" in caplog.text


def test_a_deleted_experiment_is_restored(home):
    tracker = started(home)
    with tracker.required() as client:
        client.delete_experiment(client.get_experiment_by_name("xc").experiment_id)
    assert started(home, "k2").run_id


@pytest.mark.parametrize(("home", "uri"), [("a?b", None), ("a%20b", None), ("a", "localhost:5000"), ("a", "ftp://x")])
def test_what_cannot_be_an_address_is_refused(tmp_path, home, uri):
    with pytest.raises(UsageError):
        Tracker(tmp_path / home, uri)


def test_the_environment_of_the_user_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    Tracker(tmp_path)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert logging.getLogger("alembic").level == logging.CRITICAL
