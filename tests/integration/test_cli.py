"""The command line as a newcomer meets it: help, typos, missing things, quiet output."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from flows.cli import app as app_module
from tests.conftest import ROOT
from tests.support import running_server
from tests.support.tiny import RegisteredModels

HEAVY = ("numpy", "torch", "mlflow", "prefect", "great_expectations", "transformers", "faiss", "pandas", "dask")


def test_help_imports_little_and_nothing_heavy():
    code = ("import sys\nfrom flows.cli.app import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "print(','.join(sorted(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    modules = done.stderr.strip().splitlines()[-1].split(",")
    assert not {name.partition(".")[0] for name in modules} & set(HEAVY)
    assert len(modules) < 400    # 331 take .3 s of a processor; 69 of them are Python's own. The time varies twofold.
    assert "Tag short texts" in done.stdout and "--debug" in done.stdout


@pytest.mark.parametrize(("words", "said"), [
    (("rnu",), 'Did you mean "run"'), (("run", "--dta", "x"), "--data"),
    (("data", "import", "--", "-t.csv", "out", "--text", "t"), "--text stands behind --, where options are no longer"),
    (("run", "--data", "DATA", "--preset", "cpuu"), "did you mean 'cpu'"),
    (("run", "--data", "DATA", "--method", "ngme"), "did you mean 'ngame'"),
    (("run", "--data", "DATA", "--set", "m1.epoch=3"), "did you mean 'm1.epochs'"),
    (("run", "--data", "DATA", "--set", "m1.epochs=0"), "at least 1, got 0\nhint: xc presets --method ngame"),
    (("run", "--data", "DATA", "--set", "m1.epochs=three"), "m1.epochs must be a whole number, got 'three'"),
    (("predict", "--input", "DATA"), "is a folder\nhint: name a file of it, or - for stdin"),
    (("predict",), "give either texts or --input"),
    (("run", "--data", "DATA", "--set", "m1.epochs"), "--set takes KEY=VALUE"),
    (("run", "--data", "/nowhere"), "/nowhere is not a folder"),
    (("run", "--data", "DATA", "--dask", "foo"), "'foo' is not the address of a Dask scheduler"),
    (("run", "--data", "DATA", "--name", "a/b"), "'a/b' cannot be the name of a model"),
    (("run", "--data", __file__), "is a file, a data set is a folder\nhint: make one of a table: xc data import"),
    (("deploy", "--data", "DATA", "--pool", "cppu"), 'Did you mean "cpu"'),
    (("labels", "add", "books", "l.csv"), "more is given than this command takes: 'l.csv'\nhint: xc labels add --help"),
    (("labels", "ad"), 'Did you mean "add"'), (("completion", "bsh"), 'Did you mean "bash"'),
    (("promote",), "xc promote needs MODEL\nhint: xc promote --help"),
    (("data", "import", "t.csv"), "hint: xc data import --help"),
    *((("predict", "--k", k, "x"), f"--k must be a whole number, got {k!r}") for k in ("2.5", "inf")),
    (("rnxxxq",), 'Unknown command "rnxxxq". Available commands:'),
    (("run", "--data", "DATA", "--preset", "qqqq"), "no preset 'qqqq'; known: cpu, "),
    (("run", "--data", "DATA", "--workers", "-1"), "--workers must be at least 0, got -1"),
    (("run", "--data", "/tmp/d\udcff"), "d\\udcff' is not UTF-8"),
    (("run", "--data", "DATA", "--home", "/tmp/d\udcff"), "d\\udcff' is not UTF-8"),
    (("up", "--home", "d\udcff"), "d\\udcff' is not UTF-8"),
    (("data", "import", "t.csv", "out", "--text", "t", "--labels", "l", "--test", "0"), "--test must be above 0"),
    (("data", "import", "t.csv", "d\udcff", "--text", "t", "--labels", "l"), "d\\udcff' is not UTF-8"),
    *(((*words, "--home", "/nowhere"), "there is no /nowhere here, so no model") for words in (
        ("predict", "x"), ("models",), ("serve",), ("labels", "list"), ("runs",))),
])
def test_a_slip_gets_a_hint_and_exit_code_2(cli, planted, tmp_path, words, said):
    code, out, err = cli(*[str(planted) if word == "DATA" else word for word in words])
    assert code == 2, err
    assert said in err and not out
    assert len(err.strip().splitlines()) <= 6 and "Traceback" not in err and "errors.pydantic.dev" not in err
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two versions of a model; the second one did not pass the gates."""
    made = RegisteredModels(tmp_path_factory.mktemp("registry") / "home")
    made.enter(0)
    made.enter(1, 50.0)
    return made


