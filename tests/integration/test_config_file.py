"""Where the values of options come from: flags, the environment, xc.toml, the preset; and what `xc plan` says of it."""

import json
import os
import pwd

import pytest

from tests.support.forked import run_xc
from tests.support.run_command import command, copied

TOML = """
home = "elsewhere"
preset = "cpu-learned"
workers = 3
[set]
m1.epochs = 4
m2.margin = 0.2
"prepare.augment" = true
"""


@pytest.fixture
def plan(cli, planted, tmp_path):
    """What `xc plan --json` says in a folder with this xc.toml."""

    def told(toml: str, *words: str) -> dict:
        (tmp_path / "xc.toml").write_text(toml)
        code, out, err = cli("plan", "--data", str(planted), "--json", *words)
        assert code == 0, err
        return json.loads(out)

    return told


def test_the_nearest_source_wins_and_each_is_named(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("XC_HOME", "by-environment")
    monkeypatch.setenv("XC_METHOD", "ramen")
    told = plan(TOML, "--method", "ngame", "--set", "m1.epochs=9", "--wanted-precision", "0.9")
    assert told["options"]["wanted_precision"] == {"value": "0.9", "source": "flag"}
    options = {name: tuple(each.values()) for name, each in told["options"].items()}
    assert options["home"] == ("by-environment", "XC_HOME") and options["method"] == ("ngame", "flag")
    assert options["preset"] == ("cpu-learned", "xc.toml") and options["workers"] == ("3", "xc.toml")
    assert options["dask"] == ("", "default")
    settings = {name: tuple(each.values()) for name, each in told["settings"].items()}
    assert settings["m1.epochs"] == (9, "flag") and settings["m2.margin"] == (0.2, "xc.toml")
    assert settings["prepare.augment"] == (True, "xc.toml") and settings["m1.margin"] == (0.3, "preset")
    assert [path.name for path in tmp_path.iterdir()] == ["xc.toml"], "a plan makes nothing"


def test_an_empty_variable_is_as_none_unless_the_option_may_be_empty(plan, monkeypatch):
    for name in ("HOME", "METHOD", "PRESET", "STORE"):
        monkeypatch.setenv(f"XC_{name}", "")
    told = plan('preset = "cpu-learned"\nstore = "s3://bucket/x"\n')["options"]
    assert {name: tuple(told[name].values()) for name in ("home", "method", "preset", "store")} == {
        "home": (".xc", "default"), "method": ("ngame", "default"), "preset": ("cpu-learned", "xc.toml"),
        "store": ("", "XC_STORE")}


def test_a_budget_chooses_the_method_and_its_preset(cli, planted, tmp_path):
    code, out, err = cli("plan", "--data", str(planted), "--budget", "1h", "--json")
    assert code == 0 and "is the most accurate that fits 1 h 00 min" in err
    options = json.loads(out)["options"]
    assert tuple(options["method"].values()) == ("unidec", "--budget")
    assert tuple(options["preset"].values()) == ("cpu", "--budget")
    for words, said in ((("--method", "ngame"), "--method is given"), (("--preset", "cpu"), "--preset is given")):
        code, _, err = cli("run", "--data", str(planted), "--budget", "1h", *words)
        assert code == 2 and said in err
    (tmp_path / "xc.toml").write_text('method = "ngame"\n')
    code, _, err = cli("run", "--data", str(planted), "--budget", "1h")
    assert code == 2 and "--method is given by xc.toml" in err
    for size in ("--labels", "--points"):
        code, _, err = cli("plan", size, "1000", "--budget", "1h")
        assert code == 2 and f"--budget chooses for data that is here, but {size} is given" in err


@pytest.mark.parametrize(("words", "said"), [
    (("--nodes", "2"), "--nodes is 2, and the leader's address is not given"),
    (("--processes", "100"), "--processes must be at most 64, got"),
    (("--workers", "-1"), "--workers must be at least 0, got"),
    (("--wanted-precision", "80"), "--wanted-precision must be at most 1, got"),
    (("--set", "prepare.tokenizer=learned"), "encoder.source 'minilm' has no embeddings of a vocabulary that is"),
    (("--set", "encoder.source=/nowhere"), "encoder.source '/nowhere' is not a folder"),
    (("--set", "prepare.tokenizer=./nowhere"), "prepare.tokenizer './nowhere' is not a folder")])
def test_a_plan_refuses_what_a_run_refuses(cli, planted, words, said):
    for verb in ("plan", "run"):
        code, _, err = cli(verb, "--data", str(planted), *words)
        assert code == 2 and said in err, err


def test_a_plan_says_where_nothing_would_be_mined(cli, planted):
    said = "warning: neither clusters nor negatives are mined: the first refresh is after refresh_from=3 epochs"
    for epochs, told in ((3, True), (4, False)):
        code, _, err = cli("plan", "--data", str(planted), "--method", "ance", "--set", f"epochs={epochs}")
        assert code == 0 and (said in err) == told, err


@pytest.mark.parametrize(("toml", "said"), [
    ('hom = "x"', "xc.toml: there is no option 'hom', did you mean 'home'?"),
    ('reason = "x"', "there is no option 'reason'"),
    ('preset = "cpuu"', "xc.toml: no preset 'cpuu', did you mean 'cpu'?"),
    ("[set]\nm1.epoch = 3", "xc.toml: no setting 'm1.epoch', did you mean 'm1.epochs'?"),
    ("[set]\nm1.epochs = 'three'", "xc.toml: m1.epochs must be a whole number, got 'three'"),
    ("[set]\nm1.epochs = [3]", "xc.toml: set.m1.epochs must be a text or a number, got [3]"),
    ('workers = "two"', 'from xc.toml: unable to convert "two" into int'),
    ("workers = -1", "--workers must be at least 0, got -1"),
    ('token-file = "x"', "xc.toml: 'token-file': secrets are not read from here"),
    ('mlflow = "http://me:secret@there"', "xc.toml: 'mlflow' holds a password"),
    ("home = [", "xc.toml: not TOML"), ("set = 3", "xc.toml: set must be a table")])
def test_what_xc_toml_cannot_mean(cli, planted, tmp_path, toml, said):
    (tmp_path / "xc.toml").write_text(toml)
    code, out, err = cli("prepare", "--data", str(planted))
    assert code == 2 and said in err and not out
    assert "secret@" not in err and len(err.splitlines()) <= 6
    assert [path.name for path in tmp_path.iterdir()] == ["xc.toml"]


def test_a_slip_of_ones_own_is_not_the_files(cli, planted, tmp_path):
    (tmp_path / "xc.toml").write_text("[set]\nm1.epochs = 3\n")
    code, _, err = cli("plan", "--data", str(planted), "--set", "m1.epoch=2")
    assert code == 2 and err.startswith("error: no setting 'm1.epoch'")


def test_a_plan_gives_the_reasons_that_the_run_would_have(whole, cli, planted, tmp_path):
    home = copied(whole[0], tmp_path / "home")
    words = command(planted, home)[1:]
    before = sorted(home.rglob("*"))
    told = json.loads(cli("plan", *words)[1])
    assert {each["reuse"] for each in told["steps"]} == {True} and told["data"]["bytes"] > 10_000
    assert told["seconds"] == 0 and told["memory"] > 10**8
    code, out, _ = cli("plan", *[word for word in words if word != "--json"], "--set", "m2.margin=0.2")
    assert code == 0 and "setting m2.margin changed from 0.3 to 0.2" in out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert " reuse " in lines["encoder round 2"] and " run " in lines["classifier round 0"]
    assert lines["m2.margin"].endswith("flag") and f"{home}/mlflow.db" in lines["MLflow"]
    assert sorted(home.rglob("*")) == before


def test_a_run_says_beforehand_where_and_what(whole):
    said = whole[2]
    assert said.index("MLflow  ") < said.index("digest ") < said.index("steps: 0 reused") < said.index("  read\n")


def test_an_option_of_another_meaning_keeps_its_default(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (tmp_path / "xc.toml").write_text(f'home = "{home}"\nworkers = 0\nname = "tickets"\nport = 8123\n')
    user = pwd.getpwuid(os.getuid()).pw_name
    code, _, err = run_xc("service", "systemd", "units", "--user", user, cwd=tmp_path)
    assert code == 0, err
    assert (tmp_path / "units/xc.target").is_file(), "the name is that of a run's model"
    app = (tmp_path / "units/xc-app.service").read_text()
    assert "--port 8123" in app and "--workers" not in app, "xc.toml's workers are those of a run's Dask"
    code, _, err = run_xc("serve", "--model", "none", cwd=tmp_path)
    assert code == 2 and "no model is registered" in err, err
