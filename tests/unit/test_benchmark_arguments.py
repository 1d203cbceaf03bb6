"""A bench's command line: what is invalid is named in a line, before anything is measured."""

import importlib
import re
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.arguments import Count, MethodName, run
from tests.conftest import ROOT

MODULES = {"claims": "claims.__main__", "held_out": "held_out"}    # of a question that is not asked by bench_QUESTION
WRONG = [
    ("annif", "no-such-annif . .", "'no-such-annif' cannot be started"),
    ("annif", "true . nowhere", "'nowhere' is no folder"), ("annif", "true . .", "'.' has no trn.json.gz"),
    ("claims", ". --claims 27", "no claim '27'; there are 1 to 26"), ("claims", ". --claims 1;8", "no claim '1;8'"),
    ("claims", ". --claims 1,,8", "no claim ''"), ("claims", ". --queries=-5", "'-5'"),
    ("classifier_step", "-2", "'-2'"), ("classifier_step", "64 many", "'many'"),
    ("classifier_step", "64 1599", "at least 1,600, got '1599'"), ("clustering", "0", "'0'"),
    ("estimates", "", "needs JOB"), ("estimates", "nowhere:ngame:cpu", "'nowhere:ngame:cpu'"),
    ("estimates", ".:ngame:cpuu", "did you mean 'cpu'"), ("frozen_layers", "0", "'0'"),
    ("jobs", ". . nowhere/job_times.json", "none can be"),
    ("loop", "ngame", "'ngame'"), ("loop", "ngame.cpuu", "did you mean 'cpu'"), ("loop", "ngame.cpu.0", "got 0"),
    ("loop", "siamesexml.cpu.0", "got 0"), ("loop", "ramen.cpu.0", "got 0"),
    ("prepare", "", "needs DATA"), ("prepare", "nowhere", "'nowhere' is no folder"),
    ("prepare", ".", "'.' has no trn.json.gz"), ("held_out", ". out", "'.' has no trn.json.gz"),
    ("query", "", "needs HOME"), ("query", "nowhere", "'nowhere' is no folder"),
    ("query", ". no-such-python", "'no-such-python' cannot be started"), ("rates", "nowhere/rates.json", "none can be"),
    ("rates", ".", "'.' is no file"), ("refresh", "half", "'half'"),
    ("refresh", "5 dpr", "'dpr' mines nothing"),
    ("scale", "half", "'half'"), ("scale", "5 astro", "no method 'astro'"),
    ("search", "1e6", "'1e6'"), ("search", "1000 -2 64", "'-2'"),
    ("search", "1 2 3 4 5", "more is given than this command takes: '5'"),
    ("selection", "nowhere", "'nowhere' is no folder"), ("serving", "nowhere", "'nowhere' is no folder"),
    ("serving", ". m 0", "'0'"), ("storage", "nowhere .", "'nowhere' is no folder"),
    ("trees", "no-such-python .", "'no-such-python' cannot be started"),
    ("trees", "true", "needs DATA"), ("trees", "true nowhere", "'nowhere' is no folder"),
    ("trees", "true .", "'.' has no trn.json.gz"),
    ("vector_bits", "nowhere", "'nowhere' is no folder"),
    ("vector_bits", ". 0", "got '0'")]


@pytest.mark.parametrize(("bench", "words", "told"), WRONG)
def test_a_word_that_is_invalid_is_named(bench: str, words: str, told: str,
                                              capsys: pytest.CaptureFixture[str]):
    module = importlib.import_module(f"benchmarks.{MODULES.get(bench, f'bench_{bench}')}")
    with pytest.raises(SystemExit) as ended:
        run(module.main, module.__doc__, words.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "") and told in said.err.splitlines()[-1]


@pytest.mark.parametrize(("file", "name"), [("claims/__main__.py", "claims"), ("bench_query.py", "bench_query")])
def test_a_benchmark_is_called_by_its_module(file: str, name: str, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch):
    """A package was called benchmarks.__main__, and what was missing an option of xc."""
    monkeypatch.setattr("sys.argv", [f"/checkout/benchmarks/{file}"])
    for words in (["--help"], []):
        with suppress(SystemExit):
            run(importlib.import_module("benchmarks.bench_query").main, "About.", words)
    said = capsys.readouterr()
    assert f"Usage: python -m benchmarks.{name} " in said.out
    assert said.err == f"error: python -m benchmarks.{name} needs HOME\n"


def test_make_bench_runs_all_that_the_page_does_not_leave_out():
    recipe = (ROOT / "Makefile").read_text().partition("\nQUESTIONS := ")[2].partition("\n\n")[0]
    done = {*recipe.partition("\n")[0].split(), *re.findall(r"benchmarks\.bench_(\w+)", recipe)}
    (left_out,) = re.findall(r"in turn: all but (.*?);", (ROOT / "docs" / "performance.md").read_text(), re.DOTALL)
    there = {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert done == there - set(re.findall(r"`bench_(\w+)`", left_out))


def test_a_folder_of_something_else_is_refused_before_a_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All packages of all sets before it were fetched first."""
    command = importlib.import_module("benchmarks.datasets.__main__")
    fetched = list[object]()
    monkeypatch.setattr(command, "SETS", dict.fromkeys(("first", "second"), fetched.append))
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "thesis.txt").touch()
    with pytest.raises(SystemExit, match=r"thesis\.txt"):
        run(command.main, command.__doc__, ["all", str(tmp_path)])
    assert not fetched


def test_the_time_of_a_query_is_by_as_many_as_were_searched(capsys: pytest.CaptureFixture[str],
                                                            monkeypatch: pytest.MonkeyPatch):
    """Of ten that were searched one by one it was a tenth of theirs: their seconds were shared by a hundred."""
    module = importlib.import_module("benchmarks.bench_search")
    monkeypatch.setattr(module, "timed", lambda action: (action(), 1.0))
    run(module.main, module.__doc__, ["500", "10", "8", "5"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(batch, single) for _, _, batch, single, _ in rows] == [("100.00", "100.00")] * len(rows)


def test_a_home_without_a_model_is_an_error_and_no_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    module = importlib.import_module("benchmarks.bench_query")
    with pytest.raises(SystemExit, match=r"no model is registered(.|\n)*xc run"):
        run(module.main, module.__doc__, [str(tmp_path)])
    assert not capsys.readouterr().out


def test_words_are_read_by_what_the_parameters_want():
    given = []

    def main(percent: Count = 100, *methods: MethodName) -> None:
        given.append((percent, methods))

    for words in ([], ["5"], ["1_0", "astra", "unidec"]):
        run(main, None, words)
    assert given == [(100, ()), (5, ()), (10, ("astra", "unidec"))]
