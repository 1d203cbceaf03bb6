"""What `xc deploy` would deploy, and what its forms take: no server is needed for that."""

import shlex
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import WorkerStatus
from prefect.states import Failed
from pydantic import ValidationError

from data_contracts.errors import ContractError, ServerError, UsageError
from flows import deploy, deployed_flows
from flows.cli.commands.deploy import _times
from flows.cli.options import checked_config
from flows.config import PrepareOptions
from flows.deploy import plan
from flows.forms import ApplyLabelsForm, EvaluateForm, PrepareForm, RetrainForm
from flows.services import definitions
from xcmodels.methods.presets import PRESETS

GIVEN = {"data": "/data/wordnet", "home": "/home/me/.xc"}
TAGS = ["method:ngame", "data:wordnet", "preset:cpu"]


def forms(**changed):
    given = {**GIVEN, **changed}
    return {"prepare": PrepareForm.model_validate(given), "retrain": RetrainForm.model_validate(given),
            "evaluate": EvaluateForm.model_validate(given),
            "apply-labels": ApplyLabelsForm(name="wordnet", home=GIVEN["home"])}


def test_every_deployment_of_the_file_is_named_after_the_model():
    found = {each.full_name: each for each in plan("wordnet", forms(), TAGS, {}, "cpu")}
    assert set(found) == {"prepare/wordnet", "retrain/wordnet", "evaluate/wordnet", "apply-labels/wordnet"}
    for each in found.values():
        assert each.concurrency_limit == 1 and each.concurrency_options.collision_strategy == "ENQUEUE"
        assert each.parameters["config"]["home"] == "/home/me/.xc" and each.tags == TAGS
        assert each.schedules[0].active and each.enforce_parameter_schema
        # Else a worker copies the folder that `xc deploy` was called in, for each run.
        assert each.storage.to_pull_step() == {
            "prefect.deployments.steps.set_working_directory": {"directory": "/home/me/.xc"}}


def test_the_schedule_and_the_pool_are_the_users():
    found = {each.full_name: each for each in
             plan("wordnet", forms(), TAGS, {"retrain": "0 4 1 * *", "evaluate": "off"}, "gpu")}
    assert found["retrain/wordnet"].schedules[0].schedule.cron == "0 4 1 * *"
    assert not found["evaluate/wordnet"].schedules[0].active
    assert [found[f"{name}/wordnet"].work_pool_name for name in ("retrain", "prepare")] == ["gpu", "cpu"]


@pytest.mark.parametrize(("schedules", "said"), [
    ({"retrain": "every day"}, "'every day' is not a cron line"),
    ({"retrain": "0 0 3 * * *"}, "'0 0 3 [*] [*] [*]' is not a cron line of five fields: minute, hour"),
    ({"retrain": "0 3 31 2 *"}, "'0 3 31 2 [*]' is not a cron line that ever comes"),
    ({"retrain": "61 3 * * *"}, "'61 3 [*] [*] [*]' is not a cron line that ever comes"),
    ({"retrain": ""}, "'' is not a cron line of five fields")])
def test_a_schedule_that_is_invalid_is_refused(schedules, said):
    with pytest.raises(UsageError, match=said):
        plan("wordnet", forms(), TAGS, schedules, "cpu")


def test_a_deployment_has_two_schedules_only_by_mistake():
    with pytest.raises(UsageError, match="names a deployment twice"):
        _times(["retrain=off", "retrain=0 3 * * 0"])
    assert _times(["retrain=off", "evaluate=@daily"]) == {"retrain": "off", "evaluate": "@daily"}


@pytest.mark.parametrize(("states", "there"), [([], False), (["OFFLINE"], False), (["OFFLINE", "ONLINE"], True)])
def test_a_pool_has_a_worker_where_one_is_online(monkeypatch, states, there):
    workers = [SimpleNamespace(status=WorkerStatus(state)) for state in states]
    client = SimpleNamespace(read_workers_for_work_pool={"gpu": workers}.__getitem__)
    monkeypatch.setattr(deploy, "get_client", lambda sync_client: nullcontext(client))
    assert deploy.has_worker("gpu") == there


