"""What the tests share: quiet libraries, one Prefect server for all of them, a planted data set."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
import torch

from flows.cli.app import main
from tests.support.encoding import idf, texts  # noqa: F401
from tests.support.faults import artifact, quick, store  # noqa: F401
from tests.support.planted import write_planted
from tests.support.raw_folders import xc_json, xc_sparse  # noqa: F401
from tests.support.toy import toy_corpus
from tests.support.whole_runs import command
from xcmodels.data.corpus import Corpus

os.environ.update({
    "DO_NOT_TRACK": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false", "HF_HUB_OFFLINE": "1", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false", "NO_COLOR": "1"})
ROOT = Path(__file__).parent.parent


STARTS = re.compile(r"^(import subprocess|from tests\.support\.(browser|desk|served|stacks|whole_runs) )", re.M)
FIXTURES = {"cli", "prefect_server", "xc"}    # they start a process, or import what takes as long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, which `make test-fast` leaves out.

    Whole runs come first, the longest files, so that no processor is left with one of them at the end.
    """
    for item in items:
        if FIXTURES & set(item.fixturenames) or _starts_processes(item.path):  # type: ignore[attr-defined]
            item.add_marker("starts_processes")
    items.sort(key=lambda item: not item.path.name.startswith("test_run"))


@cache
def _starts_processes(file: Path) -> bool:
    """Return whether a test file says by what it imports that it starts processes or servers."""
    return STARTS.search(file.read_text()) is not None


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server on loopback; its address is in the environment while the session lasts."""
    home = tmp_path_factory.mktemp("prefect")
    with running_prefect(home) as (address, _):
        os.environ.update({"PREFECT_API_URL": address, "PREFECT_HOME": str(home)})
        try:
            yield address
        finally:
            os.environ.pop("PREFECT_API_URL", None)


@contextmanager
def running_prefect(home: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen]]:
    """A Prefect server over the database in `home`, as the leader of a process group: its address, and it."""
    home.mkdir(exist_ok=True)
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    with (home / "log").open("a") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "PREFECT_HOME": str(home)}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait(f"http://127.0.0.1:{port}/api/health", server, home / "log")
            yield f"http://127.0.0.1:{port}/api", server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait(address: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(address, timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"the Prefect server did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw folder of a planted data set."""
    return write_planted(tmp_path_factory.mktemp("data") / "planted")


@pytest.fixture(scope="session")
def xc(prefect_server: str):
    """Run `xc` as a process, of other packages where they are given: returns (exit code, stdout, stderr)."""

    def run(*words: str, packages: Path = ROOT, timeout: float = 240, **given) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, "PYTHONPATH": str(packages)}, **given)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run `xc` in this process and in `tmp_path`, for commands that neither train nor serve; as `xc` does."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        before = dict(os.environ)
        try:
            main(words)
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os.environ.clear()
            os.environ.update(before)
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, planted: Path, xc) -> tuple[Path, dict, str]:
    """An unbroken run: its home, its line of JSON, what it said."""
    home = tmp_path_factory.mktemp("whole") / "home"
    code, out, said = xc(*command(planted, home))
    assert code == 0, said
    return home, json.loads(out), said


@pytest.fixture
def one_thread() -> None:
    """Let torch compute by one thread, so that a sum has one order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The toy corpus, packed; not to be changed."""
    return toy_corpus(tmp_path_factory.mktemp("toy"))
