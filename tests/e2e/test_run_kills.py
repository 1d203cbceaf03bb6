"""A run that is killed, interrupted or finds a damaged result ends as an unbroken one does."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.sorting import TaskRunSort
from prefect.states import Completed, Failed, Running

from data_contracts.errors import ServerError
from flows.prefect_state import noted_until_it_ends
from tasks.core.store import Store
from tests.support.forked import start_xc
from tests.support.home_services import prefect_client
from tests.support.long_tests import at_length
from tests.support.prefect_server import copy_database
from tests.support.run_command import command, objects, prepared, settings
from tests.support.tiny import fresh_store


def kill_when(planted: Path, home: Path, ready, number: int, **more: Any) -> int:
    """Start a run, send it a signal as soon as `ready(home)`; return its exit code."""
    return stop_when(planted, home, ready, number, **more)[0]


def stop_when(planted: Path, home: Path, ready, number: int, *, without: tuple[str, ...] = (), group: bool = False,
              **more: Any) -> tuple[int, str]:
    """Start a run, send it, or all of its process group, a signal; -> its exit code, what it said.

    without: variables of the environment that it does not get.
    """
    environment = {key: value for key, value in os.environ.items() if key not in without}
    process = start_xc(*command(planted, home, **more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                       start_new_session=True, env=environment)
    deadline = time.monotonic() + 120
    while process.poll() is None and not ready(home):
        assert time.monotonic() < deadline, "the run never got there"
        time.sleep(0.01)
    (os.killpg if group else os.kill)(process.pid, number)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def published(kind: str):
    """True once a step of this name prefix has been published."""
    return lambda home: (home / "refs" / "steps").exists() and any(name.startswith(kind) for name in objects(home))


@at_length("a run killed at every step")
@pytest.mark.timeout(600)
def test_killed_again_and_again_a_run_ends_as_an_unbroken_one(whole, planted, xc, tmp_path):
    home = tmp_path / "home"
    for moment in ("read", "encoder round 0", "mine encoder", "classifier round 0", "build"):
        assert kill_when(planted, home, published(moment), signal.SIGKILL) == -signal.SIGKILL, moment
    code, out, said = xc(*command(planted, home))
    assert code == 0, said
    assert json.loads(out)["metrics"] == whole[1]["metrics"]
    assert objects(home)["evaluate"] == objects(whole[0])["evaluate"]
    assert objects(home)["build retriever"] == objects(whole[0])["build retriever"]
    assert not list((home / "tmp").iterdir()), "a run removes what killed ones left"


def test_a_step_is_the_same_whatever_its_process_did_before(whole, planted, xc, tmp_path):
    """Training chooses what multiplies matrices, and by which the last digits of wide vectors differ."""
    home = prepared(whole[0], tmp_path / "home")
    wide = {"encoder.dim": "384", "m1.epochs": "6", "m1.refresh_from": "2", "m1.refresh_every": "2",
            "m2.epochs": "2", "m2.refresh_from": "1", "m2.refresh_every": "1"}
    assert xc(*command(planted, home, **wide))[0] == 0
    unbroken = objects(home)
    for key, manifest in list(Store(home).steps()):
        if manifest["about"]["step"].startswith(("mine", "embed", "build", "evaluate")):
            (home / "refs" / "steps" / key).unlink()
    code, _, said = xc(*command(planted, home, **wide))
    assert code == 0 and "reused  classifier round 1" in said and "reused  embed" not in said, said
    assert "encoder round 0: its files were removed, mine encoder round 1 reads them" in said
    assert objects(home) == unbroken


def test_interrupt_saves_and_the_same_command_resumes(whole, planted, xc, tmp_path):
    home, long = prepared(whole[0], tmp_path / "home"), {"m1.epochs": "40", "m1.refresh_from": "40"}
    began = []

    def training(home: Path) -> bool:
        if not list(home.glob("scratch/*/steps")):
            return False
        began.append(time.monotonic())
        return began[-1] - began[0] > 1.0      # inside the first round

    assert kill_when(planted, home, training, signal.SIGINT, **long) == 130
    saved = list(home.glob("scratch/*/steps/*.safetensors"))
    assert len(saved) == 1
    code, _, said = xc("train", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home), "--workers",
                       "0", *settings(**long))
    assert code == 0, said
    assert not list(home.glob("scratch/*/steps"))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(
    signal.SIGINT, marks=at_length("a Prefect server and a worker; one process gets it in the test above"))])
def test_a_signal_to_all_its_processes_ends_a_run_in_a_line_and_prefect_knows(planted, xc, tmp_path, number):
    """As `timeout`, a shutdown and a terminal's Ctrl-C send it; Prefect's server is the run's own."""
    home = fresh_store(tmp_path / "home").home
    copy_database(home / "prefect")
    code, said = stop_when(planted, home, published("read"), number, group=True, workers=1,
                           without=("PREFECT_API_URL", "PREFECT_HOME"))
    assert code == 130
    assert said.splitlines()[-2:] == ["error: interrupted", "hint: the same command resumes"]
    assert "Error" not in said and "Traceback" not in said
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        states = dict(database.execute("SELECT name, state_type FROM flow_run"))
    assert states and "RUNNING" not in states.values()
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(home) in " ".join(each.info["cmdline"] or [])]


