"""Environment variables of a run: libraries without telemetry, all state in HOME."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_contracts.errors import ProjectError
from tasks.core.files import full_disk
from tasks.core.home import make_home_private

QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "TOKENIZERS_PARALLELISM": "true",
}
LOOPBACK = ("127.0.0.1", "localhost")    # a home's servers are there
# Seconds between a run's heartbeats; the server's automation marks runs without one as crashed (flows/deploy.py).
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}


def bypass_proxies() -> None:
    """Have this process, and those that it starts, ask servers of this machine directly, whatever proxy there is.

    A proxy that a desktop names socks://HOST:PORT is named socks5://, as httpx knows it: else Prefect has no client.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if given != "*":    # which means all, but only alone
        missing = [host for host in LOOPBACK if host not in given.split(",")]
        os.environ["no_proxy"] = ",".join([*filter(None, [given]), *missing])
    for name, value in os.environ.items():
        if name.lower().endswith("_proxy") and value.startswith("socks://"):
            os.environ[name] = value.replace("socks", "socks5", 1)


def set_up(home: Path) -> None:
    """Close HOME to other users, point Prefect at it, turn telemetry off; variables that are set already stay."""
    make_home_private(home)
    for name, value in {
        **QUIET,
        "PREFECT_HOME": str(home.absolute() / "prefect"),
        # Steps' lines reach the UI through Prefect's logger, and the terminal through our own console.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        # That a server is gone is reported once, by the code that needs it.
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    }.items():
        os.environ.setdefault(name, value)
    logging.raiseExceptions = False


@contextmanager
def full_disk_explained(home: Path) -> Iterator[None]:
    """Name a full disk as the cause of the errors it leads to: Prefect's server answers `500`, or nothing."""
    try:
        yield
    except ProjectError:
        raise
    except Exception as error:
        if (explained := full_disk(error, home)) is None:
            raise
        raise explained from error
