"""A home that is up: what `xc up` and `xc status` find and start again, and deployments, by hand and by schedule."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from flows.deploy import WATCH
from flows.services.definitions import password
from flows.services.processes import processes
from tasks.core.store import Store
from tasks.tracking import mlflow_client
from tests.support.forked import start_xc
from tests.support.home_services import Home, answers, asked, left_over, until, up
from tests.support.long_tests import at_length
from tests.support.planted import write_planted
from tests.support.run_command import settings

QUICK = {"m1.epochs": "4", "m1.refresh_from": "2", "m1.refresh_every": "2", "m2.epochs": "2",
         "m1.least_steps": "0", "m2.least_steps": "0"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_planted(tmp_path_factory.mktemp("raw") / "small", train=300, test=80, labels=40)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Home]:
    yield from up(tmp_path_factory.mktemp("deployed"))


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


@pytest.fixture(scope="module")
def deployed(home, data) -> list[str]:
    """The words of `xc deploy` as it was called."""
    words = ["deploy", "--data", str(data), "--preset", "cpu-learned", *settings(**QUICK), "--json"]
    code, out, said = home.xc(*words)
    assert code == 0, said
    assert "what the deployments run is loaded" in said
    assert {row["deployment"]: row["change"] for row in json.loads(out)} == {
        name: "created" for name in ("prepare/small", "apply-labels/small", "evaluate/small", "retrain/small")}
    return words


def run_states(home: Home, deployment: str) -> list[Any]:
    """Return the flow runs of a deployment, by their start."""
    with home.prefect() as client:
        wanted = client.read_deployment_by_name(deployment).id
        runs = [run for run in client.read_flow_runs(limit=200) if run.deployment_id == wanted and run.start_time]
    return sorted(runs, key=lambda run: run.start_time)


def set_prepare_schedule(home: Home, deployed: list[str], when: str) -> None:
    """Change when the deployment prepare/small runs: each run takes seconds of a processor."""
    code, out, said = home.xc(*deployed, "--schedule", f"prepare={when}")
    assert code == 0 and ("prepare/small", "schedule") in {
        (row["deployment"], row["change"]) for row in json.loads(out)}, said


def unscheduled_runs(client: SyncPrefectClient) -> list[Any]:
    """Return the flow runs that no schedule made."""
    return [run for run in client.read_flow_runs(limit=200) if not run.auto_scheduled]


def test_deploying_again_changes_nothing_or_what_was_asked(home, deployed):
    with home.prefect() as client:
        known = client.read_deployment_by_name("retrain/small")
    before = known.updated
    assert known.path is None and str(home.home) in str(known.pull_steps)    # a worker copies no folder for a run
    code, out, said = home.xc(*deployed, "--schedule", "retrain=off", "--dry-run")
    assert code == 0 and "retrain/small            would be changed: schedule; off" in said, said
    assert {row["deployment"]: row["change"] for row in json.loads(out)} == {
        **{f"{name}/small": "nothing" for name in ("prepare", "apply-labels", "evaluate")}, "retrain/small": "schedule"}
    for wrong, what in ((("--workers", "-1"), "--workers must be at least 0, got -1"),
                        (("--now", "retrian"), "did you mean 'retrain'")):
        code, _, said = home.xc(*deployed, *wrong)
        assert code == 2 and what in said, said
    with home.prefect() as client:
        assert client.read_deployment_by_name("retrain/small").updated == before


def test_a_bad_value_is_refused_before_there_is_a_run(home, deployed):
    with home.prefect() as client:
        deployment = client.read_deployment_by_name("retrain/small")
        form = deployment.parameter_openapi_schema["definitions"]["RetrainForm"]["properties"]
        count = len(unscheduled_runs(client))
        for wrong in ({"workers": -1}, {"method": "ngme"}, {"data": "relative"}, {"patience": 1e9}, {"until": "train"}):
            with pytest.raises(PrefectHTTPStatusError) as refused:
                client.create_flow_run_from_deployment(
                    deployment.id, parameters={"config": {**deployment.parameters["config"], **wrong}})
            assert refused.value.response.status_code in (409, 422), wrong
        assert len(unscheduled_runs(client)) == count
    assert all({"title", "description", "position"} <= shown.keys() for shown in form.values())
    assert all(shown.keys() & {"enum", "pattern", "maximum", "maxProperties"} for shown in form.values())
    assert "processes" in form["workers"]["description"] and "hours" in form["patience"]["description"]
    assert not [name for name, shown in form.items() if "anyOf" in shown], "nothing is nullable"


def test_one_training_at_a_time_by_hand_and_by_schedule(home, deployed):
    """A run that was killed is seen at once; the one that waited for it goes on; cron runs reuse what it made."""
    with Store(home.home).run_lock(240), home.prefect() as client:
        deployment = client.read_deployment_by_name("retrain/small").id
        code, _, said = home.xc(*deployed, "--now", "retrain")
        assert code == 0 and "retrain/small begins: " in said, said
        first = UUID(re.search(r"/flow-run/(\S+)", said)[1])
        second = client.create_flow_run_from_deployment(deployment).id

        def state(run: Any) -> Any:
            return client.read_flow_run(run).state

        running, waiting = until(lambda: [each for each in ((first, second), (second, first))
                                          if state(each[0]).is_running()
                                          and state(each[1]).name == "AwaitingConcurrencySlot"])[0]
        until(lambda: f"in use by process {os.getpid()}; waits" in (home.stack.logs / "worker-cpu.log").read_text())
        victim = next(process for process in processes(home.stack.running("worker-cpu"))
                      if "engine" in " ".join(process.cmdline())
                      and str(running) in " ".join(process.environ().values()))
        victim.send_signal(signal.SIGKILL)
        until(lambda: state(running).is_crashed(), 30)
        until(lambda: state(waiting).is_running(), 60)
    with home.prefect() as client:
        until(lambda: client.read_flow_run(waiting).state.is_final(), 150)
        done = client.read_flow_run(waiting)
        assert done.state.is_completed(), done.state
        room = until(lambda: [task.state.message for task in client.read_task_runs(limit=200) if task.state.is_final()
                              and task.flow_run_id == waiting and task.name == "small · room"])[0]
        assert room.startswith("freed ")
        assert done.name == "ngame · small" and {"method:ngame", "data:small", "preset:cpu-learned"} <= set(done.tags)
    set_prepare_schedule(home, deployed, "* * * * *")
    began = datetime.now(UTC)
    cron = until(lambda: [run for run in run_states(home, "prepare/small")
                          if run.start_time > began and run.state.is_final()], 150)[0]
    set_prepare_schedule(home, deployed, "off")
    assert cron.state.is_completed() and cron.auto_scheduled
    with home.prefect() as client:
        below = [run.id for run in client.read_flow_runs(limit=200)
                 if run.start_time and run.start_time > began and run.name == "ngame · small · prepare"]
        steps = {task.name: (task.state.name, task.state.message) for task in client.read_task_runs(limit=200)
                 if task.flow_run_id in below and task.name.startswith("ngame")}
    assert len(steps) == 5 and {state for state, _ in steps.values()} == {"Reused"}, steps


def test_the_model_answers_by_itself_and_the_servers_are_found(home, deployed):
    """The app began without a model; `xc predict` is not told where MLflow is."""
    address = home.stack.running("app").address
    until(lambda: answers(f"{address}/readyz") == 200, 60)
    asked = urllib.request.Request(f"{address}/predict", data=json.dumps({"texts": ["a text"], "k": 2}).encode(),
                                   headers={"Content-Type": "application/json"})
    answer = json.loads(urllib.request.urlopen(asked).read())
    assert answer["model"]["name"] == "small" and len(answer["results"][0]["labels"]) == 2
    code, out, said = home.xc("models", "--json")
    assert code == 0 and [row["aliases"] for row in json.loads(out)], said


def test_the_champion_is_scored_and_given_the_labels_that_were_added(home, deployed, tmp_path):
    (tmp_path / "new.csv").write_text("uid,text\nN1,zebra crossing\n")
    code, _, said = home.xc("labels", "add", str(tmp_path / "new.csv"), "--later", "--model", "small")
    assert code == 0, said
    with home.prefect() as client:
        runs = [client.create_flow_run_from_deployment(client.read_deployment_by_name(f"{name}/small").id).id
                for name in ("apply-labels", "evaluate")]
        until(lambda: all(client.read_flow_run(run).state.is_final() for run in runs), 200)
        states = [client.read_flow_run(run).state for run in runs]
        assert all(state.is_completed() for state in states), (states, (home.stack.logs / "worker-cpu.log").read_text())
        [scored] = (each for each in client.read_artifacts(limit=200) if each.key == "champion")
    assert "P@1" in str(scored.data)
    code, out, said = home.xc("labels", "list", "--model", "small", "--json")
    assert code == 0 and json.loads(out)["applied"], said


@at_length("waits for 90 s")
def test_a_run_by_hand_that_is_killed_is_seen_by_the_server(home, deployed, data, tmp_path):
    words = ["prepare", "--data", str(data), "--preset", "cpu-learned", "--home", str(tmp_path / "home"), *settings()]
    server = {"PREFECT_API_URL": f"{home.stack.running('prefect').address}/api",
              "PREFECT_API_AUTH_STRING": password(home.home)}
    with start_xc(*words, env={**home.environment, **server}, stdout=subprocess.DEVNULL,
                  stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: list((tmp_path / "home").glob("refs/steps/*")))
        finally:
            process.kill()
    run = json.loads((tmp_path / "home" / "run" / "flow-run").read_text())["id"]
    with home.prefect() as client:
        assert client.read_flow_run(run).state.is_running()
        until(lambda: client.read_flow_run(run).state.is_crashed(), 90)
        below = [each for each in client.read_flow_runs(limit=200) if each.name == "ngame · small · prepare"
                 and not each.deployment_id and not each.state.is_completed()]
        until(lambda: all(client.read_flow_run(each.id).state.is_final() for each in below), 30)


@at_length("waits for 4 minutes")
@pytest.mark.timeout(600)
def test_what_was_due_while_all_was_down_is_done_once(home, deployed):
    set_prepare_schedule(home, deployed, "* * * * *")
    assert home.xc("down")[0] == 0
    time.sleep(190)
    began = datetime.now(UTC)
    assert home.xc("up")[0] == 0
    with home.prefect() as client:
        runs = client.read_flow_runs(limit=200)
    missed = [run for run in runs if "were down" in (run.state.message or "")]
    late = [run for run in runs if run.state.is_scheduled() and run.expected_start_time < began]
    assert len(missed) >= 2 and len(late) <= 1


def test_what_was_made_answers_when_all_is_down(home, deployed):
    code, _, said = home.xc("down")
    assert code == 0 and said.count("ended") == 5
    assert not left_over(home.home) and home.status() == {}
    code, out, said = home.xc("predict", "a text", "--model", "small@champion")
    assert code == 0 and json.loads(out)["labels"], said
