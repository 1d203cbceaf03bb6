"""What an installed copy has: every file that the code reads, the licence, the version."""

import importlib.metadata
import json
import os
import pwd
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from flows.cli import app as commands
from flows.deploy import FILE
from tests.conftest import ROOT
from tests.support.home_services import Home, left_over
from tests.support.long_tests import ALL_FAULTS

PACKAGES = ("data_contracts", "flows", "serving", "tasks", "xcflow", "xcmodels")


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


@pytest.mark.timeout(1500)
def test_a_wheel_does_the_whole_job_from_an_empty_folder(wheel, tmp_path):
    """Installed in an environment of its own, which has this one's libraries and nothing of this checkout.

    Its servers start and answer by XC_ALL_FAULTS=1 alone; test_deployments.py starts those of the checkout.
    """
    environment, here = tmp_path / "environment", tmp_path / "empty"
    here.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run([sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet",
                    "--no-deps", "--no-index", wheel.filename], check=True)
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    home = Home(here / ".xc")
    environ = {key: value for key, value in home.environment.items() if key != "PYTHONPATH"}

    def xc(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([environment / "bin" / "xc", *words], capture_output=True, text=True, cwd=here,
                              env=environ, timeout=600, check=False)

    def done(*words: str) -> str:
        told = xc(*words)
        assert told.returncode == 0, told.stderr
        return told.stdout

    where = "import tasks, xcflow; print(tasks.__file__, xcflow.__file__)"
    found = subprocess.run([environment / "bin" / "python", "-c", where], capture_output=True, text=True, cwd=here,
                           env=environ, check=True).stdout.split()
    assert all(each.startswith(str(environment)) for each in found), found
    rows = [f"ticket {number} {animal} {animal}s,{animal};{animal} food" for number in range(60)
            for animal in ("cat", "dog", "owl", "pig")]
    (here / "tickets.csv").write_text("text,labels\n" + "\n".join(rows) + "\n")
    done("data", "import", "tickets.csv", "tickets", "--text", "text", "--labels", "labels")
    small = ["--set", "encoder.dim=16", "--set", "prepare.vocabulary=300", "--set", "m1.epochs=4", "--set",
             "m2.epochs=7"]
    made = json.loads(done("run", "--data", "tickets", "--preset", "cpu-learned", "--workers", "1", "--json", *small))
    assert made["version"] == "1" and made["metrics"]["P/1"] > 80
    assert '"text": "owl' in done("predict", "--k", "1", "an owl")
    assert json.loads(done("presets", "--json"))["ngame"]["cpu"]
    done("service", "systemd", "units", "--user", pwd.getpwuid(os.getuid()).pw_name)
    assert f"ExecStart={environment}/bin/python" in (here / "units" / "xc-app.service").read_text()
    if not ALL_FAULTS:
        return
    try:
        done("up", "--model", "tickets")
        done("deploy", "--data", "tickets", "--preset", "cpu-learned")
        status = {row["name"]: row for row in json.loads(done("status", "--json"))}
        with urllib.request.urlopen(status["app"]["address"] + "/readyz", timeout=30) as ready:
            assert ready.status == 200
    finally:
        xc("down")
    assert not left_over(home.home)


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
