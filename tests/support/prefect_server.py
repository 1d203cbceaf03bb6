"""A Prefect server on loopback, and the database that a new one would spend five seconds of a processor to make."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port
from tests.support.shared import end_with_tests, shared

DATABASE = "prefect.db"
# Services that no run by hand needs: together they take most of the time of a server that waits.
WITHOUT = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in (
    "CANCELLATION_CLEANUP", "CLEANUP_RECONCILER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS", "REPOSSESSOR",
    "SCHEDULER", "TRIGGERS")}


def shared_prefect() -> str:
    """Return the address of the Prefect server of all test processes."""
    return (shared("prefect", _start_shared) / "address").read_text()


def _start_shared(home: Path) -> None:
    address, server = start_prefect(home)
    end_with_tests(server)
    (home / "address").write_text(address)


@contextmanager
def running_prefect(home: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen]]:
    """Run a Prefect server as `start_prefect` does; yield (address, process)."""
    address, server = start_prefect(home, port)
    try:
        yield address, server
    finally:
        _stop(server)


def start_prefect(home: Path, port: int = 0) -> tuple[str, subprocess.Popen]:
    """Start a Prefect server with its database in `home`, as the leader of a process group; return (address, process).
    """
    if not (home / DATABASE).exists():
        copy_database(home)
    port = port or free_port()
    with (home / "log").open("a") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.services.prefect_server", "start", "--host", "127.0.0.1", "--port",
             str(port)], stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **WITHOUT, "PREFECT_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])})
    try:
        _wait(f"http://127.0.0.1:{port}/api/health", server, home / "log")
    except BaseException:
        _stop(server)
        raise
    return f"http://127.0.0.1:{port}/api", server


def _stop(server: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def copy_database(folder: Path) -> None:
    """Put a database with nothing in it into PREFECT_HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(shared("prefect-database", _make_database) / DATABASE, folder)


def _make_database(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
    subprocess.run([sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"], check=True,
                   env={**environment, "PREFECT_HOME": str(folder)}, capture_output=True)


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