@pytest.mark.parametrize(("words", "said"), [
    (("predict", "a wolf", "--model", "xcc"), "no model 'xcc', did you mean 'xc'?"),
    (("predict", "a wolf", "--model", "xc@champoin"), "xc has no alias 'champoin', did you mean 'champion'?"),
    (("promote", "xc@chalenger", "--reason", "r"), "did you mean 'challenger'?"),
    (("promote", "xc/3", "--reason", "r"), "xc has no version '3'"),
    (("rollback", "xcc", "--reason", "r"), "no model 'xcc', did you mean 'xc'?"),
    (("labels", "list", "--model", "xcc"), "no model 'xcc', did you mean 'xc'?")])
def test_a_misspelt_model_or_alias_gets_the_nearest(cli, models, words, said):
    code, out, err = cli(*words, "--home", str(models.store.home))
    assert code == 2 and said in err and not out


@pytest.mark.parametrize("words", [("promote", "xc/2"), ("rollback",), ("rollback", "xc")])
def test_a_move_without_a_reason_says_what_is_missing(cli, models, words):
    before = models.aliases()
    for given in ((), ("--reason", " ")):
        code, out, err = cli(*words, *given, "--home", str(models.store.home))
        assert code == 2 and not out and "no reason is given" in err
        assert f"hint: xc {' '.join(words)} --reason 'clicks fell on Monday'" in err
    assert models.aliases() == before


def test_a_refused_promotion_is_code_4_and_a_dry_run_moves_nothing(cli, models, tmp_path):
    home, before = ("--home", str(models.store.home)), models.aliases()
    code, out, err = cli("promote", "xc/2", "--reason", "why not", *home)
    assert code == 4 and not out and "cannot be compared with champion v1: the test set of" in err and "--force" in err
    code, _, err = cli("promote", "xc/2", "--reason", "I know better", "--force", "--dry-run", *home)
    assert code == 0 and "xc/2 would become the champion" in err
    (tmp_path / "gone").write_text("tiny:4\n")
    code, _, err = cli("labels", "remove", "gone", "--dry-run", *home)
    assert code == 0 and "1 label would be removed from xc" in err
    assert models.aliases() == before and json.loads(cli("labels", "list", "--json", *home)[1])["edits"] == []
    first, second = cli("models", *home)[1].splitlines()
    assert first.startswith("xc/1    champion    P@1 60.00  PSP@5 50.00  20") and "refused" not in first
    assert second == ("xc/2    challenger  P@1 50.00  PSP@5 50.00  refused: P@1 50.00 against 60.00 (-10.00), bound "
                      "59.50")
    rows = json.loads(cli("models", "--json", *home)[1])
    assert [(row["version"], row["aliases"]) for row in rows] == [("1", ["champion"]), ("2", ["challenger"])]


def test_texts_come_by_a_pipe_too(cli, models, monkeypatch, caplog):
    home = ("--k", "1", "--home", str(models.store.home))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a wolf \xff\nan oak\n")))
    code, out, err = cli("predict", "--input", "-", *home)
    assert (code, err) == (0, "") and [json.loads(line)["uid"] for line in out.splitlines()] == ["0", "1"]
    assert "stdin: a line is not UTF-8 and was read as Latin-1, line 1; where" in caplog.text
    code, _, err = cli("predict", "--input", *home)
    assert code == 2 and err.startswith("error: --input is followed by --k")


