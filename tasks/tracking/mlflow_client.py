"""The connection to MLflow: database, server health, password and verbosity."""

import fcntl
import logging
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from data_contracts.errors import ProjectError, ServerError
from tasks.core.files import fsync, link, locked, secret
from tasks.core.remote import without_passwords

PROBE_SECONDS = 3.0
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "CRITICAL",
                "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
                "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
                "MLFLOW_UV_AUTO_DETECT": "false"}    # else a uv.lock in the current folder is added to each model
Client = Any            # mlflow.MlflowClient, which takes seconds to import


def quiet_mlflow() -> None:
    """Make MLflow silent, without telemetry, and with timeouts of seconds; settings of the user are kept."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def make_database(home: Path) -> None:
    """Create HOME/mlflow.db atomically; MLflow itself leaves half a schema behind when it is killed."""
    quiet_mlflow()
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Tracking
    from sqlalchemy import event

    new, final = home / "tmp" / uuid.uuid4().hex, home / "mlflow.db"
    new.parent.mkdir(parents=True, exist_ok=True)
    engine = create_sqlalchemy_engine(f"sqlite:///{new}")
    # 50 migrations sync the disk after each statement; one sync at the end is enough, since nobody uses the file yet
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    lock = home / "gc.lock"
    # a run that begins meanwhile would take the file for a killed writer's
    with locked(lock, fcntl.LOCK_SH) if lock.exists() else nullcontext():
        try:
            _initialize_tables(engine)
            engine.dispose()
            fsync(new)
            with suppress(FileExistsError):
                link(new, final)
        finally:
            new.unlink(missing_ok=True)
    for store in (Tracking, Registry):    # a database that was deleted meanwhile is still open in their pools
        if (pool := store._engine_map.get(f"sqlite:///{final}")) is not None:
            pool.dispose()


def password(home: Path) -> str:
    """Return "user:password" of the home's MLflow server, readable by this user only; the first call creates it."""
    return secret(home.absolute() / "mlflow" / "password")


def signed_in(home: Path) -> dict[str, str]:
    """Return the environment variables by which MLflow's clients sign in to the home's server."""
    user, _, token = password(home).partition(":")
    return {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": token}


def without_sign_in(address: str) -> str:
    """Return a server's address without the user and password in it, by which this process signs in from now on."""
    parts = urlsplit(address)
    if parts.username and parts.password:
        os.environ |= {"MLFLOW_TRACKING_USERNAME": unquote(parts.username),
                       "MLFLOW_TRACKING_PASSWORD": unquote(parts.password)}
    return without_passwords(address)


def probe(address: str) -> None:
    """Raise ServerError unless a server answers at the address within seconds; MLflow's own timeouts add up.

    A password in the address is neither sent nor shown.
    """
    address = without_passwords(address)
    try:
        urllib.request.urlopen(f"{address}/health", timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        pass    # it answers; the next request shows whether access is granted
    except (OSError, HTTPException, ValueError) as error:
        raise ServerError(f"no MLflow server answers at {address}: {first_line(error)}",
                          hint="start it, or give no address to use a database in HOME") from error


def all_pages(search: Any, **filters: Any) -> Iterator[Any]:
    """Yield all results of a search of MLflow's client, page by page."""
    token = None
    while True:
        page = search(**filters, page_token=token)
        yield from page
        if not (token := page.token):
            return


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a password: MLflow's messages repeat its address."""
    text = error.what if isinstance(error, ProjectError) else str(error)
    return without_passwords((text.strip() or type(error).__name__).splitlines()[0])[:300]
