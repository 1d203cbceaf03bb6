"""The guide's worked example: the method as it stands on the page trains, resumes and answers."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.conftest import ROOT
from tests.support.docs_pages import commands, documents, python_of
from tests.support.long_tests import at_length
from tests.support.planted import write_planted
from tests.support.toy import ends_the_same_when_stopped, precision, toy_corpus
from xcmodels.methods.presets import PRESETS
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.training.local_run import train_all

GUIDE = ROOT / "docs" / "methods.md"


def code_of_the_guide():
    """The file of the method."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return code


@pytest.fixture(scope="module")
def example():
    """What the page's code defines."""
    defined = {"__name__": "tests.softmax"}
    exec(compile(code_of_the_guide(), str(GUIDE), "exec", dont_inherit=True), defined)
    return defined


def test_the_method_of_the_guide_works(example, tmp_path):
    torch.set_num_threads(1)
    config = replace(example["SoftmaxConfig"](), encoder=EncoderConfig(source="random", dim=32, batch=256))
    made = train_all(toy_corpus(tmp_path / "corpus"), example["softmax"](config), tmp_path / "made")
    assert precision(made) > 90
    ends_the_same_when_stopped(made, tmp_path / "again", 7)


@pytest.mark.parametrize("serve", ["classifier", "sum"])
def test_what_the_method_of_the_guide_has_no_vectors_for_is_refused(example, serve):
    with pytest.raises(ValueError, match=f"serve must be one of encoder, fused, got '{serve}'"):
        replace(example["SoftmaxConfig"](), serve=serve)


def test_the_method_of_the_guide_is_as_the_linter_wants_it():
    words = ("check", "--stdin-filename", "xcmodels/methods/softmax/presets.py", "-")
    done = subprocess.run([sys.executable, "-m", "ruff", *words], input=code_of_the_guide(), capture_output=True,
                          text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def test_the_guide_is_short():
    assert len([line for line in code_of_the_guide().splitlines() if line.strip()]) < 60


def test_the_method_of_the_guide_runs(xc, tmp_path):
    """In a copy of the packages, with the folder that the page describes."""
    for package in ("xcmodels", "tasks", "flows", "data_contracts", "serving"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "xcmodels" / "methods" / "softmax"
    folder.mkdir()
    (folder / "presets.py").write_text(code_of_the_guide())
    (folder / "__init__.py").touch()
    data = write_planted(tmp_path / "data", train=600, test=100, labels=40)

    def told(*words):
        code, out, said = xc(*words, packages=tmp_path, cwd=tmp_path)
        assert code == 0, said
        return json.loads(out)

    settings = ("--set", "encoder.dim=32", "--set", "prepare.vocabulary=1000")
    made = told("run", "--method", "softmax", "--preset", "cpu-learned", "--data", str(data), "--workers", "0",
                "--json", *settings)
    assert made["method"] == "softmax" and made["metrics"]["P/1"] > 60
    preset = told("presets", "--method", "softmax", "--json")["softmax"]["cpu"]
    assert preset["explained"]["temperature"] == "of the softmax" and preset["settings"]["batch_size"] == 64


@at_length("trains for a minute; test_docs_commands.py types the tutorial's commands on fewer rows")
@pytest.mark.timeout(1200)
def test_the_figures_of_the_tutorial_are_those_of_its_run(xc, tmp_path):
    """With its table, preset and seed: last digits differ between processors, and so do libraries between Pythons."""
    page = ROOT / "docs" / "tutorial.md"
    subprocess.run([sys.executable, "-c", python_of(page)], cwd=tmp_path, check=True)
    (tmp_path / "xc.toml").write_text("workers = 0\n")    # the commands stay as they are typed
    shown = {command.text.split()[1]: command for command in commands(page)[::-1] if command.text.startswith("xc ")}

    def typed(name):
        code, out, said = xc(*shlex.split(shown[name].text)[1:], cwd=tmp_path, timeout=900)
        assert code == 0, said
        return out, said

    _, counted = typed("data")
    assert row_counts(counted) == pytest.approx(row_counts("\n".join(shown["data"].output)), rel=0.02, abs=5)
    _, told = typed("run")
    wanted = final_metrics("\n".join(shown["run"].output))
    assert final_metrics(told) == pytest.approx(wanted, abs=2) and len(wanted) == 6
    answers, _ = typed("predict")
    assert best_labels(answers) == best_labels(" ".join(shown["predict"].output)) and best_labels(answers)
    (version,) = [line for line in shown["models"].output if line.startswith("library/1 ")]
    assert metrics_of(version) == {key: wanted[key] for key in ("P@1", "PSP@5")}


def row_counts(said):
    """Return how many rows an import says that there are, by what they are of."""
    return {name: int(number.replace(",", "")) for name, number in re.findall(r"^(\w+) +([\d,]+)$", said, re.MULTILINE)}


def final_metrics(said):
    """Return the metrics of the line that a run ends with, which begins with P@1."""
    return metrics_of(next(line for line in said.splitlines() if line.startswith("P@1 ")))


def metrics_of(line):
    """Return the metrics of a line, by their names."""
    return {name: float(number) for name, number in re.findall(r"(\w+@\d+) (\d+\.\d+)", line)}


def best_labels(answers):
    """Return the uid of each answer's first label."""
    return [answer["labels"][0]["uid"] for answer in documents(answers)]


def test_the_guide_names_every_method():
    page = GUIDE.read_text()
    assert all(f"`{method}`" in page for method in PRESETS)
    assert all((ROOT / "docs" / name).exists() for name in re.findall(r"\((\w+\.md)\)", page))


def test_the_page_on_serving_lists_what_is_measured():
    from serving.prometheus import ServerMetrics

    page = (ROOT / "docs" / "serving.md").read_text()
    told = {name for name in re.findall(rb"# HELP (xc_\w+) ", ServerMetrics(frozenset()).text(None, "", 0))}
    assert {name.decode() for name in told} | {"xc_workers"} == set(re.findall(r"`(xc_\w+)`", page))


def test_every_fault_of_the_catalogue_is_injected_by_a_test_that_there_is():
    page = (ROOT / "docs" / "reliability.md").read_text()
    there = {f"{path.name}::{name}" for path in (ROOT / "tests").rglob("test_*.py")
             for node in ast.parse(path.read_text()).body for name in _defined(node)}
    rows = [line for line in page.splitlines() if re.match(r"\| (?!fault \||attack \|)", line)]
    assert len(rows) > 80
    for row in rows:
        fault, outcome, tests = (cell.strip() for cell in row.strip("|").rsplit("|", 2))
        named = re.findall(r"`(test_\w+\.py::\w+)`", tests)
        assert fault and outcome and named, row
        assert set(named) <= there, (row, set(named) - there)


def _defined(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)]
