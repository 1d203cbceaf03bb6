"""The public interface: trained in process as a run trains it, loaded, and no more than what it promises."""

import json
import os
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
import torch

import xcflow
from data_contracts.errors import UsageError
from tasks.core.store import Store
from tests.conftest import ROOT
from tests.support.planted import QUICK, words
from tests.support.toy import toy_corpus

SMALL = {"encoder.source": "random", "encoder.dim": 16, "epochs": 4}

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
def test_it_trains_what_a_run_trains_and_needs_no_servers(planted, whole, tmp_path):
    done = subprocess.run([sys.executable, "-c", ALONE, str(planted), str(tmp_path / "alone"), json.dumps(QUICK)],
                          capture_output=True, text=True, cwd=tmp_path, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    ours, theirs = published(tmp_path / "alone"), published(whole[0])
    kinds, made = ({kind for kind, _ in each.values()} for each in (ours, theirs))
    assert ours.items() <= theirs.items() and kinds == made - {"evaluation"}
    assert kinds > {"corpus", "mined", "checkpoint", "retriever"}
    assert len(json.loads(done.stdout)) == 3
    home = tmp_path / "alone"
    before = {path: path.stat().st_mtime_ns for path in (home / "objects").iterdir()}
    (frequencies,) = (home / "baselines").iterdir()
    frequencies.unlink()
    again = xcflow.train(str(planted), "ngame", "cpu-learned", settings=QUICK, home=home)
    assert {path: path.stat().st_mtime_ns for path in (home / "objects").iterdir()} == before, "nothing is made twice"
    assert frequencies.exists(), "the next data is compared with these, though their check was reused"
    (found,) = again.predict([" ".join(words(3))], k=1)
    assert isinstance(again, xcflow.Retriever) and isinstance(found[0], xcflow.Label) and found[0].uid == "L3"


@pytest.mark.usefixtures("one_thread")
def test_a_prepared_corpus_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    corpus = toy_corpus(tmp_path / "corpus", queries=200, labels=20, tests=10, validation=10)
    retriever = xcflow.train(corpus, "depsl", settings=SMALL)
    for wrong, said in (({"method": "ngmae"}, "did you mean 'ngame'"), ({"preset": "cpo"}, "no preset 'cpo'"),
                        ({"settings": {"m1.epoch": 2}}, "m1.epochs"),
                        ({"settings": ["m1.epochs=2"]}, "settings is a dict"), ({"settings": {3: 2}}, "no setting '3'"),
                        ({"settings": {"prepare.max_title": 4}}, "prepare.max_title is a setting of the preparation")):
        with pytest.raises(UsageError, match=said):
            xcflow.train(corpus, **wrong)
    assert np.isfinite(retriever.embed(["l1w0"])).all()
    assert [path.name for path in (tmp_path / "tmp").glob("xcflow-*/*")] == ["retriever"]
    del retriever
    assert not list((tmp_path / "tmp").glob("xcflow-*"))    # torch may keep a folder of its own there


@pytest.mark.usefixtures("one_thread")
def test_one_training_waits_for_another_and_leaves_the_generator_of_torch_as_it_was(tmp_path):
    corpus = toy_corpus(tmp_path / "corpus", queries=200, labels=20, tests=10, validation=10)
    before, lines, made = torch.get_rng_state(), list[str](), dict[str, xcflow.Retriever]()

    def train(name, then=lambda: None):
        def say(line):
            lines.append(f"{name}: {line}")
            if "epoch 1:" in line:
                then()

        made[name] = xcflow.train(corpus, "depsl", settings=SMALL, say=say)

    other = Thread(target=train, args=("second",))
    train("first", other.start)
    other.join()
    assert [line.partition(": step")[0] for line in lines] == [
        f"{name}: joint epoch {epoch}" for name in ("first", "second") for epoch in (1, 2, 3, 4)]
    assert np.array_equal(made["first"].embed(["l1w0"]), made["second"].embed(["l1w0"]))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_wrong_is_said(planted, tmp_path):
    for words_, said in (((planted, "ngmae"), "did you mean 'ngame'"), ((planted, "ngame", "cpo"), "no preset 'cpo'"),
                         ((tmp_path / "none",), "none"), ((None,), "data is a folder, .* not of type NoneType")):
        with pytest.raises(UsageError, match=said):
            xcflow.train(*words_, home=tmp_path / "home")
    with pytest.raises(UsageError, match="no model is registered"):
        xcflow.load(home=tmp_path / "home")
    with pytest.raises(UsageError, match=r"PosixPath.* is not the name of a model"):
        xcflow.load(tmp_path, home=tmp_path / "home")
