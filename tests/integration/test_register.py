"""Retrievers as versions: made once, found by name, loaded anywhere, their files verified."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from data_contracts.errors import DamagedArtifact, ServerError, UsageError
from tasks.core.store import Artifact
from tasks.evaluation.gates import Score
from tasks.registry.champions import listing
from tasks.registry.model_card import model_card
from tasks.registry.promotion import PromotionDecision, decision_on_record
from tasks.registry.register import Registered, register
from tasks.registry.resolve import model_name, resolve
from tasks.registry.tags import registered_digests
from tasks.tracking.tracker import Tracker
from tests.support import tiny
from tests.support.long_tests import at_length
from xcmodels.retrieval.retriever import Retriever


@pytest.fixture
def models(tmp_path):
    return tiny.RegisteredModels(tmp_path / "my home")


def test_the_pyfunc_answers_as_the_retriever_does(models):
    import mlflow

    assert models.enter(0) == PromotionDecision(True, "there was no champion", became="1")
    retriever = Retriever.load(models.store.open(models.publish()))
    contents = ["", "of the forest", "", "", ""]
    with tiny.global_uri(models.tracker.uri):
        model = mlflow.pyfunc.load_model("models:/xc@champion")
    for asked, expected in (
            (tiny.QUERIES, retriever.predict(tiny.QUERIES, 3)),
            (pd.DataFrame({"text": tiny.QUERIES}), retriever.predict(tiny.QUERIES, 3)),
            (pd.DataFrame({"content": [each or None for each in contents], "text": tiny.QUERIES}),
             retriever.predict(tiny.QUERIES, 3, contents))):
        answer = model.predict(asked, params={"k": 3})
        for column, field in (("labels", "text"), ("scores", "score"), ("confidences", "confidence"), ("ids", "id"),
                              ("uids", "uid")):
            assert answer[column].tolist() == [[getattr(label, field) for label in row] for row in expected]
    assert [len(row) for row in model.predict(["a wolf"])["labels"]] == [10]
    least = retriever.predict(["a wolf"])[0][3].confidence
    assert [len(row) for row in model.predict(["a wolf"], params={"threshold": least})["confidences"]] == [4]
    assert model.predict(["a wolf"], params={"threshold": 1.0})["labels"].tolist() == [[]]
    some = [label.uid for label in retriever.predict(["a wolf"], 9)[0]]
    assert model.predict(["a wolf"], params={"only": some[::2], "k": 3})["uids"].tolist() == [some[:6:2]]
    assert model.predict(["a wolf"], params={"without": some[:2], "k": 3})["uids"].tolist() == [some[2:5]]
    with pytest.raises(ValueError, match='need a column "text", got txet'):
        model.predict(pd.DataFrame({"txet": ["a wolf"]}))


ELSEWHERE = """
    import json, sys
    # The project may be installed in editable mode, by a finder of its own; here it is as if it were not.
    sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.path = [path for path in sys.path if path.rstrip("/") != {root!r}]
    import importlib.util
    assert importlib.util.find_spec("xcmodels") is None
    import mlflow
    mlflow.set_tracking_uri({uri!r})
    model = mlflow.pyfunc.load_model("models:/xc@champion")
    import xcmodels
    assert not xcmodels.__file__.startswith({root!r} + "/xcmodels"), xcmodels.__file__
    print(json.dumps(model.predict({queries!r}, params={{"k": 3}})["labels"].tolist()))
