"""What `xc` answers before it loads what takes seconds, and what it says before what takes long."""

import subprocess
import sys

import pytest

from data_contracts.errors import ServerError
from flows.services import definitions
from tests.conftest import ROOT
from tests.support.tiny import with_champion


@pytest.mark.parametrize("command", ["run", "plan", "prepare", "deploy"])
def test_a_folder_that_is_not_there_is_told_before_torch_is_imported(command):
    code = ("import sys\nfrom flows.cli.app import main\n"
            f"try:\n    main([{command!r}, '--data', '/nowhere'])\nexcept SystemExit:\n    pass\n"
            "print(*{'torch', 'mlflow', 'prefect'} & sys.modules.keys())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "/nowhere is not a folder" in done.stderr and not done.stdout.strip()


@pytest.mark.parametrize("words", [("predict",), ("export", "predictions", "--out", "p.parquet"),
                                   ("export", "embeddings", "--out", "v.npy")])
def test_a_file_of_texts_that_is_not_there_is_told_before_a_model_is_loaded(cli, monkeypatch, words):
    def loaded(*_):
        raise AssertionError("a model is loaded first")

    monkeypatch.setattr("flows.cli.commands.predict.open_retriever", loaded)
    monkeypatch.setattr("flows.cli.commands.export.open_retriever", loaded)
    code, out, err = cli(*words, "--input", "texts.csv")
    assert (code, out, err) == (2, "", "error: texts.csv does not exist\nhint: check the path\n")


def test_a_run_says_that_its_server_starts_and_is_silent_where_one_is_up(cli, planted, monkeypatch):
    def start(*_, **__):
        raise ServerError("no server")

    monkeypatch.setattr(definitions, "ensure_prefect", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    code, _, err = cli("run", "--data", str(planted))
    assert code == 5 and "\n           Prefect's server starts, which takes 10 to 30 s\n" in err
    assert err.endswith("error: no server\n")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert "server starts" not in cli("run", "--data", str(planted))[2]


def test_an_export_of_no_feedback_says_so(cli, tmp_path):
    home = with_champion(tmp_path / "home").store.home
    assert cli("feedback", "export", "--home", str(home))[::2] == (0, "xc: 0 texts with decisions\n")