def test_every_missed_run_but_the_last_is_cancelled_however_many_there_are(monkeypatch):
    runs, cancelled = [SimpleNamespace(id=number, deployment_id=1, auto_scheduled=True) for number in range(450)], []
    client = SimpleNamespace(read_flow_runs=lambda offset, limit=200, **_: runs[offset:offset + limit],
                             set_flow_run_state=lambda run_id, state, force: cancelled.append(run_id))
    monkeypatch.setattr(deploy, "get_client", lambda sync_client: nullcontext(client))
    assert deploy.skip_missed() == 449 and cancelled == list(range(449))


@pytest.mark.parametrize("wrong", [
    {"workers": -1}, {"workers": 257}, {"data": "here"}, {"method": "ngme"}, {"preset": "cpu-numbered"},
    {"patience": -1}, {"until": "train"}, {"dask": "localhost"}, {"mlflow": "ftp://x"}, {"name": "a/b"},
    {"mlflow": "http://me:hunter2@host:5000"}, {"mlflow": "https://me@host"}])
def test_a_form_refuses_what_is_invalid(wrong):
    with pytest.raises(ValidationError):
        RetrainForm.model_validate({**GIVEN, **wrong})


def test_every_preset_can_be_chosen_and_the_command_does_the_same():
    for method, presets in PRESETS.items():
        for preset in presets:
            form = RetrainForm.model_validate({**GIVEN, "method": method, "preset": preset, "settings": {"seed": "3"},
                                               "name": "mine"})
            assert shlex.split(form.to_run_config("run").command) == [
                "xc", "run", "--data", "/data/wordnet", "--method", method, "--preset", preset, "--set", "seed=3",
                "--home", "/home/me/.xc", "--name", "mine"]


def test_the_command_has_every_option_that_was_given():
    given = {"store": "s3://bucket/x", "mlflow": "http://host:5000/mlflow", "dask": "tcp://host:8786", "workers": 0}
    words = shlex.split(RetrainForm.model_validate({**GIVEN, **given}).to_run_config("run").command)
    assert words[words.index("--store"):] == ["--store", "s3://bucket/x", "--mlflow", "http://host:5000/mlflow",
                                              "--dask", "tcp://host:8786", "--workers", "0"]
    plain = PrepareForm.model_validate(GIVEN).to_run_config("prepare").command
    assert not [option for option in given if f"--{option}" in plain]


@pytest.mark.parametrize(("words", "said"), [
    (("--schedule", "foo"), "--schedule takes KEY=VALUE, got 'foo'"), (("--now", "nope"), "no deployment 'nope'"),
    (("--schedule", "retrian=off"), "no deployment 'retrian', did you mean 'retrain'?"),
    (("--name", "R&D"), "no deployment of a model 'R&D', for the & in its name"),
    (("--name", "50% off"), "no deployment of a model '50% off', for the % in its name"),
    (("--name", "C#"), "no deployment of a model 'C#', for the # in its name"),
    (("--name", "<a?>"), "no deployment of a model '<a?>', for the < > ? in its name"),
    (("--name", ".."), "no deployment of a model '..', for the .. in its name"),
    (("--name", "x.py"), "no deployment of a model 'x.py', for the .py in its name"),
    (("--keep-days", "-1"), "--keep-days must be at least 0, got -1.0")])
def test_a_slip_is_told_before_a_server_is_asked(cli, planted, monkeypatch, words, said):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    code, _, err = cli("deploy", "--data", str(planted), *words)
    assert code == 2 and said in err


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_deployment_keeps_no_password_of_mlflow(cli, planted, monkeypatch, by_variable):
    """Prefect keeps and shows a deployment's parameters; its worker has the address by `xc up`."""
    address, planned = "http://me:hunter2@host:5000", []
    monkeypatch.setattr(definitions, "require_prefect", lambda home: "http://localhost:4200/api")
    monkeypatch.setattr(deploy, "apply", lambda wanted, **_: planned.extend(wanted) or [])
    if by_variable:
        monkeypatch.setenv("XC_MLFLOW", address)
    words = ("deploy", "--data", str(planted), "--dry-run")
    code, out, err = cli(*words, *(() if by_variable else ("--mlflow", address)))
    assert code == 2 and "has a user in it" in err and "hunter2" not in out + err and not planned
    code, _, err = cli(*words, "--mlflow", "")    # as the hint says
    assert code == 0 and {each.parameters["config"].get("mlflow", "") for each in planned} == {""}, err