"""


def test_the_model_loads_where_the_project_is_not_installed(models, tmp_path):
    models.enter(0)
    script = textwrap.dedent(ELSEWHERE).format(root=str(Path(__file__).parents[2]),
                                               uri=models.tracker.uri, queries=tiny.QUERIES)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    retriever = Retriever.load(models.store.open(models.publish()))
    assert json.loads(done.stdout) == [[label.text for label in row] for row in retriever.predict(tiny.QUERIES, 3)]


def test_registered_twice_is_one_version(models):
    assert (models.register(0), models.register(0)) == (Registered("1", False), Registered("1", True))
    [version] = models.versions()
    assert version.description == "# card of 0"
    assert version.tags["xc.retriever"] == models.publish().digest
    assert json.loads(version.tags["xc.metrics"]) == {"P/1": 60.0, "PSP/5": 50.0}
    assert registered_digests(models.tracker) == {models.publish().digest}


def test_the_retriever_is_linked_rather_than_copied(models):
    models.register(0)
    original = models.store.open(models.publish()) / "frequencies.npy"
    [copy] = (models.store.home / "mlartifacts").rglob("frequencies.npy")
    assert copy.samefile(original)


@pytest.mark.parametrize("step", [f"tasks.registry.{name}" for name in (
    "logged_model.link_or_copy", "promotion._decide", "promotion.move")])
def test_a_registration_that_was_cut_off_is_completed(models, monkeypatch, step):
    def fail(*_, **__):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(step, fail)
        with pytest.raises((ServerError, shutil.Error)):
            models.enter(0, 60.0)
    models.enter(0, 60.0)
    assert [version.status for version in models.versions()] == ["READY"]
    assert models.aliases() == {"champion": "1", "challenger": "1"}
    with models.tracker.required() as client:
        experiment = client.get_experiment_by_name("xc").experiment_id
        assert len(client.search_logged_models([experiment])) == 1
    assert resolve(models.tracker).digest == models.publish().digest


def test_a_version_measured_anew_carries_the_new_measurement(models):
    models.enter(0, 60.0)
    models.enter(0, 66.0, test="test 2")
    [version] = models.versions()
    assert (version.tags["xc.test"], json.loads(version.tags["xc.metrics"])["P/1"]) == ("test 2", 66.0)


def test_an_alias_that_names_a_deleted_version_is_no_champion(models):
    """Databases of other origin may keep such an alias; MLflow's own drops it with the version."""
    import sqlite3

    models.enter(0, 60.0)
    models.enter(1, 50.0)
    with sqlite3.connect(models.store.home / "mlflow.db") as database:
        database.execute("UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 1")
    with pytest.raises(UsageError, match="version 1, which was deleted"):
        resolve(models.tracker, "xc")
    assert models.enter(1, 50.0).promoted
    assert resolve(models.tracker, "xc").version == "2"


@pytest.mark.parametrize(("spec", "seed"), [
    (None, 0), ("xc", 0), ("xc@champion", 0), ("xc@challenger", 1), ("xc/2", 1), ("models:/xc/1", 0)])
def test_names_of_versions(pair, spec, seed):
    found = resolve(pair.tracker, spec)
    assert found.digest == pair.publish(seed).digest
    assert found.folder == pair.store.home / "objects" / found.digest


@pytest.mark.parametrize(("spec", "said"), [
    ("xd", "no model 'xd'; known: xc"), ("xc@champoin", "did you mean 'champion'"), ("xc/22", "did you mean '2'"),
    ("xc/", "no version ''"), ("", "'' names no model"), ("xc@", "no alias ''"),
    (f"xc/{10**20}", f"xc has no version '{10**20}'"), (f"xc/{2**40}", f"no version '{2**40}'")])
