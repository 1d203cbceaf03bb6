"""The lines of a run, on a real terminal and where there is none."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, ProjectError, UsageError
from flows import progress
from flows.cli.commands.run import _failure_named, _show
from flows.config import HOME
from tasks.run_end import RunSummary
from tasks.training.launcher import _pass_on
from tests.conftest import ROOT
from xcmodels.training.loop import Progress

ROUND = """
import flows.progress
from xcmodels.training.loop import Progress
flows.progress.REDRAW_EVERY = flows.progress.LINE_EVERY = 0.0
terminal = flows.progress.Terminal()
terminal.begin("encoder round 0")
with terminal.training("encoder round 0") as (report, stop):
    for done in range(1, 4):
        report(Progress("encoder", 0, done, 4, 0.5))
terminal.line("    loss 0.1234")
terminal.step("encoder round 0", False, 75.0)
"""


LOST = """
import gc, os, signal
from flows.progress import Terminal, interrupt
signal.signal(signal.SIGINT, interrupt)
gc.callbacks.append(lambda phase, info: os.kill(os.getpid(), signal.SIGINT) if phase == "start" else None)
gc.collect()    # Python prints what is raised in a callback, and goes on
gc.callbacks.clear()
Terminal().begin("train")
print("trained")
"""


def test_a_ctrl_c_that_python_drops_ends_the_run_at_the_next_step():
    done = subprocess.run([sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Exception ignored" in done.stderr and done.returncode and "trained" not in done.stdout
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def summary(**more) -> RunSummary:
    keys = ("P/1", "P/5", "PSP/1", "PSP/5", "nDCG/5", "recall/100")
    return RunSummary(**{
        "run_id": "r", "model": "tickets", "version": "4", "metrics": dict.fromkeys(keys, 50.0), "verdict": "better",
        "report": "/r.html", "contracts": "/c.html", "mlflow": "http://here", "unsent": ["report"],
        "examples": [{"text": "a long text " * 20, "labels": [{"text": "printer", "confidence": 0.934}]}] * 3, **more})


@pytest.mark.parametrize(("champion", "said"), [
    (None, "P@1 50.00  P@5 50.00"), ({"version": "3", "gains": {"P/1": 1.2}}, "P@1 50.00 (+1.20)  P@5 50.00  PSP"),
    ({"version": "3", "gains": {"P/1": -0.5}}, "P@1 50.00 (-0.50)"), ({"version": "4", "gains": {"P/1": 0.0}},
                                                                     "P@1 50.00  P@5")])
def test_the_last_screen_is_short_and_holds_metrics_against_the_champions(capsys, champion, said):
    """Of a version that is the champion already there is nothing to compare."""
    _show(summary(champion=champion), Path("else where"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 15 and said in "\n".join(lines)
    assert any(line.startswith("report     /r.html") for line in lines) and "better" in "\n".join(lines)
    assert [line.endswith("-> printer (93%)") for line in lines].count(True) == 3
    assert lines[-1].startswith("next       xc predict --model tickets --home 'else where' --k 3 'a long text")
    _show(summary(champion=champion, promoted=False), Path("else where"))
    assert "xc predict --model tickets/4 --home" in capsys.readouterr().err.splitlines()[-1], "the one that was shown"


@pytest.mark.parametrize(("points", "warned"), [(3.0, True), (100.0, False)])
def test_a_measurement_of_a_few_texts_is_said_to_be_one(capsys, points, warned):
    _show(summary(metrics=summary().metrics | {"points": points}), Path("else where"))
    assert ("warning: measured on 3 test texts: chance" in capsys.readouterr().err) == warned


def test_confidences_that_were_fitted_on_no_query_are_not_shown(capsys):
    _show(summary(metrics=summary().metrics | {"calibration/queries": 0.0}), Path("else where"))
    said = capsys.readouterr().err
    assert said.count("-> printer\n") == 3 and "93%" not in said
    assert "warning: confidences were fitted on no query" in said and len(said.splitlines()) <= 15


def test_the_next_command_asks_the_model_of_the_run_where_it_was_registered(capsys):
    """Another model of the home, or the home's own database, would be asked otherwise."""
    _show(summary(model="my tickets"), HOME, "http://me:secret@127.0.0.1:9")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("next       xc predict --model 'my tickets' --mlflow http://127.0.0.1:9 --k 3 'a long text")


