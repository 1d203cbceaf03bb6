"""What cannot be used here is told without "unexpected", and no command makes it the champion."""

import json
from types import SimpleNamespace

import pytest

from data_contracts.errors import ProjectError, from_json
from tasks.data.tokenise import tokenise
from tasks.training import training_process
from tasks.training.launcher import FAILED, SPEC
from tests.support.tiny import RegisteredModels
from xcmodels.checks import Unusable
from xcmodels.data import tokens
from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.retrieval import folder


@pytest.fixture
def models(tmp_path):
    """Two champions after each other, and a version that did not pass the gates."""
    made = RegisteredModels(tmp_path / "home")
    for seed, p1 in ((0, 60.0), (1, 61.5), (2, 50.0)):
        made.enter(seed, p1)
    return made


@pytest.mark.parametrize("words", [
    ("predict", "a wolf"), ("export", "predictions", "--input", "texts", "--out", "p.parquet"),
    ("labels", "remove", "gone"), ("rollback", "--reason", "r"), ("rollback", "--reason", "r", "--dry-run"),
    ("promote", "xc/3", "--reason", "r"), ("promote", "xc/3", "--reason", "r", "--force")])
def test_a_version_of_another_format_is_refused_with_a_remedy(cli, models, monkeypatch, tmp_path, words):
    for name, line in (("texts", "a wolf"), ("gone", "tiny:4")):
        (tmp_path / name).write_text(line + "\n")
    monkeypatch.setattr(folder, "OLDEST", folder.FORMAT + 1)
    monkeypatch.setattr(folder, "FORMAT", folder.FORMAT + 1)
    before = models.aliases()
    code, out, err = cli(*words, "--home", "home")
    assert code == 1 and not out and "unexpected" not in err
    said = f"of format {folder.FORMAT - 1}, this version reads {folder.OLDEST} to {folder.FORMAT}; train it again"
    assert said in err
    assert models.aliases() == before == {"champion": "2", "challenger": "3"}


def test_no_way_back_leads_to_a_damaged_version(cli, models):
    first = models.store.home / "objects" / models.publish(0).digest / "label.uid.values.npy"
    first.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    code, _, err = cli("rollback", "--reason", "r", "--home", "home")
    assert code != 0 and "label.uid.values.npy" in err and models.aliases()["champion"] == "2"


def test_a_model_of_the_hub_without_a_network_gets_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr("tokenizers.Tokenizer.from_pretrained", lambda _: 1 / 0)
    with pytest.raises(ProjectError, match=r"'org/model' is neither .*\nhint: without a network: name a folder"):
        tokenise(PrepareConfig(tokenizer="org/model"), (), SimpleNamespace(inputs={"tables": tmp_path}))


def test_what_cannot_be_fetched_is_told_as_that(cli, planted, monkeypatch):
    def offline(source):
        raise OSError("no network")

    monkeypatch.setattr(tokens.Backend, "from_pretrained", offline)
    monkeypatch.setattr("tasks.plan.resolve_run", lambda *_, **__: tokens.open_backend("org/model"))
    code, _, err = cli("plan", "--data", str(planted))
    assert code == 1
    assert err == ("error: prepare.tokenizer 'org/model' is neither a folder that holds tokenizer.json nor one that "
                   "can be fetched: no network\n")


def test_a_setting_that_several_processes_cannot_use_is_told_as_by_one(tmp_path, monkeypatch):
    """It was told as a process that was lost, and the same command to resume it."""
    def train(*_):
        raise Unusable("encoder.trained_layers must be at most 6, the encoder's layers, got 9")

    monkeypatch.setattr(training_process, "train", train)
    (tmp_path / SPEC).write_text(json.dumps({"recipe": {"method": "ngame", "preset": "cpu", "changed": {}}, "home": "",
                                             "round": "encoder 1", "out": "", "inputs": {}}))
    with pytest.raises(SystemExit, match="1"):
        training_process.main(tmp_path / SPEC)
    told = from_json(json.loads((tmp_path / FAILED).read_text()))
    assert str(told) == "encoder.trained_layers must be at most 6, the encoder's layers, got 9" and told.exit_code == 1
