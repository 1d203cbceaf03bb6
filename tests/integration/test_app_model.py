"""Which model the app of `xc up` serves: the one that is named, or the only one, also after a restart."""

from dataclasses import replace
from io import BytesIO

import psutil
import pytest
from starlette.testclient import TestClient

from data_contracts.errors import UsageError
from flows.cli.commands import stack as commands
from flows.services.processes import Record, Service
from flows.services.stack import Stack
from serving import server
from serving.app import create_app
from serving.http.guard import Access
from tests.support.running_server import ServedModels, running, within


@pytest.fixture
def models(tmp_path):
    made = ServedModels(tmp_path / "home")
    made.add()
    return made


@pytest.fixture
def up(models, monkeypatch):
    """Return what `xc up` says and the app that it would start; nothing is started."""
    for name in ("PREFECT_API_URL", "XC_MLFLOW"):
        monkeypatch.delenv(name, raising=False)

    def run(model="", mlflow=""):
        said, parts = [], []
        monkeypatch.setattr(commands, "say", said.append)
        monkeypatch.setattr(Stack, "up", lambda self, services, say, again: parts.extend(services) or set())
        commands.up(home=models.home, model=model, mlflow=mlflow)
        return "\n".join(said), next(part for part in parts if part.name == "app")

    return run


def register(models, name):
    with models.tracker.required() as client:
        client.create_registered_model(name)


def test_the_only_model_is_named_so_that_it_stays_the_apps(up):
    said, app = up()
    assert app.command[-2:] == ["--model", "xc"] and "waits" not in said


def test_one_of_several_is_to_be_named(up, models):
    register(models, "another")
    with pytest.raises(UsageError, match="there are 2 models: another, xc") as caught:
        up()
    assert caught.value.hint == "--model another"
    assert up("xc")[1].command[-2:] == ["--model", "xc"]


def test_a_name_that_no_model_has_is_told(up):
    said, app = up("xd")
    assert "waits for a model 'xd'; registered: xc" in said and app.command[-2:] == ["--model", "xd"]


@pytest.mark.parametrize("spec", ["xc@champion", "xc/1", "models:/xc", "models:/xc/1"])
def test_a_model_that_is_there_is_known_however_it_is_named(up, spec):
    said, app = up(spec)
    assert "waits for" not in said and app.command[-2:] == ["--model", spec]
    assert f"waits for a model {spec.replace('xc', 'xd')!r}; registered: xc" in up(spec.replace("xc", "xd"))[0]


def test_an_app_that_is_up_for_another_model_is_told(up, models, monkeypatch):
    record = Record.of(Service("app", "app", ["serve", "--model", "xc"], {}, "http://127.0.0.1:1"))
    monkeypatch.setattr(Stack, "records", lambda self: {"app": record})
    monkeypatch.setattr(Stack, "running", lambda self, name: record if name == "app" else None)
    register(models, "another")
    assert "already up: http://127.0.0.1:1\n" in up()[0] + "\n"    # whatever else was registered meanwhile
    assert f"not for the model that was asked for: first xc down --home {models.home}" in up("another")[0]
    record = replace(record, command=["serve"])    # begun before there was a model, it serves the first one
    assert "not for the model" not in up("xc")[0]


def test_a_password_in_the_address_of_mlflow_is_used_and_not_shown(up, monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda address, **_: asked.append(address) or BytesIO())
    said, app = up("xc", "http://me:hunter2@127.0.0.1:1")
    assert "http://127.0.0.1:1, which was there" in said and "hunter2" not in said + str(asked)
    assert app.environment["XC_MLFLOW"] == "http://me:hunter2@127.0.0.1:1"


def test_a_server_waits_for_a_first_model_and_not_for_one_of_several_to_go(models, monkeypatch):
    monkeypatch.setattr(server, "forbid_pickle", lambda: None)
    assert server.open_follower(models.home, "", "", wait=True).current.name == "xc"
    register(models, "another")
    with pytest.raises(UsageError, match="there are 2 models"):
        server.open_follower(models.home, "", "", wait=True)
    assert server.open_follower(models.home, "", "xd", wait=True).fault == "no model 'xd'; known: another, xc"


def test_workers_that_are_started_again_serve_the_model_of_before(models):
    """Also where all have ended at once."""
    with running(models.home, "--workers", "2") as one:
        register(models, "another")
        for worker in psutil.Process(one.process.pid).children():
            worker.kill()
        assert within(120, lambda: "is started again" in one.log.read_text() and one.ask("/readyz").body == b"ok")
        assert one.ask("/model").json()["name"] == "xc" and "there are 2 models" not in one.log.read_text()


def test_why_nothing_answers_is_told_at_model_and_to_nobody_without_the_token(models, monkeypatch):
    monkeypatch.setattr(server, "forbid_pickle", lambda: None)
    app, _ = create_app(server.open_follower(models.home, "", "xd", wait=True), Access(token="a token"), None)
    client = TestClient(app, base_url="http://localhost")
    assert client.get("/model").status_code == 401
    answer = client.get("/model", headers={"Authorization": "Bearer a token"})
    assert (answer.status_code, answer.json()["detail"]) == (503, "no model is loaded: no model 'xd'; known: xc")
    assert client.get("/readyz").json()["detail"] == "no model is loaded"
