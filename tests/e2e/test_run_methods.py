"""The whole job by every method but NGAME, which test_run.py takes apart: from a raw folder to answers."""

import json

import pytest

from tests.support.long_tests import at_length
from tests.support.planted import QUICK_JOINT, words, write_planted
from tests.support.run_command import prepared
from tests.support.tiny import fresh_store

# Each with its settings and what it says of what it mined; the other settings of their parts have tests of their own.
ASTRA = {key: value for key, value in QUICK_JOINT.items() if key != "negatives"} | {
    "label_lr": "0.3", "hard": "5", "uniform": "40"}
ASTRA_ALONE = ASTRA | {"start": "label"}    # without module M1 before its own stage
SIAMESE = {key: value for key, value in QUICK_JOINT.items() if key.startswith(("encoder.", "prepare."))} | {
    f"{module}.{key}": value for module, epochs in (("siamese", "150"), ("extreme", "4"))
    for key, value in (("epochs", epochs), ("batch_size", "64"), ("table_lr", "0.02"), ("warmup", "5"),
                       ("least_steps", "0"))} | {"serve": "mixed"}
METHODS = {
    "unidec": (QUICK_JOINT | {"refresh_from": "0", "refresh_every": "6"}, "18 hard negatives each", "clusters of 8"),
    "astra": (ASTRA, "clusters of 8", "5 hard negatives each"),
    "siamesexml++": (SIAMESE, "20 hard negatives each", "alpha"),
    "ramen-ance": ({key if key.startswith("prepare.") else f"base.{key}": value
                    for key, value in (QUICK_JOINT | {"token_lr": "0.03"}).items()},
                   "12 hard negatives each", "edges of group.train kept", "edges of group.label kept")}


@pytest.fixture(scope="module")
def home(whole, tmp_path_factory):
    return prepared(whole[0], tmp_path_factory.mktemp("methods") / "home")


LONGER = at_length("a training of half a minute; test_method_contract.py trains and serves every method without `xc`")


@pytest.mark.parametrize("method", [
    name if name in ("unidec", "astra") else pytest.param(name, marks=LONGER) for name in METHODS])
def test_the_whole_job(planted, home, xc, method):
    """All in one home, so that the data is prepared once and later methods meet a champion."""
    chosen, *mined = METHODS[method]
    settings = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    code, out, said = xc("run", "--data", str(planted), "--method", method, "--preset", "cpu-learned",
                         "--home", str(home), "--workers", "0", "--json", *settings)
    assert code == 0, said
    result = json.loads(out)
    assert result["metrics"]["P/1"] > 90 and result["version"] == str(list(METHODS).index(method) + 1)
    assert all(line in said for line in mined)
    assert said.count("s  mine ") == {"siamesexml++": 1, "astra": 4}.get(method, 2)    # ASTRA: twice for M1


def test_labels_that_have_numbers_alone(tmp_path, xc):
    """ASTRA learns from the queries alone; a method that reads label texts is refused before anything is made."""
    data = write_planted(tmp_path / "data", train=500, test=120, labels=40)
    (data / "lbl.json.gz").unlink()
    (data / "dataset.json").write_text(json.dumps({"name": "numbered", "labels": 40}))
    there = ("--data", str(data), "--home", str(tmp_path / "home"), "--workers", "0", "--json")
    code, _, said = xc("run", *there, "--method", "ngame", "--preset", "cpu-learned")
    assert code == 2 and "--method astra --preset cpu-numbered" in said and not (tmp_path / "home").exists()
    fresh_store(tmp_path / "home")    # with a database, which a run would spend seconds on
    settings = [word for key, value in {**ASTRA, "start": "random", "scale": "10", "serve": "classifier"}.items()
                for word in ("--set", f"{key}={value}")]
    code, out, said = xc("run", *there, "--method", "astra", "--preset", "cpu-learned", *settings)
    assert code == 0, said
    assert json.loads(out)["metrics"]["P/1"] > 90
    _, out, _ = xc("predict", "--home", str(tmp_path / "home"), "--k", "1", " ".join(words(17)))
    assert json.loads(out)["labels"][0].items() >= {"id": 17, "uid": "17"}.items()


def test_the_champion_answers(planted, home, xc):
    code, out, said = xc("predict", "--home", str(home), "--k", "2", " ".join(words(17)))
    assert code == 0, said
    assert json.loads(out)["labels"][0]["id"] == 17
