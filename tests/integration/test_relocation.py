"""A home that was moved, copied or restored elsewhere works there, and touches nothing where it was."""

import json
import os
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache
from prefect.client.orchestration import get_client
from prefect.runner.storage import LocalStorage
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Scheduled

from data_contracts.errors import DamagedArtifact, ServerError
from flows.deploy import follow_home
from tasks.core.store import Artifact, Store
from tasks.home_gc import collect
from tasks.registry.label_edits import apply_edits, edit_labels
from tasks.registry.label_files import LabelRow
from tasks.registry.resolve import resolve
from tasks.tracking import identity as identity_module
from tasks.tracking.identity import FILE, earlier_places, identity, relocate
from tasks.tracking.tracker import Tracker
from tests.support import tiny
from xcmodels.retrieval.label_editing import ADD
from xcmodels.retrieval.retriever import Retriever


@pytest.fixture
def old(tmp_path):
    """A home with a champion, as it was left where it was."""
    models = tiny.with_champion(tmp_path / "first place" / ".xc")
    models.tracker.log_text("said", "notes.txt")
    models.tracker.finish("FINISHED", f"done\n\n    xc run --data d --home '{models.store.home}' --set seed=1")
    return models.store.home


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time and content of every file below a folder."""
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(folder.rglob("*")) if path.is_file()}


def named(home: Path, needle: str) -> list[str]:
    """Return where MLflow's database still has a text."""
    with closing(sqlite3.connect(home / "mlflow.db")) as base:
        tables = [name for name, in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(table, row[1]) for table in tables for row in base.execute(f"PRAGMA table_info('{table}')")]
        return [f"{table}.{column}" for table, column in columns if base.execute(
            f'SELECT 1 FROM "{table}" WHERE instr("{column}", ?)', (needle,)).fetchone()]


def used(home: Path) -> None:
    """Do in a home what its users do: predict, go on with a run, train, register, edit labels, collect."""
    _artifact_repos_cache.clear()    # of this process, which would know a run's files from before it was moved
    store, models = Store(home), tiny.RegisteredModels.__new__(tiny.RegisteredModels)
    models.store, models.tracker = store, Tracker(home)
    shutil.rmtree(home / Artifact.of(resolve(models.tracker).digest).path)    # so MLflow's copy has to be found
    found = resolve(models.tracker)
    assert found.folder.is_relative_to(home / "mlartifacts")
    assert Retriever.load(found.folder).predict(["a wolf"], 1)[0]
    for key in ("k1", "k2"):    # the run that is there, and another
        models.run = models.tracker.start(key, experiment="xc", name="tiny", params={}, config_yaml="", data={},
                                          tags={})
        models.tracker.log_text(f"said again by {key}", "notes.txt")
        assert models.tracker.close() == []
    assert models.enter(1, 66.0).promoted
    assert edit_labels(store, models.tracker, "xc", ADD, [LabelRow("f.csv:1", "x:1", "mountain fox pike")]) == 1
    made = apply_edits(store, models.tracker, "xc")
    assert made is not None and made.moved
    assert Retriever.load(resolve(models.tracker).folder).predict(["mountain fox pike"], 1)[0][0].uid == "x:1"
    collect(store, models.tracker, 0)
    assert resolve(models.tracker, "xc/2").version == "2"


def is_there(old: Path, new: Path) -> None:
    shutil.copytree(old, new)


def is_gone(old: Path, new: Path) -> None:
    os.rename(old, new)


def is_closed(old: Path, new: Path) -> None:
    """Stands for a folder of mode 000, which does not stop the user that tests may run as: nothing leads below it."""
    os.rename(old, new)
    old.write_text("")


def is_another_home(old: Path, new: Path) -> None:
    os.rename(old, new)
    os.rename(tiny.fresh_store(new.parent / "other").home, old)


@pytest.mark.parametrize("the_old_one", [is_there, is_gone, is_closed, is_another_home])
def test_a_home_works_in_another_place_and_leaves_the_old_one_alone(old, tmp_path, the_old_one):
    new = tmp_path / "second place" / "home"
    new.parent.mkdir()
    the_old_one(old, new)
    before = listing(old.parent)
    used(new)
    assert named(new, str(old)) == ["model_versions.description"] or not named(new, str(old))
    assert listing(old.parent) == before
    with Tracker(new).required() as client:
        runs = client.search_runs(["1"], "tags.`mlflow.note.content` LIKE '%--data d%'")
    assert [run.data.tags["mlflow.note.content"].split("\n\n")[1] for run in runs] == [
        f"    xc run --data d --home '{new}' --set seed=1"]
    if the_old_one is is_there:    # both are homes of their own
        after = listing(new)
        used(old)
        assert listing(new) == after and not named(old, str(new))


@pytest.mark.parametrize(("before", "after"), [
    ("plain", "a place"), ("a place", "plain"), ("a place", "someone's own"), ("someone's own", "plain")])
