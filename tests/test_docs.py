"""The guide's worked example: the method as it stands on the page trains, resumes and answers."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.conftest import ROOT
from tests.documented import blocks, commands
from tests.planted import write_planted
from tests.toy import ends_the_same_when_stopped, precision, toy_corpus
from xcmodels.presets import PRESETS
from xcmodels.trial import train_all
from xcmodels.trunks import EncoderConfig

GUIDE = ROOT / "docs" / "methods.md"


def code_of_the_guide():
    """The method's file and the presets' file."""
    method, presets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return method, presets


@pytest.fixture(scope="module")
def example():
    """What the page's code defines."""
    defined = {"__name__": "tests.softmax"}
    exec(compile(code_of_the_guide()[0], str(GUIDE), "exec", dont_inherit=True), defined)
    return defined


def test_the_method_of_the_guide_works(example, tmp_path):
    torch.set_num_threads(1)
    config = replace(example["SoftmaxConfig"](), encoder=EncoderConfig(source="random", dim=32, batch=256))
    made = train_all(toy_corpus(tmp_path / "corpus"), example["Softmax"](config), tmp_path / "made")
    assert precision(made) > 90
    ends_the_same_when_stopped(made, tmp_path / "again", 7)


def test_the_method_of_the_guide_runs(prefect_server, tmp_path):
    """In a copy of the packages, with what the page says is to be added to two of their files."""
    for package in ("xcmodels", "tasks", "flows", "data_contracts", "serving"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    added = dict(re.findall(r'`"softmax": (\w+)` among `(\w+)`', GUIDE.read_text()))
    assert added == {"Softmax": "METHODS", "SOFTMAX": "PRESETS"}
    for folder, code, name in zip(("methods", "presets"), code_of_the_guide(), added, strict=True):
        (tmp_path / "xcmodels" / folder / "softmax.py").write_text(code)
        file = tmp_path / "xcmodels" / folder / "__init__.py"
        imported = f"\nfrom xcmodels.{folder}.softmax import {name}\nfrom xcmodels"
        text = file.read_text().replace("\nfrom xcmodels", imported, 1)
        text, there = re.subn(rf"^({added[name]}: .*\{{)$", rf'\1\n    "softmax": {name},', text, flags=re.MULTILINE)
        assert there == 1
        file.write_text(text)
    data = write_planted(tmp_path / "data", train=600, test=100, labels=40)

    def xc(*words):
        return json.loads(typed(words, tmp_path, tmp_path)[0])

    settings = ("--set", "encoder.dim=32", "--set", "prepare.vocabulary=1000")
    made = xc("run", "--method", "softmax", "--preset", "cpu-learned", "--data", str(data), "--workers", "1", "--json",
              *settings)
    assert made["method"] == "softmax" and made["metrics"]["P/1"] > 60
    told = xc("presets", "--method", "softmax", "--json")["softmax"]["cpu"]
    assert told["explained"]["temperature"] == "of the softmax" and told["settings"]["batch_size"] == 64


def typed(words, folder, packages=ROOT):
    """Run `xc` in a folder; -> what it wrote to stdout and stderr."""
    done = subprocess.run([sys.executable, "-m", "flows.cli", *words], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(packages)}, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.timeout(1200)
def test_the_figures_of_the_tutorial_are_those_of_its_run(prefect_server, tmp_path):
    """With its table, preset and seed: last digits differ between processors, and so do libraries between Pythons."""
    page = ROOT / "docs" / "tutorial.md"
    (code,) = [block.text for block in blocks(page) if block.language == "python"]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    shown = {command.text.split()[1]: command for command in commands(page)[::-1] if command.text.startswith("xc ")}
    _, counted = typed(shlex.split(shown["data"].text)[1:], tmp_path)
    assert counts(counted) == pytest.approx(counts("\n".join(shown["data"].output)), rel=0.02, abs=5)
    _, told = typed(shlex.split(shown["run"].text)[1:], tmp_path)
    wanted = figures("\n".join(shown["run"].output))
    assert figures(told) == pytest.approx(wanted, abs=2) and len(wanted) == 6
    answers, _ = typed(shlex.split(shown["predict"].text)[1:], tmp_path)
    assert [first(line) for line in answers.splitlines()] == re.findall(
        r'\[\{"id": \d+, "uid":\s+"(\w+)"', "\n".join(shown["predict"].output))
    (version,) = [line for line in shown["models"].output if line.startswith("library/1 ")]
    assert figures(version) == {key: wanted[key] for key in ("P@1", "PSP@5")}


def counts(said):
    return {name: int(number.replace(",", "")) for name, number in re.findall(r"^(\w+) +([\d,]+)$", said, re.MULTILINE)}


def figures(said):
    """Return the metrics of the first line that has any."""
    line = next(line for line in said.splitlines() if re.search(r"P@1 +\d", line) and "validation" not in line
                and "," not in line)
    return {name: float(number) for name, number in re.findall(r"(\w+@\d+) (\d+\.\d+)", line)}


def first(line):
    return json.loads(line)["labels"][0]["uid"]


def test_the_guide_names_every_method():
    page = GUIDE.read_text()
    assert all(f"`{method}`" in page for method in PRESETS)
    assert all((ROOT / "docs" / name).exists() for name in re.findall(r"\((\w+\.md)\)", page))


def test_the_page_on_serving_lists_what_is_measured():
    from serving.measures import Measures

    page = (ROOT / "docs" / "serving.md").read_text()
    told = {name for name in re.findall(rb"# HELP (xc_\w+) ", Measures(frozenset()).text(None, "", 0))}
    assert {name.decode() for name in told} == set(re.findall(r"`(xc_\w+)`", page))


def test_every_fault_of_the_catalogue_is_injected_by_a_test_that_there_is():
    page = (ROOT / "docs" / "reliability.md").read_text()
    there = {f"{path.name}::{name}" for path in (ROOT / "tests").glob("test_*.py")
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
