"""`xc up` and `xc down` on loopback: what they refuse and leave. test_deployments.py has a home that is up."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate

from flows.services.definitions import prefect_service
from tasks.core.store import Store
from tests.support.home_services import Home, left_over, up
from tests.support.long_tests import at_length
from tests.support.ports import free_port
from tests.support.prefect_server import copy_database


@pytest.fixture
def home(tmp_path) -> Iterator[Home]:
    yield from up(tmp_path)


def test_a_busy_port_names_its_holder_and_nothing_is_left(tmp_path):
    other = Home(tmp_path / "home")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, _, said = other.xc("up", "--mlflow-port", str(port))
    assert code == 5 and f"port {port} of MLflow is taken by process {os.getpid()}" in said
    assert "--mlflow-port" in said and len(said.splitlines()) <= 6
    assert not other.status() and not left_over(other.home)


def test_a_service_that_ends_takes_back_the_others(tmp_path):
    """MLflow's database is not one, so MLflow ends; Prefect is not left behind."""
    other = Home(tmp_path / "home")
    Store(other.home)
    copy_database(other.home / "prefect")
    (other.home / "mlflow.db").write_bytes(b"not a database" * 100)
    code, _, said = other.xc("up")
    assert code == 5 and "MLflow ended with code" in said and "logs/mlflow.log" in said
    assert not other.status() and not left_over(other.home)


def test_down_leaves_a_process_that_only_has_the_pid(tmp_path):
    other = Home(tmp_path / "home")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (other.home / "run").mkdir(parents=True)
        (other.home / "run" / "prefect.json").write_text(json.dumps({
            "name": "prefect", "title": "Prefect", "pid": stranger.pid, "create_time": time.time() - 3600,
            "address": "http://127.0.0.1:1", "health": "http://127.0.0.1:1/", "command": ["sleep"], "mark": "a" * 32}))
        code, _, said = other.xc("down")
        assert code == 0 and "nothing of" in said
        assert stranger.poll() is None
        stranger.kill()


def test_a_slot_that_a_run_has_outlives_the_prefect_server(tmp_path):
    """Else the run ends minutes after the server was started again, and one killed as it begins keeps the slot."""
    other = Home(tmp_path / "home")
    Store(other.home)
    copy_database(other.home / "prefect")
    part = prefect_service(other.home, free_port())
    try:
        other.stack.up([part], print)
        with other.prefect() as client:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="retrain", limit=1))
            given = client.increment_concurrency_slots_with_lease(["retrain"], 1, "concurrency", 300.0).json()
        server = psutil.Process(other.stack.running("prefect").pid)
        server.kill()
        server.wait()
        other.stack.up([part], print)
        with other.prefect() as client:
            client.renew_concurrency_lease(UUID(given["lease_id"]), 300.0)
    finally:
        other.stack.down(print)
    assert not left_over(other.home)


@at_length("starts all again; the page restore.md brings a home back, test_deployments.py ends one")
def test_state_survives_down_and_up(home):
    with home.prefect() as client:
        client.create_work_pool(WorkPoolCreate(name="mine", type="process"))
    code, _, said = home.xc("down")
    assert code == 0 and said.count("ended") == 5
    assert not left_over(home.home) and home.status() == {}
    code, _, said = home.xc("down")
    assert code == 0 and "is up" in said
    code, _, said = home.xc("up")
    assert code == 0, said
    with home.prefect() as client:
        assert client.read_work_pool("mine").name == "mine"
