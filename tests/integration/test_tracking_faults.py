"""MLflow that is gone, slow, damaged or full: training goes on, and what waited is sent once."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
import traceback

import pytest

from data_contracts.errors import ProjectError, ServerError, UsageError
from flows.services import definitions
from tasks.core.store import Store
from tasks.tracking import mlflow_client
from tasks.tracking.tracker import Tracker
from tests.support import tiny
from tests.support.long_tests import at_length
from tests.support.planted import write_planted
from tests.support.ports import free_port
from tests.unit.test_tracking import ABOUT, EXPECTED, ROOT, STEPS, points, started, whole

KILLED = """
    import os, signal, sys
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from tests.unit.test_tracking import ABOUT, STEPS
    from tasks.tracking import mlflow_run
    from tasks.tracking.tracker import Tracker
    tracker = Tracker(Path({home!r}))
    run = tracker.start("k1", **ABOUT)
    tracker.sync(STEPS[:1])
    if {between}:    # after the metrics, before the tag that remembers them
        send = mlflow_run.send_batches
        def kill(client, run_id, *, metrics=(), params=None, tags=None):
            send(client, run_id, metrics=metrics)
            if tags:
                os.kill(os.getpid(), signal.SIGKILL)
        mlflow_run.send_batches = kill
        tracker.sync(STEPS)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home(tmp_path):
    """HOME with an empty database; there is a space in its path, as there is in many."""
    return tiny.fresh_store(tmp_path / "my home").home


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
    tracker.sync(STEPS)
    tracker.finish("FINISHED", "done")
    assert [run[1] for run in whole(home)] == ["FINISHED", "FINISHED"]
    assert {point for point in points(home) if not point[0].startswith("time/")} == {
        point for point in EXPECTED if not point[0].startswith("time/")}
    assert len(set(points(home))) >= len(EXPECTED)
    assert [run[2].get("time/train") for run in whole(home)] == [None, 6.5]


def test_a_deleted_database_is_rebuilt(home):
    tracker = started(home)
    tracker.sync(STEPS)
    tracker.finish("FINISHED", "done")
    before = whole(home)
    (home / "mlflow.db").unlink()
    tracker = started(home)
    tracker.sync(STEPS)
    tracker.finish("FINISHED", "done")
    assert whole(home) == before
    (home / "mlflow.db").unlink()    # and under a tracker that is at work
    tracker.log_text("<p>", "report.html")
    assert [run[:4] for run in whole(home)] == [run[:4] for run in before]


def test_training_goes_on_without_a_server(tmp_path, caplog):
    tracker = Tracker(tmp_path, f"http://user:secret@127.0.0.1:{free_port()}")
    began = time.monotonic()
    assert tracker.start("k1", **ABOUT) is None
    tracker.sync(STEPS)
    tracker.finish("FINISHED", "done")
    assert set(tracker.close()) == {"config.yaml", "metrics", "the end of the run"}
    with pytest.raises(ServerError, match="no MLflow server answers") as caught, tracker.required():
        pass
    assert time.monotonic() - began < 60
    assert caught.value.exit_code == 5
    assert len(caplog.records) == 1 and "the run goes on" in caplog.text
    assert "secret" not in caplog.text + str(caught.value)


def test_prefect_keeps_no_password_of_a_run(cli, monkeypatch, tmp_path):
    """It keeps the parameters of a flow: the process signs in by its environment, and the flow has the bare address."""
    given = list[tuple[str, str, str]]()
    monkeypatch.setattr("flows.services.definitions.ensure_prefect", lambda *_, **__: False)
    monkeypatch.setattr("flows.run.run", lambda config, until: given.append((
        config.mlflow, os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])))
    code, _, said = cli("run", "--data", str(write_planted(tmp_path / "data", train=30, test=9, labels=5)),
                        "--mlflow", "http://ann:s3%40cret@127.0.0.1:9")
    assert (code, given) == (0, [("http://127.0.0.1:9", "ann", "s3@cret")]) and "cret" not in said


