"""MLflow shows what the store holds: once, in the end, whatever was killed, away or deleted meanwhile."""

import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.tracking import mlflow_client, mlflow_run
from tasks.tracking.tracker import Entry, Tracker
from tests.support import tiny

ROOT = Path(__file__).resolve().parents[1]
ABOUT: dict[str, Any] = {
    "experiment": "xc", "name": "ngame · tiny", "params": {"method": "ngame", "preset": "cpu", "m1.epochs": "2"},
    "config_yaml": "m1:\n  epochs: 2\n", "data": {"tiny": {"path": "/data/tiny", "digest": "ab" * 32}},
    "tags": {"preset": "cpu"}}
DECILES = [{"decile": 1, "recall/5": 10.0}, {"decile": 2, "recall/5": 20.0}]
ENTRIES = [
    Entry("m1 round 1", "1" * 64, [{"epoch": 0.0, "loss": 2.0}, {"epoch": 1.0, "loss": 1.0}], "m1",
          seconds=4, group="train"),
    Entry("m1 round 2", "2" * 64, [{"epoch": 2.0, "loss": 0.5, "validation/P@1": 40.0}], "m1", seconds=2.5,
          group="train"),
    Entry("build retriever", "3" * 64, {"pairs": 7, "kind": "tree", "none": None},  # type: ignore[dict-item]
          prefix="retriever", seconds=1, group="build"),
    Entry("evaluate", "4" * 64, {"P@1": 60.0, "PSP/5": 3.25, "index/embedding/recall/100": 99.5},
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
    tracker.sync(ENTRIES)
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
    for entries in (ENTRIES[:1], ENTRIES[:2], ENTRIES, ENTRIES):
        tracker.sync(entries)
    again = started(home)
    again.sync(ENTRIES)
    assert again.run_id == tracker.run_id
    # the total of a group grows with its steps, so it has a point for each; all else has one
    assert sorted([*EXPECTED, ("time/train", 0, 4.0)]) == points(home)


def test_a_finished_run_stays_as_it_was(home):
    tracker = started(home)
    tracker.sync(ENTRIES)
    tracker.finish("FINISHED", "first")
    with tracker.required() as client:
        before = client.get_run(tracker.run_id).info
        again = started(home)
        again.sync(ENTRIES)
        again.finish("FINISHED", "second")
        after = client.get_run(tracker.run_id)
    assert (after.info.status, after.info.end_time) == (before.status, before.end_time)
    assert after.data.tags["mlflow.note.content"] == "second"


def test_another_key_is_another_run(home):
    assert started(home, "k1").run_id != started(home, "k2").run_id


def test_a_result_that_changed_is_sent_again(home):
    tracker = started(home)
    tracker.sync([Entry("evaluate", "4" * 64, {"P/1": 60.0})])
    tracker.sync([Entry("evaluate", "5" * 64, {"P/1": 61.0})])
    assert {value for key, _, value in points(home) if key == "test/P/1"} == {60.0, 61.0}


KILLED = """
    import os, signal, sys
    sys.path[:0] = [{root!r}, {root!r} + "/tests"]
    from pathlib import Path
    from test_tracking import ABOUT, ENTRIES
    from tasks.tracking import tracker as module
    tracker = module.Tracker(Path({home!r}))
    run = tracker.start("k1", **ABOUT)
    tracker.sync(ENTRIES[:1])
    if {between}:    # after the metrics, before the tag that remembers them
        send = module.send_batches
        def kill(client, run_id, *, metrics=(), params=None, tags=None):
            send(client, run_id, metrics=metrics)
            if tags:
                os.kill(os.getpid(), signal.SIGKILL)
        module.send_batches = kill
        tracker.sync(ENTRIES)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("between", [False, True])
def test_a_killed_run_goes_on_and_says_nothing(tmp_path, home, between):
    """Also: a first start from nothing prints nothing and leaves nothing in the current folder."""
    if not between:
        (home / "mlflow.db").unlink()
    here = tmp_path / "here"
    here.mkdir()
    script = textwrap.dedent(KILLED).format(root=str(ROOT), home=str(home), between=between)
    done = subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "", "")
    assert list(here.iterdir()) == []
    assert [run[1] for run in whole(home)] == ["RUNNING", "RUNNING"]
    tracker = started(home)
    tracker.sync(ENTRIES)
    tracker.finish("FINISHED", "done")
    assert [run[1] for run in whole(home)] == ["FINISHED", "FINISHED"]
    assert {point for point in points(home) if not point[0].startswith("time/")} == {
        point for point in EXPECTED if not point[0].startswith("time/")}
    assert len(set(points(home))) >= len(EXPECTED)
    assert [run[2].get("time/train") for run in whole(home)] == [None, 6.5]


def test_a_deleted_database_is_rebuilt(home):
    tracker = started(home)
    tracker.sync(ENTRIES)
    tracker.finish("FINISHED", "done")
    before = whole(home)
    (home / "mlflow.db").unlink()
    tracker = started(home)
    tracker.sync(ENTRIES)
    tracker.finish("FINISHED", "done")
    assert whole(home) == before
    (home / "mlflow.db").unlink()    # and under a tracker that is at work
    tracker.log_text("<p>", "report.html")
    assert [run[:4] for run in whole(home)] == [run[:4] for run in before]


def test_training_goes_on_without_a_server(tmp_path, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
    tracker = Tracker(tmp_path, uri)
    began = time.monotonic()
    assert tracker.start("k1", **ABOUT) is None
    tracker.sync(ENTRIES)
    tracker.finish("FINISHED", "done")
    assert set(tracker.close()) == {"config.yaml", "metrics", "the end of the run"}
    with pytest.raises(ServerError, match="no MLflow server answers") as caught, tracker.required():
        pass
    assert time.monotonic() - began < 15
    assert caught.value.exit_code == 5
    assert len(caplog.records) == 1 and "the run goes on" in caplog.text
    assert "secret" not in caplog.text + str(caught.value)


def test_a_server_that_never_answers_costs_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = Tracker(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert tracker.start("k1", **ABOUT) is None
        for _ in range(20):
            tracker.sync(ENTRIES)
        assert tracker.close()
        assert time.monotonic() - began < 15


def test_what_waited_is_sent_once(home, monkeypatch, caplog):
    answers = Tracker._connected
    tracker = Tracker(home)
    away = ServerError("no MLflow server answers")

    def down(self):
        raise away

    monkeypatch.setattr(Tracker, "_connected", down)
    monkeypatch.setattr("tasks.tracking.tracker.RETRY_SECONDS", 0)
    assert tracker.start("k1", **ABOUT) is None
    tracker.sync(ENTRIES[:2])
    tracker.sync(ENTRIES)
    monkeypatch.setattr(Tracker, "_connected", answers)
    tracker.finish("FINISHED", "done")
    assert tracker.close() == []
    assert points(home) == EXPECTED
    assert len(caplog.records) == 1


def test_one_thing_that_fails_does_not_keep_the_others(home, tmp_path, caplog):
    tracker = started(home)
    tracker.log_file(tmp_path / "missing.html")
    tracker.sync(ENTRIES)
    tracker._retry_at = 0
    tracker.finish("FINISHED", "done")
    assert tracker.close() == ["missing.html"]
    assert points(home) == EXPECTED
    assert "missing.html" in caplog.text


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


def test_there_are_at_most_sixty_metrics(home, caplog):
    tracker = started(home)
    tracker.sync([Entry("evaluate", "4" * 64, {f"m{i:03}": float(i) for i in range(100)}), ENTRIES[0]])
    assert len({key for key, _, _ in points(home)}) == mlflow_run.MAX_KEYS
    assert "left out" in caplog.text


def test_a_damaged_database_is_named_with_its_remedy(home, caplog):
    (home / "mlflow.db").write_bytes(b"not a database" * 1000)
    tracker = Tracker(home)
    assert tracker.start("k1", **ABOUT) is None
    assert "the run goes on" in caplog.text
    with pytest.raises(ServerError, match="not a database") as caught, tracker.required() as client:
        client.search_experiments()
    assert str(home / "mlflow.db") in caught.value.hint


def test_a_full_disk_is_not_called_a_damaged_database(home):
    from mlflow.exceptions import MlflowException

    full = sqlite3.connect(home / "full.db")
    full.execute("PRAGMA max_page_count = 2")
    full.execute("CREATE TABLE t (x)")
    for error in (sqlite3.OperationalError, OSError):
        with pytest.raises(ProjectError, match=f"the disk of {home} had no room") as caught, Tracker(home).required():
            try:
                if error is OSError:
                    with open("/dev/full", "wb", buffering=0) as file:
                        file.write(b"x")
                full.execute("INSERT INTO t VALUES (zeroblob(100000))")
            except sqlite3.OperationalError as refused:
                raise MlflowException(f"(sqlite3.OperationalError) {refused}") from refused
        assert caught.value.exit_code == 1 and "free space" in caught.value.hint


def test_a_database_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    from mlflow.store.db import utils

    def fail(engine):
        utils.InitialBase.metadata.create_all(engine)
        raise OSError("killed")

    monkeypatch.setattr(utils, "_initialize_tables", fail)
    with pytest.raises(OSError, match="killed"):
        mlflow_client.make_database(tmp_path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_a_deleted_experiment_is_restored(home):
    tracker = started(home)
    with tracker.required() as client:
        client.delete_experiment(client.get_experiment_by_name("xc").experiment_id)
    assert started(home, "k2").run_id


@pytest.mark.parametrize(("home", "uri"), [("a?b", None), ("a%20b", None), ("a", "localhost:5000"), ("a", "ftp://x")])
def test_what_cannot_be_an_address_is_refused(tmp_path, home, uri):
    with pytest.raises(UsageError):
        Tracker(tmp_path / home, uri)


@pytest.mark.skipif(not os.environ.get("XC_ALL_FAULTS"), reason="starts a server; set XC_ALL_FAULTS=1")
def test_a_real_server_that_stops_for_a_while(tmp_path, monkeypatch):
    with tiny.mlflow_server(tmp_path / "server") as (uri, server):
        tracker = Tracker(tmp_path / "home", uri)
        monkeypatch.setattr("tasks.tracking.tracker.RETRY_SECONDS", 0)
        assert tracker.start("k1", **ABOUT)
        os.killpg(server.pid, signal.SIGSTOP)
        tracker.sync(ENTRIES)
        assert tracker.close() == ["metrics"]
        os.killpg(server.pid, signal.SIGCONT)
        tracker.finish("FINISHED", "done")
        assert tracker.close() == []
        assert points(tmp_path / "server") == EXPECTED
        assert str(tracker.link()).startswith(uri)


def test_the_environment_of_the_user_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    Tracker(tmp_path)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert logging.getLogger("alembic").level == logging.CRITICAL