def test_the_model_is_named_as_a_run_registers_it(cli, planted, tmp_path, monkeypatch):
    """By dataset.json, where the folder has another name; a retraining's name stays empty, as it was not given."""
    shutil.copytree(planted, tmp_path / "folder")
    (tmp_path / "folder" / "dataset.json").write_text('{"name": "tickets"}')
    planned = []
    monkeypatch.setattr(definitions, "require_prefect", lambda home: "http://localhost:4200/api")
    monkeypatch.setattr(deploy, "apply", lambda wanted, **_: planned.extend(wanted) or [])
    code, _, err = cli("deploy", "--data", "folder", "--dry-run")
    assert code == 0, err
    assert {each.full_name: each.parameters["config"].get("name") for each in planned} == {
        "prepare/tickets": "", "evaluate/tickets": "", "retrain/tickets": "", "apply-labels/tickets": "tickets"}
    planned.clear()
    code, _, err = cli("deploy", "--data", "folder", "--dry-run", "--name", "mine")
    assert code == 0, err
    assert {each.full_name: each.parameters["config"]["name"] for each in planned} == dict.fromkeys(
        ("prepare/mine", "evaluate/mine", "retrain/mine", "apply-labels/mine"), "mine")


def test_what_is_prepared_is_of_the_named_model(cli, planted):
    """As its training prepares it: with feedback on that model, not on one that is named like the data."""
    config = PrepareForm.model_validate({**GIVEN, "name": "mine"}).to_run_config("prepare")
    assert config.name == "mine" and config.command.endswith("--name mine")
    options = PrepareOptions(data=str(planted), name="mine")
    assert checked_config(options, "", "").name == "mine"
    code, _, err = cli("prepare", "--data", str(planted), "--name", "a/b")
    assert code == 2 and "'a/b' cannot be the name of a model" in err


def test_the_champion_is_that_of_the_prepared_data_set(monkeypatch):
    monkeypatch.setattr(deployed_flows, "open_store", lambda home, store: SimpleNamespace(open=lambda pack: pack))
    monkeypatch.setattr(deployed_flows, "Corpus", lambda pack: SimpleNamespace(name="tickets"))
    monkeypatch.setattr(deployed_flows, "Tracker", lambda home, address: None)
    monkeypatch.setattr(deployed_flows, "evaluate_champion", lambda tracker, name, *_: name)
    for given, name in (("", "tickets"), ("mine", "mine")):
        config = EvaluateForm.model_validate({**GIVEN, "name": given}).to_run_config("run")
        assert deployed_flows.champion_task.fn(config, None) == name


def test_a_scheduled_task_is_tried_again_where_a_server_failed_and_not_where_the_data_are_wrong():
    for task in (deployed_flows.apply_labels_task, deployed_flows.champion_task):
        for error, again in ((ServerError("MLflow failed: busy"), True), (ConnectionResetError(), True),
                             (ContractError("a label is there already"), False), (ValueError("no label"), False)):
            assert task.retry_condition_fn(task, None, Failed(data=error)) is again
        assert task.retries == 2


@pytest.mark.parametrize("failures", [2, 4])
def test_a_retraining_whose_server_does_not_answer_is_taken_up_again(monkeypatch, failures):
    """Else what took hours is registered a week later; at the fourth time it fails."""
    tried, done, paused = list[str](), list[str](), list[float]()

    def run_steps(config, patience):
        tried.append(config)
        if len(tried) <= failures:
            raise ServerError("no MLflow server answers")

    monkeypatch.setattr(deployed_flows, "run_steps", run_steps)
    monkeypatch.setattr(deployed_flows, "get_run_logger", lambda: SimpleNamespace(warning=done.append))
    monkeypatch.setattr(deployed_flows, "time", SimpleNamespace(sleep=paused.append))
    room = SimpleNamespace(with_options=lambda **_: lambda *_: done.append("room"))
    monkeypatch.setattr(deployed_flows, "room_task", room)
    with pytest.raises(ServerError) if failures == 4 else nullcontext():
        deployed_flows.retrain.fn(RetrainForm.model_validate(GIVEN))
    assert len(tried) == min(failures + 1, 4) and paused == [*deployed_flows.PAUSES][:failures]
    assert ("room" in done) == (failures == 2) and done[0] == "no MLflow server answers; taken up again in 10 s"
