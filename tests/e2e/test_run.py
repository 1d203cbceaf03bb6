"""The whole job on a planted data set, with a real Prefect server: result, reuse, what is recorded, answers."""

import gzip
import json
import os
import shutil

import pytest
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.sorting import FlowRunSort

import xcflow
from tasks.core.manifest import MANIFEST
from tasks.core.store import Store, digest_of
from tasks.evaluation.gates import Score
from tasks.registry.promotion import promote_by_gates
from tasks.registry.register import register
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from tests.support import tiny
from tests.support.home_services import prefect_client
from tests.support.planted import QUICK, words
from tests.support.run_command import command, copied, objects, settings
from xcmodels.methods import presets


@pytest.fixture(scope="module")
def whole(whole, tmp_path_factory):
    """A copy to run commands in: the home itself is shared by all test processes."""
    home, result, said = whole
    return copied(home, tmp_path_factory.mktemp("whole") / "home"), result, said


@pytest.fixture(scope="module")
def again(whole, planted, xc):
    """The same command once more: what was in the home before it, and its exit code, stdout and stderr."""
    before = objects(whole[0])
    return before, *xc(*command(planted, whole[0]))


def test_learns_the_planted_labels(whole):
    _, result, said = whole
    assert result["metrics"]["P/1"] > 90
    assert result["version"] == "1" and result["model"] == "planted"
    assert "first model: now champion" in said
    assert result["metrics"]["index/labels/recall/100"] > 95


def test_second_run_redoes_nothing(whole, again):
    (home, first, _), (before, code, out, said) = whole, again
    assert code == 0, said
    assert json.loads(out) == first
    assert (first["method"], first["preset"], first["seed"]) == ("ngame", "cpu-learned", 0)
    assert first["changed"]["m1.batch_size"] == 64 and "m1.margin" not in first["changed"]
    assert first["settings"] == presets.flat(presets.resolve("ngame", "cpu-learned", QUICK))
    assert "all reused: nothing they depend on has changed" in said
    assert objects(home) == before


def test_a_run_keeps_the_last_checkpoint_of_each_stage_alone(whole):
    store, results = Store(whole[0]), objects(whole[0])
    kept = {name: {path.name for path in (store.home / "objects" / digest).iterdir()} - {"MANIFEST.json"}
            for name, digest in results.items() if " round " in name and not name.startswith("mine")}
    trimmed, last = {"SPENT", "metrics.json"}, {"model.safetensors", "metrics.json"}
    assert kept == {"encoder round 0": trimmed, "encoder round 1": trimmed, "encoder round 2": last,
                    "classifier round 0": trimmed, "classifier round 1": last}


def test_plan_names_the_setting_that_changed(whole, planted, xc, tmp_path):
    home = copied(whole[0], tmp_path / "home")
    code, _, said = xc("train", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home),
                       *settings(**{"m2.margin": "0.2"}))
    assert code == 0, said
    assert "setting m2.margin changed from 0.3 to 0.2" in said
    assert "reused  encoder round 2" in said
    assert "reused  classifier round 0" not in said
    runs = json.loads(xc("runs", "--home", str(home), "--json")[1])
    assert [(each["state"], each["step"], each["versions"], each["changed"].get("m2.margin")) for each in runs] == [
        ("trained", "evaluate", [], "0.2"), ("registered", "", ["planted/1"], None)]
    assert runs[0]["command"].startswith(f"xc train --data {planted} ") and "m2.margin=0.2" in runs[0]["command"]
    assert runs[1]["champion"] and runs[1]["data"] == "planted" and runs[1]["began"] < runs[0]["began"]


def test_a_run_is_compared_with_the_champion_on_its_own_test_queries(whole, planted, xc, tmp_path):
    """With itself under another name it is promoted; with one of other labels it is not, which is said and no error."""
    home = copied(whole[0], tmp_path / "home")
    store, tracker = Store(home), Tracker(home)
    found = resolve(tracker, "planted/1")
    same = store.publish(digest_of("same"), "retriever", {}, lambda out: shutil.copytree(
        found.folder, out, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True))
    for name, artifact in (("same", same), ("other", tiny.publish(store))):
        register(tracker, whole[1]["run_id"], name, retriever_dir=store.open(artifact), card="",
                 retriever_digest=artifact.digest, score=Score({"P/1": 120.0, "PSP/5": 120.0}), test_digest="last year")
        assert promote_by_gates(tracker, name, "1").promoted
    code, out, said = xc(*command(planted, home), "--name", "same")
    assert code == 0 and json.loads(out)["version"] == "2", said
    assert "same version 2: ±0.0 P@1 over champion v1; promoted" in said
    assert "versions 2 and 1 answer the test queries of planted" in said
    assert f"P@1 {whole[1]['metrics']['P/1']:.2f} (+0.00)" in said
    options = [word for word in command(planted, home)[1:] if word != "--json"]
    code, page, said = xc("report", *options, "--name", "same")
    assert code == 0, said
    with open(page.strip(), encoding="utf-8") as file:
        assert "it is the champion already" in (told := file.read()) and "not registered" not in told
    assert "The gates" in told, "as they were when it was registered"
    code, out, said = xc(*command(planted, home), "--name", "other")
    assert code == 0 and json.loads(out)["version"] == "2", said
    assert ("other version 2: not promoted: it cannot be compared with champion v1: no test query has a label that "
            "they share") in said and "P@5" in said