def test_misspelt_names_get_the_nearest(pair, spec, said):
    with pytest.raises(UsageError, match=said):
        resolve(pair.tracker, spec)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two versions, the first of them the champion."""
    models = tiny.RegisteredModels(tmp_path_factory.mktemp("pair") / "home")
    models.enter(0, 60.0)
    models.enter(1, 50.0)
    return models


@pytest.mark.parametrize("database", [True, False])
def test_nothing_registered_says_how_to_begin(models, database):
    if not database:
        (models.store.home / "mlflow.db").unlink()
    with pytest.raises(UsageError, match="no model is registered") as caught:
        resolve(models.tracker)
    assert caught.value.hint == "xc run --data DIR"
    assert (models.store.home / "mlflow.db").exists() == database


def test_a_run_that_mlflow_had_not_heard_of_is_registered_all_the_same(tmp_path, monkeypatch):
    def down(self):
        raise ServerError("no MLflow server answers")

    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "_connected", down)
        models = tiny.RegisteredModels(tmp_path / "home")
        assert models.run is None
        with pytest.raises(ServerError):
            models.enter(0, 60.0)
    assert models.enter(0, 60.0).promoted
    assert models.versions()[0].run_id == models.tracker.run_id


def test_several_models_have_to_be_told_apart(models):
    models.enter(0)
    models.register(0, name="other")
    with pytest.raises(UsageError, match="there are 2 models: other, xc"):
        resolve(models.tracker)
    assert resolve(models.tracker, "other").name == "other"


def test_a_model_beyond_the_first_page_of_mlflow_is_found(models):
    models.enter(0)
    with models.tracker.required() as client:
        for number in range(101):    # MLflow gives a hundred at once, by name
            client.create_registered_model(f"model {number}")
    assert model_name(models.tracker, "xc") == "xc"
    assert [row["name"] for row in listing(models.tracker)] == ["xc"]


def test_without_the_object_the_copy_in_mlflow_serves_if_it_is_whole(models):
    models.enter(0, 60.0)
    artifact = models.publish()
    shutil.rmtree(models.store.home / artifact.path)
    found = resolve(models.tracker)
    assert found.folder.is_relative_to(models.store.home / "mlartifacts")
    assert Retriever.load(found.folder).predict(["a wolf"], 1)
    file, elsewhere = found.folder / "fusion.npz", models.store.home / "fusion.npz"
    for damage, said in (((found.folder / "extra").touch, "extra is not in the manifest"),
                         (lambda: file.rename(elsewhere), r"fusion\.npz is missing"),
                         (lambda: file.symlink_to(elsewhere), r"fusion\.npz is not a regular file"),
                         (lambda: os.mkfifo(file), r"fusion\.npz is not a regular file")):
        damage()
        with pytest.raises(DamagedArtifact, match=f"as it was registered: .*{said}"):
            resolve(models.tracker)
        (found.folder / "extra" if "extra" in said else file).unlink(missing_ok=True)


def test_a_damaged_object_is_not_served(models):
    models.enter(0, 60.0)
    file = models.store.home / Artifact.of(models.publish().digest).path / "frequencies.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedArtifact, match=r"frequencies\.npy"):
        resolve(models.tracker)


def test_what_cannot_be_registered_is_refused(models):
    for name in ("a/b", "a:b", "a@b", " "):
        with pytest.raises(UsageError, match="cannot be the name"):
            models.register(0, name=name)
    with pytest.raises(DamagedArtifact):
        register(models.tracker, models.run, "xc", retriever_dir=models.store.open(models.publish()),
                 retriever_digest="0" * 64, score=Score({"P/1": 1.0}), test_digest="t", card="")


def test_a_card_has_its_limits_from_the_measurement():
    deciles = [{"decile": 1, "labels": 90, "positives": 5, "max_frequency": 3, "P/5": 1.0, "recall/5": 12.5},
               {"decile": 10, "labels": 0, "positives": 0, "max_frequency": 0, "P/5": 0.0, "recall/5": 0.0}]
    score = Score({"P/1": 60.0, "P/1/low": 58.0, "P/1/high": 62.0, "left_out": 7.0,
                   "index/embedding/recall/100": 93.21, "calibration/error": 1.84, "calibration/queries": 0.0}, deciles)
    card = model_card("ngame on tiny", score, use="Tags texts.", data={"labels": 1234567, "digest": "ab"},
                      command="xc run --data tiny", threshold="For 80% right, the threshold is 0.62.")
    for part in ("- labels: 1,234,567", "| P@1 |", "| 60.00 |", "    xc run --data tiny", "wrong for 40.0%",
                 "between 58.00 and 62.00", "at most 3 times in training, 12.5% are among the best 5", "7 test queries",
                 "'embedding' finds 93.2%", "- For 80% right, the threshold is 0.62.", "off by 1.8 points on average",
                 "confidences were fitted on no query"):
        assert part in card


def test_what_was_decided_of_a_retriever_is_on_record(tmp_path):
    models = tiny.RegisteredModels(tmp_path / "home")
    models.enter(0)
    refused = models.enter(1, 50.0)
    number, told = decision_on_record(models.tracker, "xc", models.publish(1).digest)
    assert (number, told.promoted, told.reason, told.champion["version"]) == ("2", False, refused.reason, "1")
    assert list(map(str, told.gates)) == list(map(str, refused.gates)) and told.gates
    assert decision_on_record(models.tracker, "xc", models.publish(0).digest)[1].champion["version"] == "1"
    assert models.enter(2, 70.0).promoted
    assert decision_on_record(models.tracker, "xc", models.publish(0).digest)[1].reason == "it was the champion"
    assert decision_on_record(models.tracker, "xc", models.publish(3).digest) is None


def test_a_downloaded_copy_that_is_damaged_is_downloaded_again(models, monkeypatch):
    models.enter(0)
    for place in ("local_folder", "_stored"):    # as on another machine
        monkeypatch.setattr(f"tasks.registry.resolve.{place}", lambda *_: None)
    found = resolve(models.tracker).folder
    assert found.is_relative_to(models.store.home / "downloads")
    whole = (found / "frequencies.npy").read_bytes()
    (found / "frequencies.npy").write_bytes(whole[:-1] + b"?")
    assert resolve(models.tracker).folder == found and (found / "frequencies.npy").read_bytes() == whole


@at_length("starts a server")
def test_a_real_server_hands_out_what_was_registered(tmp_path):
    with tiny.mlflow_server(tmp_path / "server") as (uri, _):
        models = tiny.RegisteredModels(tmp_path / "home", uri)
        assert models.enter(0, 60.0).promoted
        assert models.register(0).reused
        assert resolve(models.tracker).folder.parent == models.store.home / "objects"
        for _ in range(2):    # downloaded, then there
            found = resolve(Tracker(tmp_path / "other", uri))
            assert found.folder == tmp_path / "other" / "downloads" / models.publish().digest
        assert Retriever.load(found.folder).predict(["a wolf"], 1)
        assert list((models.store.home / "scratch").iterdir()) == []