def test_a_table_is_tagged_as_it_is_imported(cli, models, tmp_path, monkeypatch, caplog):
    """With its uids, in whatever dialect and encoding; as one text a line it would have other labels."""
    home = ("--k", "2", "--home", str(models.store.home))
    table = 'Nr;Überschrift;labels\n"ä-1";"a wolf – an oak";x\nä-2;;y\n'
    columns = ("--uid", "Nr", "--text", "Überschrift")
    answers = set()
    for name, encoding in (("a.csv", "utf-8"), ("b.csv", "utf-8-sig"), ("c.csv", "utf-16"), ("d.csv", "cp1252")):
        (tmp_path / name).write_bytes(table.encode(encoding))
        code, out, err = cli("predict", "--input", name, *columns, *home)
        assert code == 0, err
        answers.add(out)
    (out,) = answers
    first, second = map(json.loads, out.splitlines())
    alone = json.loads(cli("predict", "a wolf – an oak", *home)[1])
    assert out.startswith('{"uid": "ä-1"') and [each["uid"] for each in first["labels"]] == [
        each["uid"] for each in alone["labels"]]
    assert second == {"uid": "ä-2", "labels": []}
    assert "d.csv: 3 lines are not UTF-8 and were read as Windows-1252" in caplog.text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(table.encode("utf-16"))))
    assert cli("predict", "--input", "-", *columns, *home)[1] == out
    code, _, err = cli("predict", "--input", "a.csv", *home)
    assert code == 2 and "a.csv has no column 'text'; it has 'Nr', 'Überschrift', 'labels'" in err
    assert "hint: name one of these columns: --text COLUMN" in err
    code, _, err = cli("predict", "a wolf", "--uid", "Nr", *home)
    assert code == 2 and "--uid names a column of a file" in err


def test_answers_as_csv_hold_no_formula(cli, tmp_path):
    models = running_server.ServedModels(tmp_path / "home")
    models.add(titles=[f"=cmd|' /C calc'!{row} größe" for row in range(50)])
    (tmp_path / "in.csv").write_text("uid,text\n=1+1,größe\nu2, \n")
    home = ("--k", "2", "--home", str(models.home))
    code, out, err = cli("predict", "--input", "in.csv", "--format", "csv", *home)
    assert code == 0, err
    header, *rows = csv.reader(io.StringIO(out))
    assert header == ["uid", "rank", "label_id", "label_uid", "label_text", "score", "confidence"]
    assert [row[:2] for row in rows] == [["'=1+1", "1"], ["'=1+1", "2"], ["u2", ""]]
    assert all(row[4].startswith("'=cmd|' /C calc'!") and "größe" in row[4] for row in rows[:2])
    (first, _) = map(json.loads, cli("predict", "--input", "in.csv", *home)[1].splitlines())
    assert first["uid"] == "=1+1" and first["labels"][0]["text"] == rows[0][4][1:]    # as it is
    assert [[label["score"], label["confidence"]] for label in first["labels"]] == [
        [float(cell) for cell in row[5:]] for row in rows[:2]]


def test_a_list_that_was_given_as_one_text_is_remarked_once(cli, models, tmp_path):
    home = ("--k", "1", "--home", str(models.store.home))
    code, out, err = cli("predict", "a wolf\nan oak\na pike", *home)
    assert code == 0 and len(out.splitlines()) == 1
    assert err == ("warning: 3 lines tagged as one text; where a list was meant: xc predict --input FILE, a text a "
                   "line\n")
    (tmp_path / "texts").write_text("a wolf\n" + "an oak " * 1000 + '\n["a pike", "an elm"]\n')
    code, out, err = cli("predict", "--input", "texts", *home)
    assert code == 0 and len(out.splitlines()) == 3
    assert err.startswith("warning: 2 lines of texts tagged as one text each, the first line 2, 7,000 characters")
    assert err.count("\n") == 1
    assert cli("predict", "a wolf", "an oak [of the forest]", *home)[2] == ""


@pytest.mark.parametrize(("words", "offered"), [
    (("pl",), {"plan"}), (("labels", ""), {"add", "remove", "list", "apply"}), (("run", "--pre"), {"--preset"}),
    (("run", "--preset", "cpu-n"), {"cpu-numbered"}), (("deploy", "--method", "siamesexml+"), {"siamesexml++"}),
    (("completion", ""), {"bash", "zsh", "fish"}),
    (("predict", "--model", "xc@"), {"xc@champion", "xc@challenger"}), (("promote", "xc/"), {"xc/1", "xc/2"})])
def test_the_tab_key_offers_what_there_is(bash, words, offered):
    assert bash("xc", *words) == offered


