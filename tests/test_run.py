"""The whole job on a planted data set, with a real Prefect server: result, reuse, kills, interruption, bad data."""

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import ProjectError
from flows.environment import full_disk_explained
from tasks.artifacts import Store
from tests.conftest import ROOT
from tests.planted import QUICK, words


def settings(**more: str) -> list[str]:
    return [word for key, value in {**QUICK, **more}.items() for word in ("--set", f"{key}={value}")]


def command(planted: Path, home: Path, **more: str) -> list[str]:
    return ["run", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home), "--json", *settings(**more)]


def objects(home: Path) -> dict[str, str]:
    """Return the digest of each step's result, by the step's name."""
    return {manifest["about"]["step"]: json.loads((home / "refs" / "steps" / key).read_text())["digest"]
            for key, manifest in Store(home).steps()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, planted, prefect_server) -> tuple[Path, dict, str]:
    """An unbroken run: its home, its line of JSON, what it said."""
    home = tmp_path_factory.mktemp("whole") / "home"
    done = subprocess.run([sys.executable, "-m", "flows.cli", *command(planted, home)], capture_output=True, text=True,
                          timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout), done.stderr


def test_learns_the_planted_labels(whole):
    _, result, said = whole
    assert result["metrics"]["P/1"] > 90
    assert result["version"] == "1" and result["model"] == "planted"
    assert "first model: now champion" in said
    assert result["metrics"]["index/classifier/recall/100"] > 95


def test_second_run_redoes_nothing(whole, planted, xc):
    home, first, _ = whole
    before = objects(home)
    code, out, said = xc(*command(planted, home))
    assert code == 0, said
    assert json.loads(out) == first
    assert "all reused: nothing they depend on has changed" in said
    assert objects(home) == before


def test_plan_names_the_setting_that_changed(whole, planted, xc, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(whole[0], home, copy_function=os.link)
    code, _, said = xc("train", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home),
                       *settings(**{"m2.margin": "0.2"}))
    assert code == 0, said
    assert "setting m2.margin changed from 0.3 to 0.2" in said
    assert "reused  encoder round 2" in said
    assert "reused  classifier round 0" not in said


