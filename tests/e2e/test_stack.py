"""`xc up`, `xc down`, `xc status` on loopback: what they start, find again, refuse and end."""

import base64
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

from flows.deploy import WATCH
from flows.services.definitions import password
from tasks.core.store import Store
from tasks.tracking import mlflow_client
from tests.support.home_services import Home, left_over, up
from tests.support.long_tests import at_length
from tests.support.prefect_server import copy_database


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Home]:
    yield from up(tmp_path_factory.mktemp("stack"))


def test_a_second_up_starts_nothing_and_makes_what_prefect_lacks(home):
    with home.prefect() as client:
        client.delete_work_pool("gpu")
        [watch] = client.read_automations_by_name(WATCH)
        client.delete_automation(watch.id)
    before = home.status()
    assert {row["state"] for row in before.values()} == {"well"} and home.xc("status")[0] == 0
    code, _, said = home.xc("up")
    assert code == 0 and said.count("already up") == len(before) == 5
    assert home.status() == before
    with home.prefect() as client:
        assert client.read_work_pool("gpu") and client.read_automations_by_name(WATCH)


def test_what_has_ended_is_told_and_started_again_alone(home):
    before = home.status()
    psutil.Process(before["supervisor"]["pid"]).kill()
    psutil.Process(before["worker-cpu"]["pid"]).kill()
    code, _, said = home.xc("status")
    assert code == 5 and "of 5 parts: " in said and "worker-cpu has ended" in said and "supervisor has ended" in said
    code, _, said = home.xc("up")
    assert code == 0 and said.count("already up") == 3, said
    after = home.status()
    for name in ("worker-cpu", "supervisor"):
        assert after[name]["well"] and after[name]["pid"] != before.pop(name)["pid"]
    assert before.items() <= after.items()


def asked(address: str, signed_in: str = "", *, method: str | None = None, data: bytes | None = None,
          **headers: str) -> int:
    """Return the status with which a server answers a request, by "user:password" where one is given."""
    if signed_in:
        headers["Authorization"] = "Basic " + base64.b64encode(signed_in.encode()).decode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers, method=method)) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_servers_want_a_password_a_token_and_their_own_name(home):
    prefect, mlflow, app = (home.stack.running(name).address for name in ("prefect", "mlflow", "app"))
    mine = mlflow_client.password(home.home)
    assert asked(f"{prefect}/api/flows/00000000-0000-0000-0000-000000000000") == 401
    for name in ("prefect", "mlflow"):
        assert (home.home / name / "password").stat().st_mode & 0o077 == 0
    experiments = f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
    new = f"{mlflow}/api/2.0/mlflow/runs/create"
    file = f"{mlflow}/api/2.0/mlflow-artifacts/artifacts/1/x.py"
    assert [asked(experiments), asked(f"{mlflow}/graphql", data=b"{}"), asked(f"{mlflow}/"),
            asked(file, method="PUT", data=b"x"), asked(experiments, "xc:no")] == [401] * 5
    assert asked(experiments, mine) == asked(f"{mlflow}/", mine) == asked(f"{mlflow}/health") == 200
    assert asked(file, mine, method="PUT", data=b"x") == 503, "it takes files for paths of this machine"
    assert asked(new, mine, data=b"{}", Host="evil.example") == 421
    evil = {"Origin": "http://localhost:9999", "Content-Type": "application/json"}
    assert asked(new, mine, data=b"{}", **evil) == asked(experiments, mine, **evil) == 403
    assert asked(f"{app}/predict", data=b"{}", **evil) == 403
    assert asked(f"{prefect}/api/flows/", password(home.home), data=b'{"name": "x"}', **evil) == 403
    answer = urllib.request.urlopen(urllib.request.Request(f"{prefect}/api/health", headers=evil))
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_servers_that_exist_are_used_and_not_started(home, tmp_path):
    """Only a worker and an app are started beside somebody else's Prefect and MLflow, and only they are ended."""
    other = Home(tmp_path / "home")
    servers = {"PREFECT_API_URL": f"{home.stack.running('prefect').address}/api",
               "PREFECT_API_AUTH_STRING": password(home.home), "XC_MLFLOW": home.stack.running("mlflow").address}
    code, _, said = other.xc("up", **servers)
    assert code == 0 and said.count("not started") == 2, said
    assert set(other.status()) == {"worker-cpu", "app", "supervisor"}
    code, _, said = other.xc("models", **servers)
    assert code == 5 and "401" in said and "hint: sign in by MLFLOW_TRACKING_USERNAME" in said
    code, _, said = other.xc("models", **servers, **mlflow_client.signed_in(home.home))
    assert code == 0, said
    assert other.xc("down")[0] == 0
    assert home.stack.running("prefect").well and home.stack.running("mlflow").well


def test_the_home_signs_in_to_its_own_mlflow(home):
    """By whatever address of it is given, and past the environment's password for another one."""
    address = home.stack.running("mlflow").address
    for words in ((), ("--mlflow", address.replace("127.0.0.1", "localhost"))):
        code, _, said = home.xc("models", *words, MLFLOW_TRACKING_USERNAME="me", MLFLOW_TRACKING_PASSWORD="other")
        assert code == 0, said


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
