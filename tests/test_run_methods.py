"""The whole job by every method but NGAME, which test_run.py takes apart: from a raw folder to answers."""

import json

import pytest

from tests.planted import QUICK_JOINT, words

JOINT = ("unidec", "ance")     # the other settings of their parts are in test_unidec.py


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("methods") / "home"


@pytest.mark.parametrize("method", JOINT)
def test_the_whole_job(planted, home, xc, method):
    """All in one home, so that the data is prepared once and later methods meet a champion."""
    settings = [word for key, value in QUICK_JOINT.items() for word in ("--set", f"{key}={value}")]
    code, out, said = xc("run", "--data", str(planted), "--method", method, "--preset", "cpu-learned",
                         "--home", str(home), "--json", *settings)
    assert code == 0, said
    result = json.loads(out)
    assert result["metrics"]["P/1"] > 90 and result["version"] == str(JOINT.index(method) + 1)
    assert "12 hard negatives each" in said
    assert ("clusters of 8" in said) == (method == "unidec")
    assert said.count("s  mine joint round") == 2


def test_the_champion_answers(planted, home, xc):
    code, out, said = xc("predict", "--home", str(home), "--k", "2", " ".join(words(17)))
    assert code == 0, said
    assert json.loads(out)["labels"][0]["id"] == 17
