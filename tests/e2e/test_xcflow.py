"""The public interface: trained in process as a run trains it, loaded, and no more than what it promises."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import xcflow
from data_contracts.errors import UsageError
from tasks.core.store import Store
from tests.conftest import ROOT
from tests.support.planted import words, write_planted
from tests.support.toy import toy_corpus

SETTINGS = {"encoder.dim": 16, "prepare.vocabulary": 1000, "m1.epochs": 4, "m2.epochs": 7, "fusion.min_leaf": 5}
ALONE = """
import json, sys
for name in ("prefect", "mlflow", "distributed", "dask"):
    sys.modules[name] = None    # who imports it fails
import xcflow
data, home, settings = sys.argv[1:]
retriever = xcflow.train(data, "ngame", "cpu-learned", settings=json.loads(settings), home=home,
                         say=lambda line: print(line, file=sys.stderr))
print(json.dumps([label.uid for label in retriever.predict(["w3a w3b"], k=3)[0]]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_planted(tmp_path_factory.mktemp("xcflow") / "data", train=500, test=60, labels=30)


def published(home):
    """Return kind and digest of what each step made, by the step's key."""
    store = Store(home)
    return {key: (manifest["kind"], store.find(key).digest) for key, manifest in store.steps()}


def test_it_names_what_it_has():
    assert sorted(dir(xcflow)) == sorted(xcflow.__all__) == ["Label", "Retriever", "load", "train"]
    with pytest.raises(AttributeError, match="no attribute 'fit'; it has Label, Retriever, load, train"):
        xcflow.fit  # noqa: B018
    quick = "import sys, xcflow; assert not {'torch', 'prefect', 'mlflow', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", quick], check=True, cwd=ROOT)


@pytest.mark.timeout(900)
def test_it_trains_what_a_run_trains_and_needs_no_servers(data, xc, tmp_path):
    done = subprocess.run([sys.executable, "-c", ALONE, str(data), str(tmp_path / "alone"), json.dumps(SETTINGS)],
                          capture_output=True, text=True, cwd=tmp_path, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    said = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    code, _, told = xc("train", "--data", str(data), "--preset", "cpu-learned", "--workers", "1", "--home",
                       str(tmp_path / "run"), *said, cwd=tmp_path, timeout=600)
    assert code == 0, told
    ours, theirs = published(tmp_path / "alone"), published(tmp_path / "run")
    assert ours == theirs and {kind for kind, _ in ours.values()} > {"corpus", "mined", "checkpoint", "retriever"}
    assert len(json.loads(done.stdout)) == 3
    home = tmp_path / "alone"
    before = {path: path.stat().st_mtime_ns for path in (home / "objects").iterdir()}
    again = xcflow.train(str(data), "ngame", "cpu-learned", settings=SETTINGS, home=home)
    assert {path: path.stat().st_mtime_ns for path in (home / "objects").iterdir()} == before, "nothing is made twice"
    (found,) = again.predict([" ".join(words(3))], k=1)
    assert isinstance(again, xcflow.Retriever) and isinstance(found[0], xcflow.Label) and found[0].uid == "L3"


@pytest.mark.usefixtures("one_thread")
def test_a_prepared_corpus_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    corpus = toy_corpus(tmp_path / "corpus", queries=200, labels=20, tests=10, validation=10)
    retriever = xcflow.train(corpus, "depsl", settings={"encoder.source": "random", "encoder.dim": 16, "epochs": 4})
    for wrong, said in (({"method": "ngmae"}, "did you mean 'ngame'"), ({"preset": "cpo"}, "no preset 'cpo'"),
                        ({"settings": {"m1.epoch": 2}}, "m1.epochs")):
        with pytest.raises(UsageError, match=said):
            xcflow.train(corpus, **wrong)
    assert np.isfinite(retriever.embed(["l1w0"])).all() and list((tmp_path / "tmp").glob("xcflow-*"))
    del retriever
    assert not list((tmp_path / "tmp").glob("xcflow-*"))    # torch may keep a folder of its own there


def test_what_is_wrong_is_said(data, tmp_path):
    for words_, said in (((data, "ngmae"), "did you mean 'ngame'"), ((data, "ngame", "cpo"), "no preset 'cpo'"),
                         ((tmp_path / "none",), "none")):
        with pytest.raises(UsageError, match=said):
            xcflow.train(*words_, home=tmp_path / "home")
    with pytest.raises(UsageError, match="no model is registered"):
        xcflow.load(home=tmp_path / "home")
