"""What commands decide from what they are given, without a home or a server."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import UsageError
from flows.cli.app import _explained, _room_for_boxes, main
from flows.cli.commands.data import _print_counts, import_, wordnet
from flows.cli.commands.registry import _why, promote
from flows.cli.commands.stack import _kept
from flows.cli.config_file import GIVEN
from flows.config import HOME, Ports
from tests.conftest import ROOT


def test_a_part_that_has_ended_starts_again_at_its_port_unless_another_is_asked_for(monkeypatch):
    records = {name: SimpleNamespace(address=address, alive=False, environment={}) for name, address in (
        ("prefect", "http://127.0.0.1:7500"), ("mlflow", "http://127.0.0.1:7501"), ("worker-cpu", ""))}
    monkeypatch.setattr(GIVEN, "sources", {})
    assert _kept(Ports(), records, HOME) == Ports(prefect=7500, mlflow=7501)
    monkeypatch.setattr(GIVEN, "sources", {"mlflow-port": "flag"})
    assert _kept(Ports(mlflow=7601), records, HOME) == Ports(prefect=7500, mlflow=7601)


def test_a_server_that_has_ended_does_not_move_away_from_the_parts_that_ask_it(monkeypatch):
    server = SimpleNamespace(title="MLflow", address="http://127.0.0.1:7501", alive=False, environment={})
    app = SimpleNamespace(title="app", address="http://127.0.0.1:7502", alive=True,
                          environment={"XC_MLFLOW": server.address})
    records = {"mlflow": server, "app": app}
    monkeypatch.setattr(GIVEN, "sources", {"mlflow-port": "flag"})
    assert _kept(Ports(mlflow=7501), records, HOME) == Ports(mlflow=7501, app=7502)
    with pytest.raises(UsageError, match="app still asks MLflow") as caught:
        _kept(Ports(mlflow=7601), records, HOME)
    assert caught.value.what == "--mlflow-port 7601: app still asks MLflow at http://127.0.0.1:7501"
    assert caught.value.hint == "first xc down, or leave --mlflow-port out"
    app.alive = False
    assert _kept(Ports(mlflow=7601), records, HOME) == Ports(mlflow=7601, app=7502)


def test_a_reason_is_on_one_line_of_a_terminal_and_inert():
    row = {"moves": [{"when": "2026-11-28T12:00:00+00:00", "why": "d\n\x1b[31mred"}]}
    assert "\x1b" not in _why(row) and "\n" not in _why(row) and "red" in _why(row)
    row = {"moves": [], "gates": {"promoted": False, "reason": "a\x1b[2Jb"}}
    assert _why(row).startswith("  refused: a") and "\x1b" not in _why(row)


def test_without_a_standard_output_there_is_no_room_for_boxes(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert not _room_for_boxes()


def test_a_home_of_another_user_is_told_as_that():
    text, hint = _explained(PermissionError(13, "Permission denied", "/their/home/FORMAT"))
    assert text == "/their/home/FORMAT is closed to this user: Permission denied"
    assert hint == "run it as its owner: sudo -u root xc ..."


def test_a_promotion_needs_a_reason_and_a_name_with_a_space_is_quoted():
    with pytest.raises(UsageError, match="say why"):
        promote("my tickets/2")
    with pytest.raises(UsageError) as caught:
        promote("my tickets", dry_run=True)
    assert caught.value.hint == "xc promote 'my tickets@challenger' --reason '...'"


@pytest.mark.parametrize(("call", "address"), [
    (lambda: import_(Path("t.csv"), Path("s3://b/d")), "s3://b/d"),
    (lambda: import_(Path("hf://datasets/t.csv"), Path("d")), "hf://datasets/t.csv"),
    (lambda: import_(Path("t.csv"), Path("d"), vocabulary=Path("s3://b/v.ttl")), "s3://b/v.ttl"),
    (lambda: wordnet(Path("gs://b/wordnet")), "gs://b/wordnet"),
    (lambda: wordnet(Path("d"), Path("gs://b/dict")), "gs://b/dict")])
def test_data_is_not_written_to_a_folder_called_as_an_address_begins(tmp_path, monkeypatch, call, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{address} is an address, and `xc data` reads and writes files of"):
        call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("shared", "next_"), [
    (1, "next: xc run --data t"), (2, "next: another split, or, where texts may be in both halves, xc run --data t "
                                      "--set prepare.leak_share=1")])
def test_an_import_names_no_run_that_its_data_would_not_pass(capsys, shared, next_):
    _print_counts(Path("t"), {"test": 100, "test_rows_with_a_text_of_train": shared})
    assert capsys.readouterr().err.splitlines()[-1] == next_


def test_a_command_that_trains_nothing_does_not_wait_for_what_only_training_uses():
    code = ("import sys\nimport tasks.plan\n"
            "print(*{'sklearn', 'pandas', 'scipy.stats', 'scipy.optimize'} & sys.modules.keys())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not done.stdout.strip()


@pytest.mark.parametrize(("words", "lines"), [
    (["data", "--help"], ["Usage: xc data COMMAND"]),
    (["gc", "--help"], ["  --days FLOAT: What a run has asked for", "      in the last so many days stays.",
                        "      [default: 14.0]"])])
def test_help_without_boxes_is_wrapped_once(monkeypatch, capsys, words, lines):
    monkeypatch.setenv("COLUMNS", "40")
    with suppress(SystemExit):
        main(words)
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 40 and set(lines) <= set(said)