def test_mlflow_holds_the_run(whole):
    import mlflow

    home, result, _ = whole
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    run = client.get_run(result["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/P/1"] == pytest.approx(result["metrics"]["P/1"])
    assert run.data.params["preset"] == "cpu-learned" and run.data.params["m1.batch_size"] == "64"
    stages = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    losses = {stage.info.run_name: client.get_metric_history(stage.info.run_id, "train/loss") for stage in stages}
    assert sorted(len(history) for history in losses.values()) == [4, 12]
    assert str(client.get_model_version_by_alias("planted", "champion").version) == "1"


def test_prefect_shows_what_a_person_can_read(whole, planted, xc):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import ArtifactSort

    assert xc(*command(planted, whole[0]))[0] == 0
    with get_client(sync_client=True) as client:
        runs = {run.name: run.state.type for run in client.read_flow_runs(limit=200)}
        states = {run.state.name for run in client.read_task_runs(limit=200) if run.name == "encoder round 1"}
        artifacts = {each.key: each for each in client.read_artifacts(sort=ArtifactSort.CREATED_DESC, limit=50)}
    assert {"ngame on planted", "prepare planted", "train ngame on planted", "evaluate ngame on planted"} <= runs.keys()
    assert "Reused" in states
    assert "P@1" in str(artifacts["metrics"].data) and "first model: now champion" in str(artifacts["outcome"].data)


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
    assert first["uid"] == f"L{first['id']}" and set(first) == {"id", "uid", "text", "score"}


def test_the_three_lines_of_python(whole, planted):
    from tasks.load import load

    retriever = load("models:/planted@champion", home=whole[0])
    answers = retriever.predict([" ".join(words(7)), " ".join(words(42))], k=5)
    assert [labels[0].uid for labels in answers] == ["L7", "L42"]
    assert repr(retriever) == "Retriever(ngame on planted, 80 labels)"


def test_predict_refuses_what_cannot_be_meant(whole, xc, tmp_path):
    home = str(whole[0])
    assert xc("predict", "x", "--home", home, "--k", "0")[0] == 2
    assert xc("predict", "--home", home)[0] == 2
    code, _, said = xc("predict", "x", "--home", home, "--model", "plantde")
    assert code == 2 and "did you mean 'planted'" in said
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"title": "fine"}\n{"title": \n')
    code, _, said = xc("predict", "--input", str(broken), "--home", home)
    assert code == 3 and "broken.jsonl:2" in said


def kill_when(planted: Path, home: Path, ready, number: int, **more: str) -> int:
    """Start a run, send it a signal as soon as `ready(home)`; return its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "flows.cli", *command(planted, home, **more)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while process.poll() is None and not ready(home):
        assert time.monotonic() < deadline, "the run never got there"
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


def published(kind: str):
    """True once a step of this name prefix has been published."""
    return lambda home: (home / "refs" / "steps").exists() and any(name.startswith(kind) for name in objects(home))


@pytest.mark.parametrize("moment", ["read", "encoder round 0", "mine encoder", "classifier round 0", "build"])
def test_killed_run_ends_as_an_unbroken_one(whole, planted, xc, tmp_path, moment):
    home = tmp_path / "home"
    assert kill_when(planted, home, published(moment), signal.SIGKILL) == -signal.SIGKILL
    code, out, said = xc(*command(planted, home))
    assert code == 0, said
    assert json.loads(out)["metrics"] == whole[1]["metrics"]
    assert objects(home)["evaluate"] == objects(whole[0])["evaluate"]
    assert objects(home)["build retriever"] == objects(whole[0])["build retriever"]
    assert not list((home / "tmp").iterdir()) or moment != "build"


def test_interrupt_saves_and_the_same_command_resumes(planted, xc, tmp_path):
    home, long = tmp_path / "home", {"m1.epochs": "60", "m1.refresh_from": "60"}
    began = []

    def training(home: Path) -> bool:
        if not list(home.glob("scratch/*/steps")):
            return False
        began.append(time.monotonic())
        return began[-1] - began[0] > 1.0      # inside the first round

    assert kill_when(planted, home, training, signal.SIGINT, **long) == 130
    assert time.monotonic() - began[-1] < 15    # 5 s where nothing else runs
    saved = list(home.glob("scratch/*/steps/*.safetensors"))
    assert len(saved) == 1
    code, _, said = xc("train", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home),
                       *settings(**long))
    assert code == 0, said
    assert not list(home.glob("scratch/*/steps"))


def break_rows(planted: Path, data: Path, change: Callable[[list[dict]], None]) -> None:
    """Write a copy of the planted data set to `data` with its training rows changed."""
    shutil.copytree(planted, data)
    with gzip.open(data / "trn.json.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream]
    change(rows)
    with gzip.open(data / "trn.json.gz", "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_what_fails_in_a_worker_is_said_once(planted, xc, tmp_path):
    data, home = tmp_path / "broken", tmp_path / "home"
    break_rows(planted, data, lambda rows: rows[6].update(target_ind=[10**6], target_rel=[1.0]))
    code, out, said = xc("prepare", "--data", str(data), "--preset", "cpu-learned", "--home", str(home), *settings())
    assert code == 3 and not out
    last = said.strip().splitlines()[-2:]
    assert last[0].startswith("error: trn.json.gz:7: label id 1000000 is not in lbl.json.gz")
    assert last[1].startswith("hint: ")
    assert "Traceback" not in said and said.count("1000000") == 1 and len(said.splitlines()) < 10


def test_broken_data_stops_before_anything_downstream(planted, xc, tmp_path):
    def change(rows: list[dict]) -> None:
        rows[6]["title"] = rows[6]["content"] = " "
        rows[8].update(target_ind=[3, 3], target_rel=[1.0, 1.0])

    data, home = tmp_path / "broken", tmp_path / "home"
    break_rows(planted, data, change)
    code, out, said = xc("run", "--data", str(data), "--preset", "cpu-learned", "--home", str(home), *settings())
    assert code == 3 and not out
    assert "trn.json.gz:7" in said or "trn.json.gz:9" in said
    assert set(objects(home)) == {"read"}
    page = (home / "contracts" / "broken" / "index.html").read_text()
    assert "text_present" in page and "pair_unique" in page and "trn.json.gz" in page


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


def test_two_runs_in_one_home(planted, xc, tmp_path):
    home = tmp_path / "home"
    with Store(home).run_lock():
        code, _, said = xc(*command(planted, home))
    assert code == 2 and f"process {os.getpid()}" in said


@pytest.mark.skipif(subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"],
                                   capture_output=True).returncode != 0, reason="needs a mount namespace of its own")
def test_a_full_disk_is_named_and_loses_nothing(whole, planted, xc, tmp_path):
    """A home on a disk that is too small for the first step, then on one with room."""
    home = tmp_path / "home"
    home.mkdir()
    words = [sys.executable, "-m", "flows.cli", "prepare", "--data", str(planted), "--preset", "cpu-learned",
             "--home", str(home), *settings()]
    script = f"""
        mount -t tmpfs -o size=200k tmpfs {home} || exit 99
        {shlex.join(words)}; test $? = 1 || exit 98
        mount -o remount,size=100m {home} || exit 97
        {shlex.join(words)}"""
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                          text=True, timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr and "free space on that disk" in done.stderr


def test_a_full_disk_is_the_cause_of_what_prefect_says(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000))
    with pytest.raises(ProjectError, match=r"is full: 0\.0 MB free"), full_disk_explained(tmp_path):
        raise RuntimeError("Server error '500 Internal Server Error'")
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="500"), full_disk_explained(tmp_path):
        raise RuntimeError("Server error '500 Internal Server Error'")