@pytest.mark.parametrize(("address", "line"), [
    ("http://here/#/1", "MLflow     http://here/#/1"),
    ("sqlite:////h/mlflow.db", "MLflow     sqlite:////h/mlflow.db; xc up --home 'else where' shows it")])
def test_a_run_without_a_server_names_one_with_a_password(capsys, address, line):
    _show(summary(mlflow=address), Path("else where"))
    said = capsys.readouterr().err.splitlines()
    assert line in said and "mlflow ui" not in "".join(said)


@pytest.mark.parametrize(("error", "said"), [
    (ProjectError("no room"), "resumes by"), (ContractError("a label is not there"), "once mended"),
    (UsageError("model 'tickets' is of another home", hint="--name NAME"), None)])
def test_a_command_that_would_be_refused_again_is_not_said_to_resume(tmp_path, monkeypatch, capsys, error, said):
    monkeypatch.setattr(progress.Terminal, "under_way", "after pack")
    monkeypatch.setattr(sys, "argv", ["xc", "run", "--data", "tickets"])
    with pytest.raises(type(error)), _failure_named(tmp_path):
        raise error
    failed, *command = capsys.readouterr().err.splitlines()
    assert failed.strip().startswith("failed  after pack; its log: ")
    assert command == ([f"{said:>12}  xc run --data tickets"] if said else [])


def test_a_log_takes_what_no_locale_has(tmp_path, monkeypatch):
    """Else the name of a file that is not UTF-8 would take the place of the error that it is in."""
    monkeypatch.setattr(progress.Terminal, "under_way", "after pack")
    with pytest.raises(ProjectError, match="no file"), _failure_named(tmp_path):
        raise ProjectError("no file a\udcff")
    assert "no file a\\udcff" in (tmp_path / "logs" / "failed.log").read_text()


def screen(text: str) -> list[str]:
    """Return what a terminal shows: a carriage return goes back, ESC[2K empties the line."""
    return [line.rpartition("\r\x1b[2K")[2] for line in text.replace("\r\n", "\n").split("\n") if line]


def on_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", ROUND], stderr=theirs, stdout=subprocess.DEVNULL, cwd=ROOT,
                          env={**os.environ, "TERM": "xterm", **environment}):
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:     # the other end has closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    return seen.decode()


def test_progress_is_redrawn_and_makes_way_for_lines():
    seen = on_terminal()
    assert "step 3 of 4" in seen and "encoder epoch 1" in seen
    assert screen(seen) == ["    loss 0.1234", "1 min 15 s  encoder round 0".rjust(29)]


def test_the_pace_is_that_of_the_steps_and_not_of_what_came_before(monkeypatch, capsys):
    """A round that resumes at step 154 after 20 s of loading."""
    clock = iter((0.0, 20.0, 30.0))
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.Terminal().training("encoder round 1") as (report, _):
        for done in (154, 164):
            report(Progress("encoder", 3, done, 204, 0.5))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "    encoder epoch 4: step 154 of 204, loss 0.5000"
    assert second == "    encoder epoch 4: step 164 of 204, loss 0.5000, 1.0 steps/s, 40 s left"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, None], ids=["dumb", "no terminal"])
def test_no_line_is_redrawn_without_a_terminal(environment):
    if environment:
        seen = on_terminal(**environment)
    else:
        seen = subprocess.run([sys.executable, "-c", ROUND], capture_output=True, text=True, cwd=ROOT).stderr
    lines = seen.replace("\r\n", "\n").splitlines()
    assert "\r" not in "".join(lines) and "\x1b" not in seen
    assert len([line for line in lines if "step" in line]) == 3
    assert lines[-2:] == ["    loss 0.1234", "1 min 15 s  encoder round 0".rjust(29)]


def test_what_libraries_print_in_a_process_that_trains_is_no_progress():
    passed: list[object] = []
    for line in (b'{"say": "half"}\n', b"5\n", b"null", b'"say"\n', b"[\n", b"\xff\n", b"1" * 5000, b'{"say": "all"}'):
        _pass_on(line, passed.append, passed.append)
    assert passed == ["half", "all"]