def test_mlflow_holds_the_run(whole):
    import mlflow

    home, result, said = whole
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    run = client.get_run(result["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/P/1"] == pytest.approx(result["metrics"]["P/1"])
    assert run.data.metrics.keys() >= {f"test/{name}" for name in result["metrics"]} | {"time/evaluate"}
    assert "left out" not in said
    assert run.data.params == {"method": "ngame", "preset": "cpu-learned",
                               **{key: str(value) for key, value in result["settings"].items()}}
    stages = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    losses = {stage.info.run_name: client.get_metric_history(stage.info.run_id, "train/loss") for stage in stages}
    assert sorted(len(history) for history in losses.values()) == [4, 12]
    assert str(client.get_model_version_by_alias("planted", "champion").version) == "1"


def test_prefect_shows_what_a_person_can_read(whole, again):
    assert again[1] == 0, again[3]
    with prefect_client() as client:    # the server sees the runs of other tests, too
        runs = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"name": {"any_": ["ngame · planted"]}}),
            sort=FlowRunSort.START_TIME_DESC, limit=200)
        ours = next(run for run in runs if str(whole[0]) in str(run.parameters))
        below = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [ours.id]}}))
        of_these = {"any_": [ours.id, *(run.id for run in below)]}
        steps = client.read_task_runs(flow_run_filter=FlowRunFilter.model_validate({"id": of_these}), limit=200)
        made = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate({"flow_run_id": of_these}), limit=50)
        logged = client.read_logs(LogFilter.model_validate({"flow_run_id": {"any_": [ours.id]}}))
    assert any("planted version 1: it is the champion already" in each.message for each in logged)
    assert {run.name for run in below} == {f"ngame · planted · {part}" for part in ("prepare", "train", "evaluate")}
    assert set(ours.tags) == {"method:ngame", "data:planted", "preset:cpu-learned"}
    assert all(set(run.tags) == set(ours.tags) for run in below)
    round_1 = [step for step in steps if step.name == "ngame · planted · encoder round 1"]
    assert {step.state.name for step in round_1} == {"Reused"} and not any(step.tags for step in round_1)
    artifacts = {each.key: each for each in made}
    assert "P@1" in str(artifacts["metrics"].data) and "it is the champion already" in str(artifacts["report"].data)
    assert "index.html" in str(artifacts["contracts"].data) and artifacts["progress"].data == 100.0


def test_predict_answers_each_line_in_order(whole, xc, planted, tmp_path):
    home = whole[0]
    with gzip.open(planted / "tst.json.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream][:40]
    wanted = tmp_path / "queries.jsonl"
    wanted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, said = xc("predict", "--input", str(wanted), "--k", "3", "--home", str(home),
                         "--model", "planted@champion")
    assert code == 0, said
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["uid"] for answer in answers] == [row["uid"] for row in rows]
    assert all(len(answer["labels"]) == 3 for answer in answers)
    hits = sum(answer["labels"][0]["id"] in row["target_ind"] for answer, row in zip(answers, rows, strict=True))
    assert hits > 36
    first = answers[0]["labels"][0]
    assert first["uid"] == f"L{first['id']}" and set(first) == {"id", "uid", "text", "score", "confidence"}


def test_the_three_lines_of_python(whole, planted):
    retriever = xcflow.load("models:/planted@champion", home=whole[0])
    answers = retriever.predict([" ".join(words(7)), " ".join(words(42))], k=5)
    assert [labels[0].uid for labels in answers] == ["L7", "L42"]
    assert repr(retriever) == "Retriever(ngame on planted, 80 labels)"


def test_predict_refuses_what_is_invalid(whole, xc, tmp_path):
    home = str(whole[0])
    assert xc("predict", "x", "--home", home, "--k", "0")[0] == 2
    assert xc("predict", "--home", home)[0] == 2
    code, _, said = xc("predict", "x", "--home", home, "--model", "plantde")
    assert code == 2 and "did you mean 'planted'" in said
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"title": "fine"}\n{"title": \n')
    code, _, said = xc("predict", "--input", str(broken), "--home", home)
    assert code == 3 and "broken.jsonl:2" in said


def test_two_runs_in_one_home(planted, xc, tmp_path):
    home = tmp_path / "home"
    with Store(home).run_lock():
        code, _, said = xc(*command(planted, home))
    assert code == 2 and f"process {os.getpid()}" in said
