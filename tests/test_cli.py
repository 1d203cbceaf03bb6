"""The command line as a newcomer meets it: help, typos, missing things, quiet output."""

import json
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

HEAVY = ("torch", "mlflow", "prefect", "great_expectations", "transformers", "faiss", "pandas", "dask")


def test_help_is_instant_and_imports_nothing_heavy():
    code = ("import sys, resource\nfrom flows.cli import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "print(','.join(sorted(sys.modules)), file=sys.stderr)\n"
            "use = resource.getrusage(resource.RUSAGE_SELF); print(use.ru_utime + use.ru_stime, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    modules, seconds = done.stderr.strip().splitlines()[-2:]
    assert not {name.partition(".")[0] for name in modules.split(",")} & set(HEAVY)
    assert float(seconds) < 1.5    # 0.15 s where nothing else runs
    assert "Tag short texts" in done.stdout


@pytest.mark.parametrize(("words", "said"), [
    (("rnu",), 'Did you mean "run"'),
    (("run", "--dta", "x"), "--data"),
    (("run", "--data", "DATA", "--preset", "cpuu"), "did you mean 'cpu'"),
    (("run", "--data", "DATA", "--method", "ngme"), "did you mean 'ngame'"),
    (("run", "--data", "DATA", "--set", "m1.epoch=3"), "did you mean 'm1.epochs'"),
    (("run", "--data", "DATA", "--set", "m1.epochs=three"), "m1.epochs must be a number (int), got 'three'"),
    (("run", "--data", "DATA", "--set", "m1.epochs"), "--set takes KEY=VALUE"),
    (("run", "--data", "/nowhere"), "/nowhere is not a folder"),
    (("predict", "x", "--home", "/nowhere"), "xc run --data DIR"),
])
def test_a_slip_gets_a_hint_and_exit_code_2(xc, planted, tmp_path, words, said):
    code, out, err = xc(*[str(planted) if word == "DATA" else word for word in words], cwd=tmp_path)
    assert code == 2, err
    assert said in err and not out
    assert len(err.strip().splitlines()) <= 6 and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_presets_as_data_only_on_stdout(xc):
    code, out, _ = xc("presets", "--json")
    assert code == 0
    assert json.loads(out)["ngame"]["cpu"]["settings"]["m1.margin"] == 0.3


def test_import_then_where_to_go(xc, tmp_path):
    (tmp_path / "tickets.csv").write_text("text,labels\n" + "".join(
        f"ticket {row} about thing{row % 7},thing{row % 7}\n" for row in range(60)))
    columns = ("--text", "text", "--labels", "labels")
    code, out, err = xc("data", "import", "tickets.csv", "tickets", *columns, cwd=tmp_path)
    assert code == 0 and not out and "next: xc run --data tickets" in err
    code, _, err = xc("data", "import", "tickets.csv", "again", "--text", "txt", "--labels", "labels", cwd=tmp_path)
    assert code == 2 and "'text'" in err


def test_a_closed_pipe_ends_quietly(xc):
    process = subprocess.Popen(f"{sys.executable} -m flows.cli presets --json | head -1", shell=True, cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert out and not err


def test_no_server_at_the_address(xc, planted, tmp_path):
    began = time.monotonic()
    code, _, err = xc("prepare", "--data", str(planted), "--home", str(tmp_path / "home"), "--preset", "cpu-learned",
                      "--dask", "tcp://127.0.0.1:9")
    assert code == 5 and "no Dask scheduler answers at tcp://127.0.0.1:9" in err
    assert time.monotonic() - began < 60
