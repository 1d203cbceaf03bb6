"""Fixtures that many tests share: a Prefect server, the command line, a planted data set, a whole run, a toy corpus."""

import gc
import json
import locale
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Test processes share the processors; a second thread of each would wait for one. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

from flows.cli.app import main
from tasks.core.dask_workers import Workers
from tests.support.encoding import idf, texts  # noqa: F401
from tests.support.faults import artifact, quick, store  # noqa: F401
from tests.support.forked import run_xc
from tests.support.object_store import s3, s3_server  # noqa: F401
from tests.support.planted import write_planted
from tests.support.prefect_server import shared_prefect
from tests.support.raw_folders import xc_json, xc_sparse  # noqa: F401
from tests.support.run_command import command
from tests.support.shared import share_folder_of, shared
from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Corpus

os.environ.update({
    "DO_NOT_TRACK": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false", "HF_HUB_OFFLINE": "1", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false", "NO_COLOR": "1"})
ROOT = Path(__file__).parent.parent
# A processor that is busy with other tests makes no example fail.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort whole runs, the longest files, to the front, so that the processors finish at about the same time."""
    items.sort(key=lambda item: item.path.parent.name != "e2e")


@pytest.fixture(scope="session", autouse=True)
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    share_folder_of(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        # A check of tables freezes what is there, searches, and thaws it: a million imported objects in a test process.
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Set the address of the test processes' Prefect server in the environment for the session."""
    address = shared_prefect()
    os.environ.update({"PREFECT_API_URL": address, "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect"))})
    try:
        yield address
    finally:
        os.environ.pop("PREFECT_API_URL", None)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Start two Dask workers for the tests of a module: each imports for seconds what its jobs need."""
    with Workers(count=2) as started:
        yield started


@pytest.fixture(scope="session")
def planted() -> Path:
    """Return the raw folder of a planted data set."""
    return shared("planted", write_planted)


@pytest.fixture(scope="session")
def xc(prefect_server: str):
    """Run `xc` as a process, with a Prefect server. Returns (exit code, stdout, stderr)."""
    return run_xc


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run `xc` in this process, in the folder `tmp_path`: for commands that neither train nor try to serve."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        before = dict(os.environ)
        try:
            main(arguments)
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
def whole(planted: Path, xc) -> tuple[Path, dict, str]:
    """Run the whole pipeline once without faults; return its home, its JSON result and its stderr."""
    def run(folder: Path) -> None:
        # other runs have no workers, and results of the same digests
        code, out, err = xc(*command(planted, folder / "home", workers=2))
        assert code == 0, err
        (folder / "out").write_text(out)
        (folder / "err").write_text(err)

    folder = shared("whole", run)
    return folder / "home", json.loads((folder / "out").read_text()), (folder / "err").read_text()


@pytest.fixture
def ascii_locale() -> Iterator[None]:
    """Let files be written and read in ASCII where no encoding is named."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.fixture
def one_thread() -> None:
    """Let torch use one thread, so that sums have a fixed order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return the toy corpus, packed; tests must not change it."""
    return toy_corpus(tmp_path_factory.mktemp("toy"))
