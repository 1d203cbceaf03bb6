"""A version's files as an MLflow model: each as it was registered, code too, or none at all."""

import fcntl
import os
import shutil
import sqlite3
import stat
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pytest

from data_contracts.errors import DamagedArtifact, ProjectError, UsageError
from tasks.core.files import locked
from tasks.core.manifest import MANIFEST
from tasks.registry.fetch import fetch
from tasks.registry.resolve import find as resolve_find
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from tests.support import tiny
from xcmodels.retrieval.retriever import Retriever

CHANGED = ["pyfunc_model.py", "code/xcmodels/retrieval/retriever.py", "MLmodel", "requirements.txt", "python_env.yaml",
           MANIFEST, f"artifacts/retriever/{MANIFEST}", "artifacts/retriever/fusion.npz"]


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A home with a champion; not to be changed."""
    return tiny.with_champion(tmp_path_factory.mktemp("registered") / "home")


@pytest.fixture
def models(registered, tmp_path):
    """The same in a folder of its own, and the folder of the model in MLflow."""
    shutil.copytree(registered.store.home, tmp_path / "home")
    made = tiny.RegisteredModels.__new__(tiny.RegisteredModels)
    made.store, made.tracker = type(registered.store)(tmp_path / "home"), Tracker(tmp_path / "home")
    [code] = (tmp_path / "home" / "mlartifacts").rglob("pyfunc_model.py")
    made.run, made.folder = registered.run, code.parent
    return made


@pytest.mark.parametrize("words", ["fetch", "export encoder"])
@pytest.mark.parametrize("by_other", ["out/file", "out"])
def test_a_folder_that_another_process_makes_meanwhile_stays(registered, cli, monkeypatch, words, by_other):
    """As of two of these commands into one folder: the one that is done first keeps it."""
    def find(*given):
        Path(by_other).parent.mkdir(exist_ok=True)
        Path(by_other).write_text("theirs")
        return resolve_find(*given)

    monkeypatch.setattr("tasks.registry.fetch.find", find)
    monkeypatch.setattr("tasks.export.export.find", find)
    code, out, said = cli(*words.split(), "xc", "out", "--home", str(registered.store.home))
    assert (code, out) == (2, "") and "error: out has been made by another process meanwhile" in said
    assert Path(by_other).read_text() == "theirs" and [path.name for path in Path().iterdir()] == ["out"]


def test_what_killed_calls_left_beside_a_folder_is_removed(registered, tmp_path):
    """But not what another call writes into, nor what an import left, which may be all that there is of a data set."""
    left, others, data = (tmp_path / f".new.abcdef_{name}" for name in ("0.new", "1.new", "2.tmp"))
    for folder in (left, others, data):
        (folder / "made").mkdir(parents=True)
    with locked(others, fcntl.LOCK_SH):
        fetch(registered.tracker, "xc", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, data.name, "new"]


def test_whoever_can_read_an_exported_card_can_read_the_model(registered, cli):
    assert cli("export", "encoder", "xc", "out", "--home", str(registered.store.home))[0] == 0
    modes = {path.name: path.stat().st_mode for path in Path("out").rglob("*") if path.is_file()}
    assert "labels.safetensors" in modes and {*modes.values()} == {modes["README.md"]}


def change(path: Path) -> None:
    """Have a file do something else, where it is code; links to what is elsewhere stay as they are."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(b"open('it-ran', 'w')\n" + data)