def test_a_command_names_the_new_place_as_a_shell_takes_it(tmp_path, before, after):
    old, new = tmp_path / before, tmp_path / after
    models = tiny.RegisteredModels(old)
    command = ["xc", "run", "--home", str(old), "--data", "d"]
    models.tracker.finish("KILLED", f"interrupted\n\n    {shlex.join(command)}")
    os.rename(old, new)
    with Tracker(new).required() as client:
        note = client.get_run(models.run).data.tags["mlflow.note.content"]
    assert shlex.split(note.split("\n\n")[1]) == ["xc", "run", "--home", str(new), "--data", "d"]


def test_a_move_that_was_cut_off_is_made_by_the_next(old, tmp_path, monkeypatch):
    new = tmp_path / "new"
    os.rename(old, new)
    before = (new / "mlflow.db").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(identity_module, "_PATHS", (*identity_module._PATHS, ("no_table", "no_column")))
        with pytest.raises(ServerError, match="no such table"), Tracker(new).required():
            pass
    assert (new / "mlflow.db").read_bytes() == before
    assert relocate(new) and not relocate(new)
    used(new)


def test_a_database_that_can_only_be_read_is_left_as_it_is(old, tmp_path, monkeypatch):
    new = tmp_path / "new"
    os.rename(old, new)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(f"file:{path}?mode=ro", uri=True, **more))
    assert not relocate(new)
    monkeypatch.undo()
    assert relocate(new)


def test_a_link_to_a_home_is_a_name_of_it_for_as_long_as_it_leads_there(old, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(old)
    models = tiny.RegisteredModels.__new__(tiny.RegisteredModels)
    models.store, models.tracker = Store(link), Tracker(link)
    models.run = models.tracker.start("k2", experiment="by link", name="", params={}, config_yaml="", data={}, tags={})
    assert named(old, f"{link}/mlartifacts") and named(old, f"{old}/mlartifacts")
    assert identity(link) == identity(old) and not earlier_places(old) and not relocate(link)
    link.unlink()
    link.mkdir()    # another folder goes by that name now
    used(old)
    assert not named(old, str(link)) and not list(link.iterdir())


def test_deployments_of_a_moved_home_and_their_runs_to_come_name_it_where_it_is(prefect_server, tmp_path):
    old, new, other = (str(tmp_path / name) for name in ("old", "new", "other"))
    identity(Store(Path(old)).home)
    os.rename(old, new)
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        flow = client.create_flow_from_name("any")
        ids = [client.create_deployment(
            flow, Path(home).name, parameters={"config": {"home": home, "workers": 2}},
            pull_steps=[LocalStorage(home).to_pull_step()]) for home in (old, other)]
        run = client.create_flow_run_from_deployment(ids[0], state=Scheduled())
        try:
            assert follow_home(Path(new)) == ["old"] and follow_home(Path(new)) == []
            moved, stayed = (client.read_deployment(each) for each in ids)
            assert moved.parameters == {"config": {"home": new, "workers": 2}}
            assert client.read_flow_run(run.id).parameters == moved.parameters
            assert moved.pull_steps == [LocalStorage(new).to_pull_step()]
            assert stayed.parameters["config"]["home"] == other and other in str(stayed.pull_steps)
        finally:
            for each in ids:
                client.delete_deployment(each)


def test_only_what_a_home_holds_is_renamed():
    renamed = identity_module._renaming(["/w/.xc", "/w/.xc/old"], "/w/.xc/old/new")
    for text, expected in (
            ("/w/.xc/mlartifacts/1", "/w/.xc/old/new/mlartifacts/1"),
            ("/w/.xc/old/mlartifacts", "/w/.xc/old/new/mlartifacts"),
            ("file:///w/.xc/mlartifacts/a b", "file:///w/.xc/old/new/mlartifacts/a b"),
            ("xc run --home /w/.xc/ --json", "xc run --home /w/.xc/old/new/ --json")):
        assert renamed(text) == expected == renamed(expected)
    for text in ("/w/.xc2/mlartifacts/1", "/v/w/.xc/mlartifacts", "/w/.xc/mlartifacts2", "/w/.xc/objects", None):
        assert renamed(text) == text


def test_an_identity_is_one_whoever_asks_first_and_stays(tmp_path):
    Store(tmp_path / "home")
    known = identity(tmp_path / "home")
    assert identity(tmp_path / "home") == known and known.places == [str(tmp_path / "home")]
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    assert identity(tmp_path / "copy").id == known.id
    assert earlier_places(tmp_path / "copy") == [str(tmp_path / "home")]
    for wrong in ("", "[]", json.dumps({"id": "x"})):
        (tmp_path / "home" / FILE).write_text(wrong)
        with pytest.raises(DamagedArtifact, match="which home this is"):
            identity(tmp_path / "home")
