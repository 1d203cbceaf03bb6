"""What an installed copy has: every file that the code reads, the licence, the version."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flows.cli import app as commands
from flows.deploy import FILE
from tests.conftest import ROOT

PACKAGES = ("data_contracts", "flows", "serving", "tasks", "xcmodels")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """A wheel of this code, built without a network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (made,) = out.glob("*.whl")
    return zipfile.ZipFile(made)


def test_a_wheel_has_every_file_of_the_packages_and_the_licence(wheel):
    here = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}
    assert here - set(wheel.namelist()) == set()
    assert Path(str(FILE)).relative_to(ROOT).as_posix() in here
    (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert b"END OF TERMS AND CONDITIONS" in (ROOT / "LICENSE").read_bytes()


def test_the_version_is_that_of_the_distribution_or_of_the_checkout(cli_words, monkeypatch):
    wanted = importlib.metadata.version("xcflow")
    assert cli_words("--version") == wanted

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(commands.metadata, "version", missing)
    assert f'version = "{cli_words("--version")}"' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def cli_words(cli):
    def run(*words: str) -> str:
        code, out, err = cli(*words)
        assert code == 0, err
        return out.strip()

    return run
