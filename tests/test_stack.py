"""`xc up`, `xc down`, `xc status` on loopback: what they start, find again, refuse and end."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
from prefect.client.schemas.actions import WorkPoolCreate

from flows.services import password
from tasks.artifacts import Store
from tests.stacks import Home, left_over, up


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Home]:
    yield from up(tmp_path_factory.mktemp("stack"))


def test_a_second_up_starts_nothing(home):
    before = home.status()
    assert {row["well"] for row in before.values()} == {True}
    code, _, said = home.xc("up")
    assert code == 0 and said.count("already up") == len(before) == 4
    assert home.status() == before


def test_what_has_ended_is_seen_and_alone_started_again(home):
    before = home.status()
    psutil.Process(before["worker-cpu"]["pid"]).kill()
    assert not home.status()["worker-cpu"]["running"]
    code, _, said = home.xc("up")
    assert code == 0 and said.count("already up") == 3, said
    after = home.status()
    assert after["worker-cpu"]["well"] and after["worker-cpu"]["pid"] != before.pop("worker-cpu")["pid"]
    assert before.items() <= after.items()


def test_the_servers_want_a_password_a_token_and_their_own_name(home):
    address = home.stack.running("prefect").address
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/api/flows/00000000-0000-0000-0000-000000000000")
    assert refused.value.code == 401
    assert (home.home / "prefect" / "password").stat().st_mode & 0o077 == 0
    evil = urllib.request.Request(f"{address}/api/health", headers={"Origin": "http://evil.example"})
    assert "Access-Control-Allow-Origin" not in urllib.request.urlopen(evil).headers
    evil = urllib.request.Request(f"{home.stack.running('mlflow').address}/api/2.0/mlflow/experiments/search",
                                  data=b"{}", headers={"Host": "evil.example", "Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(evil)
    assert refused.value.code == 403


def test_servers_that_exist_are_used_and_not_started(home, tmp_path):
    """Only a worker and an app are started beside somebody else's Prefect and MLflow, and only they are ended."""
    other = Home(tmp_path / "home")
    servers = {"PREFECT_API_URL": f"{home.stack.running('prefect').address}/api",
               "PREFECT_API_AUTH_STRING": password(home.home), "XC_MLFLOW": home.stack.running("mlflow").address}
    code, _, said = other.xc("up", **servers)
    assert code == 0 and said.count("not started") == 2, said
    assert set(other.status()) == {"worker-cpu", "app"}
    assert other.xc("down")[0] == 0
    assert home.stack.running("prefect").well and home.stack.running("mlflow").well


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


def test_state_survives_down_and_up(home):
    with home.prefect() as client:
        client.create_work_pool(WorkPoolCreate(name="mine", type="process"))
    code, _, said = home.xc("down")
    assert code == 0 and said.count("ended") == 4
    assert not left_over(home.home) and home.status() == {}
    code, _, said = home.xc("down")
    assert code == 0 and "is up" in said
    code, _, said = home.xc("up")
    assert code == 0, said
    with home.prefect() as client:
        assert client.read_work_pool("mine").name == "mine"