def test_what_is_fetched_is_the_version_and_private(registered, tmp_path, cli):
    home = registered.store.home
    code, out, said = cli("fetch", "xc@champion", "a/model", "--home", str(home))
    assert (code, out) == (0, "a/model\n") and "xc/1: every file is as it was registered" in said
    assert stat.S_IMODE((tmp_path / "a" / "model").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    answer = mlflow.pyfunc.load_model(str(tmp_path / "a" / "model")).predict(tiny.QUERIES, params={"k": 3})
    expected = Retriever.load(registered.store.open(registered.publish())).predict(tiny.QUERIES, 3)
    assert answer["labels"].tolist() == [[label.text for label in row] for row in expected]
    code, _, said = cli("fetch", "xc", "a/model", "--home", str(home))
    assert code == 2 and "a/model is there already" in said
    for place in ("a/model/MLmodel/below", "a/model/MLmodel/far/below", "/proc/below", "a" * 250):
        code, _, said = cli("fetch", "xc", place, "--home", str(home))
        assert code == 2 and f"{place} cannot be made: " in said and "hint: name a folder where you may write" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("path", CHANGED)
def test_a_file_that_was_changed_is_refused_before_anything_runs(models, tmp_path, path, cli):
    change(models.folder / path)
    code, out, said = cli("fetch", "xc@champion", "model", "--home", str(models.store.home))
    assert code == 1 and not out and f"{path} is not as it was registered" in said and "repeat the run" in said
    assert [each.name for each in tmp_path.iterdir()] == ["home"] and not list(tmp_path.rglob("it-ran"))


def test_a_file_that_is_gone_or_is_no_file_is_named(models, tmp_path):
    path = models.folder / "code" / "xcmodels" / "data" / "text.py"
    path.unlink()
    for damage in (lambda: None, lambda: os.mkfifo(path)):    # a FIFO is not waited for
        damage()
        with pytest.raises(DamagedArtifact, match=r"text\.py is not as it was registered"):
            fetch(models.tracker, None, tmp_path / "model")


def test_what_was_added_is_left_out(models, tmp_path):
    for path in ("registered_model_meta", "code/sitecustomize.py", "code/xcmodels/__pycache__/text.cpython-311.pyc"):
        (models.folder / path).parent.mkdir(exist_ok=True)
        (models.folder / path).write_text("open('it-ran', 'w')")
    fetch(models.tracker, "xc/1", tmp_path / "model")
    assert not (tmp_path / "model" / "code" / "sitecustomize.py").exists()
    assert {path.name for path in (tmp_path / "model").rglob("*")} >= {"MLmodel", "text.py", "fusion.npz"}
    assert not list((tmp_path / "model").rglob("*.pyc")) and not (tmp_path / "model" / "registered_model_meta").exists()


@pytest.mark.parametrize("listed", [True, False], ids=["changed", "without a list of files"])
def test_the_run_again_writes_anew_what_is_not_as_it_was(models, tmp_path, listed):
    if listed:
        change(models.folder / "pyfunc_model.py")
    else:
        with sqlite3.connect(models.store.home / "mlflow.db") as base:
            base.execute("DELETE FROM model_version_tags WHERE key = 'xc.files'")
    with pytest.raises(DamagedArtifact if listed else UsageError) as refused:
        fetch(models.tracker, "xc/1", tmp_path / "model")
    assert refused.value.hint.startswith("repeat the run that registered it")
    assert models.register(0).reused
    fetch(models.tracker, "xc/1", tmp_path / "model")
    own = Path(__file__).parents[2] / "tasks" / "registry" / "pyfunc_model.py"
    assert (tmp_path / "model" / "pyfunc_model.py").read_text() == own.read_text()


def test_the_model_compares_its_retriever_before_it_is_read(registered, tmp_path):
    fetch(registered.tracker, "xc/1", tmp_path / "model")
    inside = tmp_path / "model" / "artifacts" / "retriever"
    for name in ("frequencies.npy", MANIFEST):
        data = (inside / name).read_bytes()
        (inside / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(Exception, match=r"is not as it was registered|MANIFEST\.json is another one"):
            mlflow.pyfunc.load_model(str(tmp_path / "model"))
        (inside / name).write_bytes(data)
    assert len(mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(["a wolf"])) == 1


@pytest.fixture
def elsewhere(models, monkeypatch):
    """The model as another machine has it, whose MLflow is a server."""
    for place in ("local_folder", "_stored"):
        monkeypatch.setattr(f"tasks.registry.resolve.{place}", lambda *_: None)
    monkeypatch.setattr("tasks.registry.fetch.model_folder", lambda *_: None)
    return models


def test_a_server_that_lost_the_manifest_has_another_version_than_was_registered(elsewhere):
    (elsewhere.folder / "artifacts" / "retriever" / MANIFEST).unlink()
    with pytest.raises(DamagedArtifact, match=r"is not \w{12} as it was registered: .*MANIFEST.json: No such file"):
        resolve(elsewhere.tracker)
    assert not list((elsewhere.store.home / "downloads").iterdir())


def test_a_full_disk_here_is_not_called_a_failure_of_the_server(elsewhere, tmp_path, monkeypatch):
    failed = "The following failures occurred while downloading:\n##### File MLmodel #####\n{}"
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", Mock(
        side_effect=mlflow.exceptions.MlflowException(failed.format("[Errno 28] No space left on device: 'MLmodel'"))))
    for use in (partial(resolve, elsewhere.tracker), partial(fetch, elsewhere.tracker, "xc", tmp_path / "out")):
        with pytest.raises(ProjectError, match=r"cannot fetch the version: .*: No space left on device") as caught:
            use()
        assert "free space" in caught.value.hint
