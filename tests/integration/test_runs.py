"""`xc runs`: how each run of a home ended, and the command that resumes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.cli.config_file import GIVEN
from tasks.core.processes import process_name
from tasks.core.store import Store
from tasks.registry.tags import RUN_HOME
from tasks.runs import CHANGED, COMMAND, PROCESS, holder, past_runs
from tasks.tracking.tracker import StepMetrics, Tracker
from tests.support import tiny

STEPS = ("encoder round 0", "mine encoder round 1", "encoder round 1")


def begin(home: Path, key: str, *, process: str = "1 1.00", steps: tuple[str, ...] = (),
          uri: str | None = None) -> Tracker:
    """Have a run in MLflow as a process leaves it that came as far as these steps."""
    tracker = Tracker(home, uri)
    assert tracker.start(
        key, experiment="tickets", name="ngame · tickets", config_yaml="", data={},
        params={"method": "ngame", "preset": "cpu", "seed": "0", "m1.epochs": "12", "m1.margin": "0.3"},
        tags={"xc.data": "tickets", COMMAND: f"xc run --data {key}", PROCESS: process, RUN_HOME: str(home),
              CHANGED: '{"m1.epochs": "12"}'})
    tracker.sync([StepMetrics(step, "d" * 64) for step in steps])
    return tracker


@pytest.fixture
def home(tmp_path):
    return tiny.fresh_store(tmp_path / "home").home


def told(home, **more):
    return {each.command.rpartition(" ")[2]: each for each in past_runs(Tracker(home, more.pop("uri", None)), **more)}


def test_each_end_is_told_with_its_step_and_the_command(home, cli):
    begin(home, "done").finish("FINISHED", "evaluated\n\n    xc run --data done")
    begin(home, "bad", steps=STEPS[:2]).finish("FAILED", "no label is left\nhint: look\n\n    xc run --data bad")
    begin(home, "stopped", steps=STEPS).finish("KILLED", "saved at step 9\n\n    xc run --data stopped")
    begin(home, "killed", steps=STEPS[:1])
    begin(home, "trained").finish("SCHEDULED", "trained\n\n    xc train --data trained")
    found = told(home)
    assert {key: each.state for key, each in found.items()} == {
        "done": "finished", "bad": "failed", "stopped": "interrupted", "killed": "interrupted", "trained": "trained"}
    assert found["bad"].why.startswith("no label is left") and found["bad"].step == "encoder round 1"
    assert found["killed"].step == "mine encoder round 1" and found["killed"].ended is None and found["done"].ended
    assert found["done"].changed == found["bad"].changed == {"m1.epochs": "12"}
    assert found["done"].method == "ngame"
    code, out, _ = cli("runs", "--home", str(home))
    lines = [line.strip() for line in out.splitlines()]
    assert code == 0 and len(lines) == 5 + 4
    at = next(n for n, line in enumerate(lines) if line.endswith("failed at encoder round 1: no label is left"))
    assert "ngame · tickets · cpu, m1.epochs=12" in lines[at] and lines[at + 1] == "again by  xc run --data bad"
    assert not any("--data done" in line for line in lines)


def test_the_run_of_now_is_the_one_whose_process_holds_the_home(home, cli):
    """Others that never said how they ended are not taken for it."""
    mine = process_name(os.getpid())
    begin(home, "now", process=mine)
    begin(home, "dead", process=f"{os.getpid()} 1.00")
    assert {key: each.state for key, each in told(home).items()} == {"now": "interrupted", "dead": "interrupted"}
    with Store(home).run_lock():
        assert holder(home) == os.getpid()
        code = "from flows.cli.entry import main; main()"
        done = subprocess.run([sys.executable, "-c", code, "runs", "--json", "--home", str(home)], capture_output=True,
                              text=True, timeout=120)
        rows = json.loads(done.stdout)
    assert {row["command"].rpartition(" ")[2]: row["state"] for row in rows} == {
        "now": "running", "dead": "interrupted"}
    assert holder(home) is None


def test_a_process_keeps_its_name_when_the_clock_is_set(monkeypatch):
    before, began = process_name(os.getpid()), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: began + 3600)
    assert before and process_name(os.getpid()) == before


@pytest.mark.parametrize("page", ["", "http://127.0.0.1:4200/runs/flow-run/1"])    # of a run, of a scheduled one
def test_a_run_that_is_still_at_its_data_is_its_process(home, page):
    with Store(home).run_lock(page=page):
        [run] = past_runs(Tracker(home))
    assert (run.state, run.why, run.command) == ("running", f"process {os.getpid()}", "")
    assert past_runs(Tracker(home)) == []


def test_versions_go_with_the_run_that_made_them(tmp_path):
    models = tiny.RegisteredModels(tmp_path / "home")
    models.enter(0)
    models.enter(1, 50.0)
    for status, state in (("RUNNING", "interrupted"), ("FAILED", "failed"), ("SCHEDULED", "registered"),
                          ("FINISHED", "registered")):
        if status != "RUNNING":    # else it was killed before its version was promoted or refused
            models.tracker.finish(status, "")
        [run] = past_runs(models.tracker)
        assert (run.state, run.versions, run.champion) == (state, ["xc/1", "xc/2"], True)


def test_a_champion_that_was_scored_again_is_named(home, cli):
    tracker = Tracker(home)
    tracker.start("again", experiment="tickets", name="champion v3 · tickets", params={"model": "tickets"},
                  config_yaml="", data={}, tags={RUN_HOME: str(home)})
    [run] = past_runs(Tracker(home))    # it was killed meanwhile
    assert (run.state, run.name, run.step) == ("interrupted", "champion v3 · tickets", "")
    assert cli("runs", "--home", str(home))[0] == 0
    tracker.finish("FINISHED", "version 3 on 9 test queries")
    [run] = past_runs(Tracker(home))
    assert (run.state, run.name, run.changed) == ("finished", "champion v3 · tickets", {})
    assert cli("runs", "--home", str(home))[1].rstrip().endswith("  champion v3 · tickets  finished")


def test_runs_of_other_homes_on_a_server_are_left_out(home, tmp_path):
    with tiny.mlflow_server(tmp_path / "server") as (address, _):
        begin(home, "ours", uri=address)
        begin(tmp_path / "other", "theirs", uri=address)
        assert set(told(home, uri=address, shared=True)) == {"ours"}
        assert set(told(home, uri=address)) == {"ours", "theirs"}


def test_a_command_has_what_was_not_typed(cli, planted, monkeypatch, tmp_path):
    from flows.cli.commands.run import _command

    (tmp_path / "xc.toml").write_text('preset = "cpu-learned"\n[set]\nm1.epochs = 4\n')
    monkeypatch.setenv("XC_MLFLOW", "http://me:secret@there:5000")
    words = ["plan", "--data", str(planted), "--json"]
    assert "secret" not in "".join(cli(*words)[1:])
    monkeypatch.setattr(sys, "argv", ["xc", *words])
    assert _command() == (f"xc plan --data {planted} --json --preset cpu-learned --set m1.epochs=4 "
                          "--mlflow http://there:5000")
    assert GIVEN.sources["mlflow"] == "XC_MLFLOW"


def test_where_there_is_no_home_there_are_no_runs(cli, tmp_path):
    assert cli("runs")[0] == 2
    (tmp_path / ".xc").mkdir()
    assert cli("runs", "--json")[:2] == (0, "[]\n")
    for command, what in (("runs", "run"), ("models", "model")):
        assert cli(command) == (0, "", f"there is no {what} yet; next: xc run --data DIR\n")


@pytest.mark.parametrize("words", [("run", "--data", "DATA"), ("plan", "--data", "DATA"), ("up",), ("models",),
                                   ("predict", "a wolf")])
def test_a_file_is_no_home_and_nor_is_a_folder_of_other_files(cli, planted, tmp_path, words):
    (tmp_path / "file").touch()
    code, out, said = cli(*(str(planted) if word == "DATA" else word for word in words), "--home", "file")
    assert code == 2 and not out and "file is a file" in said
    if words[0] in ("models", "predict"):
        code, out, said = cli(*words, "--home", str(planted))
        assert code == 2 and not out and f"{planted} is not the HOME of a pipeline" in said