@pytest.fixture(scope="module")
def bash(tmp_path_factory, models):
    """What bash offers for the last of these words."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "xc").write_text(f'#!/bin/sh\nexec {sys.executable} -m flows.cli "$@"\n')
    (folder / "xc").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}:{os.environ['PATH']}",
                   "XC_HOME": str(models.store.home)}
    script = subprocess.run(["xc", "completion", "bash"], capture_output=True, text=True, check=True, env=environment)
    (folder / "completion").write_text(script.stdout)

    def offered(*words: str) -> set[str]:
        ask = (f'source {folder}/completion; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; '
               '_xc; printf "%s\\n" "${COMPREPLY[@]}"')
        return set(subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=folder,
                                  env=environment).stdout.split())

    return offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_know_the_same(cli, shell):
    code, script, _ = cli("completion", shell)
    assert code == 0
    assert all(name in script for name in ("doctor", "dry-run", "siamesexml++", "cpu-numbered", "__complete"))


def test_help_has_no_boxes_where_there_is_no_terminal(cli):
    out = cli("run", "--help")[1]
    assert "--preset" in out and not set("╭│╰─\x1b") & set(out)


def test_help_shows_a_default_where_it_says_something(cli):
    out = " ".join(cli("run", "--help")[1].split())
    assert "[default: cpu]" in out and "[default: 0.8]" in out
    assert not any(f"[default: {nothing}]" in out for nothing in ('""', "[]", "False", "None", "0", "0.0"))


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port", "--port"])
@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_a_port_that_is_none_is_refused_before_anything_starts(cli, tmp_path, option, port):
    code, _, err = cli("up", option, port, "--home", "home")
    assert code == 2 and f"{option} must be from 1 to 65535, got {port}" in err and not list(tmp_path.iterdir())


def test_presets_as_data_only_on_stdout(cli):
    code, out, _ = cli("presets", "--json")
    assert code == 0
    told = json.loads(out)["ngame"]["cpu"]
    assert told["settings"]["m1.margin"] == 0.3 and "triplet loss" in told["explained"]["m1.margin"]


def test_presets_of_a_method_explain_its_settings(cli, tmp_path):
    (tmp_path / "xc.toml").write_text('method = "astra"\npreset = "minilm"\n')    # of runs: no answer to this question
    code, out, _ = cli("presets")
    assert code == 0 and "ngame  " in out and "m1.margin" not in out
    code, out, _ = cli("presets", "--method", "ngame", "--preset", "cpu-quick")
    assert code == 0 and "astra" not in out and "cpu-learned" in out
    assert re.search(r"^m1\.epochs +3 +of the stage", out, re.MULTILINE)
    assert list(json.loads(cli("presets", "--method", "depsl", "--json")[1])) == ["depsl"]
    code, _, err = cli("presets", "--method", "ngmae")
    assert code == 2 and "did you mean 'ngame'" in err


def test_import_then_where_to_go(xc, tmp_path):
    (tmp_path / "tickets.csv").write_text("text,labels\n" + "".join(
        f"ticket {row} about thing{row % 7},thing{row % 7}\n" for row in range(60)))
    columns = ("--text", "text", "--labels", "labels")
    code, out, err = xc("data", "import", "tickets.csv", "tickets", *columns, cwd=tmp_path)
    assert code == 0 and not out and "next: xc run --data tickets" in err
    code, _, err = xc("data", "import", "tickets.csv", "my tickets", *columns, cwd=tmp_path)
    assert code == 0 and "next: xc run --data 'my tickets'" in err
    code, _, err = xc("data", "import", "tickets.csv", "again", "--text", "txt", "--labels", "labels", cwd=tmp_path)
    assert code == 2 and "'text'" in err


def test_a_closed_pipe_ends_quietly(xc):
    script = "; ".join(["set -o pipefail", *(f"{sys.executable} -m flows.cli {words} | head -1; echo $?" for words in (
        "presets --json", "run --help"))])
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1::2] == ["0", "0"] and not done.stderr


def test_a_broken_pipe_that_is_not_its_output_is_a_failure(cli, monkeypatch):
    """As of a run whose messages nobody reads any more: `xc run ... 2>&1 | head -3`."""
    def broken(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(app_module, "app", broken)
    code, _, err = cli("run")
    assert code == 1 and "unexpected BrokenPipeError" in err


def test_no_server_at_the_address(xc, planted, tmp_path):
    code, _, err = xc("prepare", "--data", str(planted), "--home", str(tmp_path / "home"), "--preset", "cpu-learned",
                      "--dask", "tcp://127.0.0.1:9")
    assert code == 5 and "no Dask scheduler answers at tcp://127.0.0.1:9" in err