def test_a_password_in_what_mlflow_says_is_shown_nowhere(tmp_path, monkeypatch, caplog):
    """Its messages repeat the address; Prefect logs an error with those that it came from."""
    from mlflow.exceptions import MlflowException

    address = "http://ann:s3cret@mlflow.example:5000"

    def dropped(self):
        raise MlflowException(f"API request to {address}/api/2.0 failed with exception {'x' * 300}")

    monkeypatch.setattr(Tracker, "_connected", dropped)
    tracker = Tracker(tmp_path, address)
    assert tracker.start("k1", **ABOUT) is None
    with pytest.raises(ServerError) as caught, tracker.required():
        pass
    told = "API request to http://mlflow.example:5000/api/2.0 failed"
    assert told in caplog.text and told in str(caught.value)
    assert "s3cret" not in caplog.text + "".join(traceback.format_exception(caught.value))


def test_a_run_says_at_its_start_that_its_server_does_not_answer(cli, planted, monkeypatch):
    def stop(*_, **__):
        raise UsageError("far enough")

    monkeypatch.setattr(definitions, "ensure_prefect", stop)
    address = f"http://127.0.0.1:{free_port()}"
    code, _, said = cli("run", "--data", str(planted), "--mlflow", address)
    assert code == 2 and "far enough" in said
    assert f"warning: no MLflow server answers at {address}: " in said and "; training goes on, " in said


def test_a_server_that_never_answers_costs_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = Tracker(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert tracker.start("k1", **ABOUT) is None
        for _ in range(20):
            tracker.sync(STEPS)
        assert tracker.close()
        assert time.monotonic() - began < 60


def test_what_waited_is_sent_once(home, monkeypatch, caplog):
    answers = Tracker._connected
    tracker = Tracker(home)
    away = ServerError("no MLflow server answers")

    def down(self):
        raise away

    monkeypatch.setattr(Tracker, "_connected", down)
    monkeypatch.setattr("tasks.tracking.tracker.RETRY_SECONDS", 0)
    assert tracker.start("k1", **ABOUT) is None
    tracker.sync(STEPS[:2])
    tracker.sync(STEPS)
    monkeypatch.setattr(Tracker, "_connected", answers)
    tracker.finish("FINISHED", "done")
    assert tracker.close() == []
    assert points(home) == EXPECTED
    assert len(caplog.records) == 1


def test_one_thing_that_fails_does_not_keep_the_others(home, tmp_path, caplog):
    tracker = started(home)
    tracker.log_file(tmp_path / "missing.html")
    tracker.sync(STEPS)
    tracker._retry_at = 0
    tracker.finish("FINISHED", "done")
    assert tracker.close() == ["missing.html"]
    assert points(home) == EXPECTED
    assert "missing.html" in caplog.text


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
    with pytest.raises(ProjectError, match=f"the disk of {home} had no room"), Tracker(home).required():
        raise OSError("1049767 requested and 73696 written")    # NumPy's, which has no number
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


def test_a_run_that_begins_leaves_a_database_that_another_process_makes(tmp_path, monkeypatch):
    from mlflow.store.db import utils

    home = Store(tmp_path / "home").home
    made = utils._initialize_tables
    monkeypatch.setattr(utils, "_initialize_tables", lambda engine: (made(engine), Store(home).sweep()))
    mlflow_client.make_database(home)
    assert (home / "mlflow.db").exists() and not list((home / "tmp").iterdir())


@at_length("starts a server")
def test_a_real_server_that_stops_for_a_while(tmp_path, monkeypatch):
    with tiny.mlflow_server(tmp_path / "server") as (uri, server):
        tracker = Tracker(tmp_path / "home", uri)
        monkeypatch.setattr("tasks.tracking.tracker.RETRY_SECONDS", 0)
        assert tracker.start("k1", **ABOUT)
        os.killpg(server.pid, signal.SIGSTOP)
        tracker.sync(STEPS)
        assert tracker.close() == ["metrics"]
        os.killpg(server.pid, signal.SIGCONT)
        tracker.finish("FINISHED", "done")
        assert tracker.close() == []
        assert points(tmp_path / "server") == EXPECTED
        assert str(tracker.link()).startswith(uri)
