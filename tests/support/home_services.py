"""A home whose services use free ports, and `xc` commands in it."""

import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.services.definitions import password
from flows.services.stack import Stack
from tests.conftest import ROOT
from tests.support.forked import run_xc
from tests.support.ports import free_ports
from tests.support.prefect_server import copy_database
from tests.support.tiny import add_database


class Home:
    """A home and its services."""

    def __init__(self, home: Path) -> None:
        self.home, self.stack = home, Stack(home)
        names = ("PREFECT_", "XC_", "MLFLOW_TRACKING")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(names)} | {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XC_HOME": str(home),
            "PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_DEPLOYMENT_CONCURRENCY_SLOT_WAIT_SECONDS": "3",
            **{name: str(port) for name, port in zip(("XC_PREFECT_PORT", "XC_MLFLOW_PORT", "XC_PORT"), free_ports(3),
                                                     strict=True)}}

    def xc(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """Run `xc`; return (exit code, stdout, stderr)."""
        return run_xc(*words, env={**self.environment, **environment})

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `xc status`, by name."""
        return {row["name"]: row for row in json.loads(self.xc("status", "--json")[1])}

    @contextmanager
    def prefect(self) -> Iterator[SyncPrefectClient]:
        """Yield a client of the home's Prefect server."""
        record = self.stack.running("prefect")
        assert record is not None
        reached = {PREFECT_API_URL: f"{record.address}/api", PREFECT_API_AUTH_STRING: password(self.home)}
        with temporary_settings(reached), get_client(sync_client=True) as client:
            yield client


@contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the server that all tests of this process share, whenever Prefect was imported."""
    with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}), get_client(sync_client=True) as client:
        yield client


def until(found: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Call `found` until its result is true, and return that."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "still false at the timeout"
        time.sleep(0.5)
    return value


def left_over(home: Path) -> list[str]:
    """Return the commands of running processes that name a home."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and str(home) in " ".join([*process.cmdline(), *process.environ().values()]):
                found.append(" ".join(process.cmdline()))
    return found


def up(folder: Path) -> Iterator[Home]:
    """Yield a home after `xc up`; at the end, after `xc down`, no process of it may be left."""
    made = Home(folder / "home")
    made.home.mkdir(mode=0o700)
    copy_database(made.home / "prefect")
    add_database(made.home)
    try:
        code, out, said = made.xc("up")
        assert code == 0 and not out, said
        assert all(each in said for each in ("Prefect", "MLflow", "worker cpu", "app", "xc deploy --data DIR"))
        yield made
    finally:
        made.xc("down")
    assert not left_over(made.home)


def answers(address: str) -> int:
    """Return the HTTP status of an address."""
    try:
        return int(urllib.request.urlopen(address, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code


def asked(address: str, signed_in: str = "", *, method: str | None = None, data: bytes | None = None,
          **headers: str) -> int:
    """Return the status with which a server answers a request, by "user:password" where one is given."""
    if signed_in:
        headers["Authorization"] = "Basic " + base64.b64encode(signed_in.encode()).decode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers, method=method)) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
