"""The surroundings of a run: quiet libraries and state in HOME, set before the libraries are imported."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_contracts.errors import ProjectError
from tasks.core.files import full_disk
from tasks.core.home import close_home

QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "TOKENIZERS_PARALLELISM": "true",
}
# Runs say every 30 s that they live; the server's automation marks those that fell silent as crashed (flows/deploy.py).
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}


def set_up(home: Path) -> None:
    """Close HOME to others, point Prefect at it, silence telemetry; what is set in the environment stays as it is."""
    close_home(home)
    for name, value in {
        **QUIET,
        "PREFECT_HOME": str(home.absolute() / "prefect"),
        # Steps' lines go to the UI through Prefect's logger, and to the terminal through our own console.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        # What cannot be sent to a server that is gone is said once, by whoever cannot do without it.
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    }.items():
        os.environ.setdefault(name, value)
    logging.raiseExceptions = False


@contextmanager
def full_disk_explained(home: Path) -> Iterator[None]:
    """Name a full disk as the cause of what it makes fail: Prefect's server says `500`, or nothing."""
    try:
        yield
    except ProjectError:
        raise
    except Exception as error:
        if (full := full_disk(error, home)) is None:
            raise
        raise full from error
