"""The guide's worked example: the method as it stands on the page trains, resumes and answers."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.conftest import ROOT
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
        done = subprocess.run([sys.executable, "-m", "flows.cli", *words], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=240)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    settings = ("--set", "encoder.dim=32", "--set", "prepare.vocabulary=1000")
    made = xc("run", "--method", "softmax", "--preset", "cpu-learned", "--data", str(data), "--workers", "1", "--json",
              *settings)
    assert made["method"] == "softmax" and made["metrics"]["P/1"] > 60
    told = xc("presets", "--method", "softmax", "--json")["softmax"]["cpu"]
    assert told["explained"]["temperature"] == "of the softmax" and told["settings"]["batch_size"] == 64


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
