"""Homes that share an MLflow server: a model is joined by data or by name, never by chance."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import ServerError, UsageError
from tasks.registry.tags import DATA, RUN_HOME
from tasks.runs import past_runs
from tasks.tracked_run import TrackedRun
from tasks.tracking.tracker import Tracker
from tests.support import tiny


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Iterator[Path]:
    """A database that stands for a server's, which takes seconds to start; trackers reach it as they reach a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.tracking.tracker.probe", lambda address: None)
    database = tiny.fresh_store(tmp_path / "server").home / "mlflow.db"
    with tiny.global_uri(f"sqlite:///{database}"):
        yield database


def home(folder: Path, shared: Path) -> Any:
    """Return a home that is tracked by the server, with a run there."""
    made = tiny.RegisteredModels.__new__(tiny.RegisteredModels)
    made.store, made.tracker = tiny.fresh_store(folder), tracked(folder, shared)
    made.run = made.tracker.start(str(folder), experiment="xc", name="", params={}, config_yaml="", data={},
                                  tags={RUN_HOME: str(folder)})
    return made


def tracked(folder: Path, shared: Path) -> Tracker:
    tracker = Tracker(folder, "http://127.0.0.1:9")
    tracker.uri = f"sqlite:///{shared}"
    return tracker


def ask(folder: Path, shared: Path, data: str, name: str = "") -> None:
    """Ask as a run does before it trains."""
    run = TrackedRun(SimpleNamespace(name=name, mlflow="http://127.0.0.1:9"),  # type: ignore[arg-type]
                     SimpleNamespace(data=SimpleNamespace(name="xc"), data_digest=data),
                     tiny.fresh_store(folder), print)
    run.tracker = tracked(folder, shared)
    run.check_owner()


def test_data_of_the_same_name_in_two_homes_is_not_one_model(tmp_path, shared):
    first = home(tmp_path / "first", shared)
    ask(tmp_path / "first", shared, "a" * 64)
    first.register(0, facts={DATA: "a" * 64})
    with pytest.raises(UsageError, match=r"model 'xc' of .* is of another home, and of other data") as refused:
        ask(tmp_path / "second", shared, "b" * 64)
    assert refused.value.hint == "--name NAME for a model of its own; --name xc to share that one"
    ask(tmp_path / "first", shared, "b" * 64)                # data that has grown
    ask(tmp_path / "second", shared, "a" * 64)               # another seed of the same data
    ask(tmp_path / "second", shared, "b" * 64, name="xc")    # that one is meant
    os.rename(tmp_path / "first", tmp_path / "moved")
    ask(tmp_path / "moved", shared, "b" * 64)
    home(tmp_path / "second", shared).register(1, facts={DATA: "b" * 64})
    ask(tmp_path / "second", shared, "c" * 64)


def test_a_server_that_does_not_answer_is_told_by_whoever_cannot_do_without(tmp_path):
    run = TrackedRun(SimpleNamespace(name="", mlflow="http://127.0.0.1:9"),  # type: ignore[arg-type]
                     SimpleNamespace(data=SimpleNamespace(name="xc"), data_digest="a" * 64),
                     tiny.fresh_store(tmp_path / "home"), print)
    with pytest.raises(ServerError, match="no MLflow server answers"):
        run.check_owner()
    run.tracker = Tracker(tmp_path / "home")
    run.check_owner()    # a database of its own has no other home's models


def test_runs_of_a_shared_server_are_those_of_the_home_wherever_it_was(tmp_path, shared):
    home(tmp_path / "first", shared)
    home(tmp_path / "second", shared)
    shutil.move(tmp_path / "first", tmp_path / "moved")
    assert len(past_runs(tracked(tmp_path / "moved", shared), shared=True)) == 1
