"""`xc gc`: what is not needed goes, what a run, a registered version or a server needs stays."""

import json
import os
import re
import time

import pytest
from prefect.logging import disable_run_logger

from data_contracts.errors import ServerError, UsageError
from flows.cli import app
from flows.config import RunConfig
from flows.deployed_flows import room_task
from tasks.core.store import Store, digest_of
from tasks.home_gc import DAY, collect, note_server
from tasks.tracking.tracker import Tracker
from tests.support.faults import NEW, OLD, child, ended, one
from tests.support.running_server import ServedModels, running


@pytest.fixture
def models(tmp_path):
    return ServedModels(tmp_path / "home")


def publish(store, key, days=0.0, data=b"content"):
    """Publish a step's result, which was asked for last so many days ago."""
    made = store.publish(key, "checkpoint", {}, one(data))
    age(store.home / "refs" / "steps" / key, days)
    return made


def age(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def gc(capsys, *words):
    """Run `xc gc`; -> what it says as JSON, its exit code, what it says on stderr."""
    code = 0
    try:
        app.main(["gc", "--json", *map(str, words)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, said = capsys.readouterr()
    return json.loads(out) if out else None, code, said


def test_what_no_run_asked_for_lately_goes(store, capsys):
    old, new = publish(store, OLD, 20, b"old"), publish(store, NEW, 3, b"new")
    told, code, said = gc(capsys, "--home", store.home, "--dry-run")
    assert (code, told["counts"], told["freed"]) == (0, {"checkpoint": 1}, False) and "would free" in said
    assert store.open(old) and set(store.home.glob("objects/*")) == {store.home / old.path, store.home / new.path}
    told, code, said = gc(capsys, "--home", store.home)
    assert code == 0 and told["bytes"] > 3 and "asked for in 14 days" in said
    assert store.find(OLD) is None and not list(store.home.glob(f"refs/steps/{OLD}"))
    assert store.find(NEW) == new
    assert gc(capsys, "--home", store.home)[0]["counts"] == {}
    assert not (store.home / "mlflow.db").exists(), "looking makes no registry"


def test_to_be_asked_for_is_to_stay(store):
    artifact = publish(store, OLD, 20)
    assert store.find(OLD) == artifact
    assert collect(store, Tracker(store.home), 1).counts == {}
    store.set_ref("models", "champion", {"digest": artifact.digest})
    age(store.home / "refs" / "steps" / OLD, 20)
    assert collect(store, Tracker(store.home), 1).counts == {}, "another ref names it"
    (store.home / "refs" / "models" / "champion").unlink()
    assert collect(store, Tracker(store.home), 1).counts == {"checkpoint": 1}


def test_checkpoints_of_given_up_runs_and_damaged_objects_go(store, monkeypatch):
    put = store.scratch(OLD) / "steps"
    put.mkdir()
    (put / "a.safetensors").write_bytes(bytes(1000))
    artifact = publish(store, NEW)
    (store.home / artifact.path / "a.bin").write_bytes(b"damaged")
    assert store.find(NEW) is None
    tracker = Tracker(store.home)
    assert collect(store, tracker, 1).counts == {}
    assert (put / "a.safetensors").exists(), "a run that was killed today goes on"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    freed = collect(store, tracker, 1)
    assert freed.counts == {"unfinished": 1, "damaged": 1} and freed.sizes["unfinished"] == 1000
    assert not list(store.home.glob("scratch/*")) and not list(store.home.glob("quarantine/*"))


def test_a_restored_home_without_its_empty_folders_is_collected_and_takes_results(store):
    publish(store, OLD, 20)
    for name in ("tmp", "scratch", "quarantine"):
        (store.home / name).rmdir()
    assert collect(Store(store.home, create=False), Tracker(store.home), 1).counts == {"checkpoint": 1}
    (store.home / "tmp").rmdir()
    assert publish(Store(store.home, create=False), NEW) == store.find(NEW)


def test_links_and_pipes_among_damaged_objects_go(store, monkeypatch):
    (store.home / "quarantine" / "link").symlink_to(store.home / "nowhere")
    (store.home / "objects" / OLD).symlink_to(store.home / "nowhere")
    os.mkfifo(store.home / "quarantine" / "pipe")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    assert collect(store, Tracker(store.home), 1).counts == {"damaged": 3}
    assert not list(store.home.glob("quarantine/*")) and not os.path.lexists(store.home / "objects" / OLD)


def test_what_a_run_removes_meanwhile_is_passed_over(store, monkeypatch):
    (store.scratch(OLD) / "steps").mkdir()
    (store.scratch(OLD) / "steps" / "a.safetensors").write_bytes(bytes(1000))
    now, lstat = time.time(), os.lstat

    def vanishing(path, **options):
        if "gone" in str(path):
            raise FileNotFoundError(path)
        return lstat(path, **options)

    (store.scratch(OLD) / "steps" / "gone").write_bytes(bytes(1000))
    monkeypatch.setattr(os, "lstat", vanishing)
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    freed = collect(store, Tracker(store.home), 1, dry_run=True)
    assert freed.counts == {"unfinished": 1} and freed.sizes["unfinished"] == 1000


@pytest.mark.parametrize("moment", ["read_text", "stat", "is_dir"])
def test_what_another_collection_removes_meanwhile_is_passed_over(store, monkeypatch, moment):
    """What would go is looked up without a lock, also beside a run, which makes results again."""
    old, new = publish(store, OLD, 20, b"old"), publish(store, NEW, 20, b"new")
    gone = store.home / (old.path if moment == "is_dir" else f"refs/steps/{OLD}")
    call = getattr(type(gone), moment)

    def overtaken(path, *words, **options):
        if path != gone or not os.path.lexists(gone):
            return call(path, *words, **options)
        known = call(path) if moment == "is_dir" else None
        os.rename(gone, store.home / "tmp" / "taken")
        return known or call(path, *words, **options)

    monkeypatch.setattr(type(gone), moment, overtaken)
    assert collect(store, Tracker(store.home), 14).counts["checkpoint"] >= 1
    assert not (store.home / new.path).exists() and not os.path.lexists(gone)


def test_registered_versions_stay(models):
    models.add()
    step = digest_of(["tiny", 0])
    unregistered = models.digest(1)
    for seed in (0, 1):
        age(models.home / "refs" / "steps" / digest_of(["tiny", seed]), 30)
    freed = collect(models.store, models.tracker, 14)
    assert freed.counts == {"retriever": 1} and not (models.home / "objects" / unregistered).exists()
    assert models.store.find(step) is not None
    away = Tracker(models.home, "http://127.0.0.1:9")
    with pytest.raises(ServerError, match="no MLflow server answers"):
        collect(models.store, away, 0)
    assert models.store.find(step) is not None


def test_nothing_goes_where_versions_are_at_a_server_that_was_not_given(store, capsys):
    publish(store, OLD, 20)
    note_server(store, Tracker(store.home, "http://me:secret@mlflow.example:5000"))
    told, code, said = gc(capsys, "--home", store.home)
    assert (told, code) == (None, 2) and store.find(OLD) is not None
    assert said.endswith("hint: xc gc --mlflow http://mlflow.example:5000\n") and "secret" not in said


def test_it_is_refused_beside_a_run_and_a_writer(store, capsys):
    artifact = publish(store, OLD, 20)

    def hold(say):
        with Store(store.home).run_lock():
            say("mine")
            time.sleep(60)

    with child(hold) as (pid, lines):
        lines.readline()
        _, code, said = gc(capsys, "--home", store.home)
        assert code == 2 and f"is in use by process {pid}" in said
        assert gc(capsys, "--home", store.home, "--dry-run")[0]["counts"] == {"checkpoint": 1}
    assert store.open(artifact)


def test_a_retraining_ends_with_a_collection_or_says_why_not(store, monkeypatch):
    publish(store, OLD, 20, b"old")
    config = RunConfig(data=store.home, home=store.home)
    monkeypatch.setattr("tasks.core.home.LOCK_SECONDS", 0.1)
    monkeypatch.setattr("tasks.core.store.GC_SECONDS", 0.1)
    with disable_run_logger():
        with store.no_collection():
            refused = room_task.fn(config, 14.0)
        assert refused.name == "Postponed" and "is being published" in refused.message
        assert room_task.fn(config, 30.0).message == "freed 0 KB that no run has asked for in 30 days"
        assert store.find(OLD) is not None
        age(store.home / "refs" / "steps" / OLD, 20)
        assert re.match("freed [1-9][0-9]* KB that", room_task.fn(config, 14.0).message)
    assert store.find(OLD) is None


def test_what_is_being_registered_stays(store, monkeypatch):
    """Labels are edited without the lock of a run."""
    monkeypatch.setattr("tasks.core.store.GC_SECONDS", 0.1)
    publish(store, OLD, 20)
    with store.no_collection(), pytest.raises(UsageError, match="a step is being published"):
        collect(store, Tracker(store.home), 0)
    assert collect(store, Tracker(store.home), 0).counts == {"checkpoint": 1}


def test_a_server_answers_on_with_a_version_that_was_deleted(models, capsys):
    models.add()
    with running(models.home, "--model", "xc@champion") as server:
        with models.tracker.required() as client:
            client.delete_registered_model("xc")
        told, code, said = gc(capsys, "--home", models.home, "--days", 0)
        assert (code, told["counts"]) == (0, {}), said
        assert server.fine() and server.ask("/predict", {"texts": ["a wolf"], "explain": True}).status == 200
        server.stop()
    assert gc(capsys, "--home", models.home, "--days", 0)[0]["counts"] == {"retriever": 1}


def test_a_collection_that_is_killed_is_finished_by_the_next(store):
    artifact = publish(store, OLD, 20)

    def action(say):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", lambda path: os._exit(137))    # the object is gone, its name is not
            collect(Store(store.home), Tracker(store.home), 1)

    with child(action) as (pid, _):
        assert ended(pid) == 137
    assert not (store.home / artifact.path).exists() and store.find(OLD) is None
    collect(store, Tracker(store.home), 1)
    assert not list(store.home.glob("refs/steps/*"))
    assert publish(store, OLD) == artifact == store.find(OLD)


def test_what_is_invalid(tmp_path, store, capsys):
    for days in ("-1", "nan", "1e9"):
        assert gc(capsys, "--home", store.home, "--days", days)[1] == 2
    _, code, said = gc(capsys, "--home", tmp_path)
    assert code == 2 and "is not the HOME of a pipeline" in said


def test_files_that_have_another_name_free_nothing(store, tmp_path):
    artifact = publish(store, OLD, 20, bytes(5000))
    os.link(store.home / artifact.path / "a.bin", tmp_path / "kept")
    assert collect(store, Tracker(store.home), 1).sizes["checkpoint"] < 1000
    assert (tmp_path / "kept").stat().st_size == 5000