def test_the_next_run_ends_what_a_killed_one_left_running(planted, xc, tmp_path):
    home = tmp_path / "home"
    assert kill_when(planted, home, published("read"), signal.SIGKILL, workers=1) == -signal.SIGKILL
    killed = json.loads((home / "run" / "flow-run").read_text())["id"]
    with prefect_client() as client:
        assert client.read_flow_run(killed).state.is_running()
        code, _, said = xc("prepare", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home),
                           "--workers", "0", *settings())
        assert code == 0, said
        assert client.read_flow_run(killed).state.is_crashed()
        of_it = FlowRunFilter.model_validate({"id": {"any_": [killed]}})
        tasks = client.read_task_runs(flow_run_filter=of_it)
        assert tasks and all(task.state.is_final() for task in tasks)
    assert not (home / "run" / "flow-run").exists()


def test_the_next_run_ends_what_failed_while_the_server_was_down(prefect_server, tmp_path, monkeypatch):
    """The server never heard that it failed; of one that it knows to have failed, nothing changes."""
    @flow
    def ends() -> None:
        pass

    @task
    def step() -> None:
        pass

    with prefect_client() as client:
        states = Running(), Failed(), Running()
        unheard, known, last = (client.create_flow_run(ends, state=state).id for state in states)
        running, ended = (client.create_task_run(step, unheard, kind.__name__, state=kind()).id
                          for kind in (Running, Completed))
        # A server answers with the first 200 alone.
        monkeypatch.setattr(SyncPrefectClient, "read_task_runs", partialmethod(
            SyncPrefectClient.read_task_runs, limit=1, sort=TaskRunSort.END_TIME_DESC))
        for run in (unheard, known):
            monkeypatch.setattr("flows.prefect_state.flow_run", SimpleNamespace(id=run))
            with pytest.raises(ServerError), noted_until_it_ends(tmp_path):
                raise ServerError("the Prefect server does not answer")
        monkeypatch.setattr("flows.prefect_state.flow_run", SimpleNamespace(id=last))
        for fails in (True, False):    # the second time as a run that is run again in Prefect's page
            with suppress(ServerError), noted_until_it_ends(tmp_path):
                if fails:
                    raise ServerError("the Prefect server does not answer")
        assert client.read_task_run(running).state.is_crashed() and client.read_task_run(ended).state.is_completed()
        assert client.read_flow_run(unheard).state.is_crashed() and client.read_flow_run(known).state.is_failed()
        assert client.read_flow_run(last).state.is_running() and not (tmp_path / "run" / "flow-run").exists()


@at_length("waits for retries")
def test_a_prefect_server_that_is_killed_is_named(planted, tmp_path):
    home, words = tmp_path / "home", command(planted, tmp_path / "home")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    with start_xc(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as run:
        while not published("read")(home):
            assert run.poll() is None
            time.sleep(0.1)
        next(each for each in psutil.Process(run.pid).children()
             if "flows.services.prefect_server" in each.cmdline()).kill()
        said = run.communicate(timeout=250)[1].splitlines()
    assert run.returncode == 5
    assert "does not answer" in said[-2] and "the same command resumes" in said[-1]
    assert not [line for line in said if "Traceback" in line or "ERROR" in line]


def test_a_damaged_result_is_refused_and_made_again(whole, planted, xc, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(whole[0], home)
    victim = home / "objects" / objects(home)["pack"] / "positives.train.values.npy"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    code, out, said = xc(*command(planted, home))
    assert code == 0, said
    assert json.loads(out)["metrics"] == whole[1]["metrics"]
    assert list((home / "quarantine").iterdir())
