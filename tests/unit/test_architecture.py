"""The layout stays true: the tree in the docs, the length of files, no import circle."""

import ast
import graphlib

import pytest

from tests.conftest import ROOT
from tools.tree import PACKAGES, tree

PAGE = ROOT / "docs" / "architecture.md"
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
         for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def imported(module):
    """Return the modules of the project that one imports, inside functions too."""
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else node.module for name in names if node.module in FILES)


def test_the_page_shows_the_tree():
    shown = PAGE.read_text().partition("a test compares):\n\n")[2].splitlines()
    assert [line.removeprefix("    ") for line in shown if line.strip()] == tree(), "python -m tools.tree"


def test_each_file_says_what_it_is():
    lines = [line.split(maxsplit=1) for line in tree()]
    assert [line for line in lines if len(line) < 2 or not line[1].endswith((".", "?"))] == []


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks", "tools"])
def test_no_file_is_longer_than_300_lines(folder):
    long = {path.relative_to(ROOT).as_posix(): count for path in (ROOT / folder).rglob("*.py")
            if (count := len(path.read_text().splitlines())) > 300}
    assert long == {}


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: {name for name in imported(module) if name != module} for module in FILES}
    order = list(graphlib.TopologicalSorter(graph).static_order())    # raises CycleError, which names them
    assert len(order) == len(FILES) > 200
