"""Digests of the code that a step runs, so that a change redoes only what it affects."""

import ast
import hashlib
import importlib.util
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("tasks", "xcmodels", "data_contracts")
# Code that cannot change a result: how a step is run, a method's wiring, which its settings and stages decide, and
# the settings of serving, whose values are in the keys: a new one of them must not train anew.
MACHINERY = ("tasks.core", "tasks.training.dask_executor", "tasks.training.launcher", "tasks.training.recipe",
             "tasks.training.training_process", "xcmodels.data.executor", "xcmodels.methods.presets",
             "xcmodels.methods.all_methods", "xcmodels.retrieval.serving_config")


@cache
def modules(module: str) -> frozenset[str]:
    """Return `module` and every module of this project that it imports, directly or not.

    Imports inside functions count too. The source is parsed, nothing is run.
    """
    visited: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in visited and _affects_results(name) and (parsed := _parsed(name)) is not None:
            visited.add(name)
            queue += parsed.imports
    return frozenset(visited)


def _affects_results(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES and not any(
        name == excluded or name.startswith(f"{excluded}.") for excluded in MACHINERY)


@cache
def code_digests(*roots: str) -> dict[str, str]:
    """Return the digest of the syntax tree of each module that the roots import, directly or not.

    The tree is digested rather than the file, so that a comment or a docstring causes no retraining.
    """
    return {name: parsed.digest for name in sorted(frozenset().union(*map(modules, roots)))
            if (parsed := _parsed(name)) is not None}


class _Parsed(NamedTuple):
    """What a module may import, and the digest of its syntax tree."""

    imports: list[str]
    digest: str


@cache
def _parsed(name: str) -> _Parsed | None:
    """Parse a module once per process; None where `name` is no module with a source."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None    # `from module import function`: not a module
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    imports: list[str] = []
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return _Parsed(imports, hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16])


@cache
def commit() -> str:
    """Return the git commit of the running code, with a + where files differ from it; else the package's version."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
                              timeout=10).stdout.strip()

    try:
        is_checkout = Path(git("rev-parse", "--show-toplevel")) == Path(__file__).resolve().parents[2]
        if is_checkout:    # not a checkout of something else that this is installed in
            return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        pass
    return f"xcflow {version('xcflow')}"
