"""Service definitions (Prefect, MLflow, workers, app, supervisor) and their addresses."""

import atexit
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from data_contracts.errors import ServerError
from flows.config import Ports
from flows.services.environment import HEARTBEAT, QUIET, set_up
from flows.services.processes import Record, Service, end_service, launch, wait_well
from flows.services.stack import Stack
from tasks.core.files import secret
from tasks.core.network import free_port
from tasks.tracking.identity import relocate
from tasks.tracking.mlflow_client import make_database, signed_in

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 120.0     # for a Prefect server of one run to start, which takes 7 to 27 s on two cores


def services(home: Path, ports: Ports, *, prefect: str = "", mlflow: str = "", model: str = "",
             workers: int = 1, gpu: bool = False) -> list[Service]:
    """Return the services that `xc up` runs; prefect (its API), mlflow: addresses of existing servers to use.

    model: the model that the app serves, "" for the only one. workers: processes of the app.
    """
    home = home.absolute()
    out = []
    mlflow_variable = {"XC_MLFLOW": mlflow} if mlflow else {}
    auth = os.environ.get("PREFECT_API_AUTH_STRING", "") if prefect else password(home)
    if not prefect:
        address = _address(home, "prefect", ports.prefect)
        out.append(replace(prefect_service(home, ports.prefect), after_start=partial(_prepare, home, address)))
        prefect = f"{address}/api"
    own_mlflow = not mlflow
    if own_mlflow:
        out.append(mlflow_service(home, ports.mlflow))
        mlflow = _address(home, "mlflow", ports.mlflow)
    for pool in ("cpu", *(["gpu"] if gpu else [])):
        out.append(worker_service(home, pool, {"PREFECT_API_URL": prefect, **mlflow_variable,
                                               **({"PREFECT_API_AUTH_STRING": auth} if auth else {})}))
    out.append(app_service(home, ports.app, mlflow, model, own_mlflow, workers=workers))
    out.append(supervisor_service(home))
    return out


def prefect_service(home: Path, port: int) -> Service:
    """Return the Prefect server, whose state is in HOME/prefect.

    A client that can create a deployment can run any command as this user, so the server requires a password of every
    client, a CSRF token with every change, and pages of its own origin.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "prefect", "Prefect", [sys.executable, "-m", "flows.services.prefect_server", "start", "--host", "127.0.0.1",
                               "--port", str(port), "--analytics-off"],
        _environment(home) | {
            "PREFECT_SERVER_API_AUTH_STRING": password(home), "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
            # Kept in memory, the slots of runs would be lost with a server that is killed: it would end a run that
            # holds one, and never free that of a run that was killed as it began.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "PREFECT_UI_API_URL": "/api", "PREFECT_API_URL": f"{address}/api"},
        address, port, "--prefect-port", f"{address}/api/health")


def mlflow_service(home: Path, port: int) -> Service:
    """Return the MLflow server, on the same database that runs use without a server.

    New experiments keep their files in HOME/mlartifacts by its path, as without a server: what was written through the
    server can be read without it, and the other way round.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "mlflow", "MLflow", [sys.executable, "-W", "ignore", "-m", "serving.mlflow_server", "--home", str(home),
                             "--port", str(port)],
        _environment(home), address, port, "--mlflow-port", f"{address}/health",
        before_start=partial(_ensure_database, home))


def worker_service(home: Path, pool: str, servers: dict[str, str]) -> Service:
    """Return the Prefect worker that executes the runs of a pool as processes of this machine."""
    port = free_port()
    environment = {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(port),
                   "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "5")}
    return Service(
        f"worker-{pool}", f"worker {pool}", [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool,
                                             "--type", "process", "--name", pool, "--with-healthcheck"],
        _environment(home) | environment | servers, "", port, "", f"http://127.0.0.1:{port}/health", ("prefect",))


def app_service(home: Path, port: int, mlflow: str, model: str, own_mlflow: bool, *, workers: int) -> Service:
    """Return the HTTP server that answers with the champion, and with 503 until there is one.

    own_mlflow: `mlflow` is the home's server.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "app", "app", [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--port", str(port), "--wait",
                       *(["--model", model] if model else []), *(["--workers", str(workers)] if workers > 1 else [])],
        _environment(home) | {"XC_MLFLOW": mlflow} | (signed_in(home) if own_mlflow else {}), address, port, "--port",
        f"{address}/healthz", ("mlflow",))


def supervisor_service(home: Path) -> Service:
    """Return the supervisor, which restarts the other services when they end."""
    return Service("supervisor", "supervisor", [sys.executable, "-m", "flows.services.supervisor", str(home)],
                   _environment(home))


def password(home: Path) -> str:
    """Return "user:password" of the home's Prefect server; the first call creates it, readable by this user alone."""
    return secret(home.absolute() / "prefect" / "password")


def use_running_prefect(home: Path) -> None:
    """Make this process use the home's Prefect server, where it runs and the environment names no other."""
    if not os.environ.get("PREFECT_API_URL") and (record := Stack(home).running("prefect")) is not None:
        _use(home, record.address)


def require_prefect(home: Path) -> str:
    """Return the API address of the Prefect server in use; raise ServerError where none answers."""
    use_running_prefect(home)
    if not (address := os.environ.get("PREFECT_API_URL", "")):
        raise ServerError(f"no Prefect server of {home} is up", hint="xc up; or name one: PREFECT_API_URL")
    try:
        urllib.request.urlopen(f"{address}/health", timeout=10.0).close()
    except (OSError, ValueError) as error:
        raise ServerError(f"no Prefect server answers at {address}: {error}", hint="xc status; xc up") from error
    return address


def mlflow_of(home: Path, given: str = "") -> str:
    """Return MLflow's address: the given one, else that of the home's server where it runs, else "" for its database.

    Where it is the home's server, this process is signed in.
    """
    given = given or os.environ.get("XC_MLFLOW", "")
    record = Stack(home).running("mlflow")
    if record is not None and given.rstrip("/").replace("//localhost:", "//127.0.0.1:") in ("", record.address):
        os.environ |= signed_in(home)
        return record.address
    return given


def ensure_prefect(home: Path, modules: Sequence[str] = (), *, tracked: bool) -> bool:
    """Provide a Prefect server: the one named or running, else one started now; return whether it was started.

    A server started here ends with this process. While it starts, `modules` are imported, and MLflow's database is
    created if `tracked`. It has a session of its own: a signal to the run's process group, by a shutdown or `timeout`,
    must not end it before the run has reported how it ended. Raises ServerError where it does not start.
    """
    use_running_prefect(home)
    if os.environ.get("PREFECT_API_URL"):
        for name, value in HEARTBEAT.items():
            os.environ.setdefault(name, value)
        # Three retries wait 2, 4 and 8 s, long enough for a server's restart. The default is a minute, and a run whose
        # server is gone makes several calls before it ends.
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")
        return False
    home = home.absolute()
    service = prefect_service(home, free_port())
    service = replace(service, command=[*service.command, "--no-ui", "--no-scheduler", "--no-late-runs"])
    log = home / "logs" / "prefect-run.log"
    log.parent.mkdir(0o700, exist_ok=True)
    new = not (home / "prefect" / "prefect.db").exists()
    started = launch(Record.of(service), home, log, follow=True)
    # Registered before Prefect is imported, so it is called after Prefect has sent its last messages.
    atexit.register(_end_undisturbed, started.record)
    _use(home, service.address)
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")    # where it is gone, nothing restarts it
    for name in modules:
        import_module(name)
    if new:    # its server creates tables for 10 s on one processor; these imports take 6 s on another
        for name in ("great_expectations", "torch._dynamo", "matplotlib.figure"):
            import_module(name)
        if tracked:
            with suppress(Exception):    # is tried again, and its error raised, where the database is used
                _ensure_database(home)
    wait_well(started, RUN_SECONDS)
    return True


def _end_undisturbed(record: Record) -> None:
    """End a service as this process ends, whatever signals come: the first one has been told, and the end is near."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_service(record)


@contextmanager
def lost_server_explained() -> Iterator[None]:
    """Raise ServerError with the Prefect server's address, where it does not answer, or fails, at any time of a run."""
    try:
        yield
    except Exception as error:
        import httpx
        from prefect.exceptions import PrefectHTTPStatusError

        cause: BaseException | None = error    # at a flow's begin and end, Prefect raises a RuntimeError from it
        while cause is not None and not isinstance(cause, (httpx.TransportError, PrefectHTTPStatusError)):
            cause = cause.__cause__
        if cause is None or (isinstance(cause, PrefectHTTPStatusError) and cause.response.is_client_error):
            raise
        said = f"does not answer: {cause}" if isinstance(cause, httpx.TransportError) else \
            f"answers {cause.response.status_code} {cause.response.reason_phrase}"
        raise ServerError(f"the Prefect server at {os.environ.get('PREFECT_API_URL')} {said}",
                          hint="the same command resumes; where xc up started the server, do that first") from error


def _prepare(home: Path, address: str) -> None:
    """Set the home's Prefect server up: pools, automation for killed runs, the home's path; cancel missed runs.

    Missed runs are cancelled only while no worker runs, since one of them could be in progress.
    """
    _use(home, address)
    set_up(home)
    from flows.deploy import POOLS, follow_home, prepare_server, skip_missed

    prepare_server()
    follow_home(home)
    if not any(Stack(home).running(f"worker-{pool}") for pool in POOLS):
        skip_missed()


def _ensure_database(home: Path) -> None:
    """Create MLflow's database atomically, where there is none; update the file paths of one that was moved."""
    if not (home / "mlflow.db").exists():
        make_database(home)
    relocate(home)


def _use(home: Path, address: str) -> None:
    os.environ["PREFECT_API_URL"] = f"{address}/api"
    os.environ["PREFECT_API_AUTH_STRING"] = password(home)


def _address(home: Path, name: str, port: int) -> str:
    """Return the address of a service of the home: the running one's, else one at `port`."""
    record = Stack(home).running(name)
    return record.address if record is not None else f"http://127.0.0.1:{port}"


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of every service: state in HOME, code of this installation."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **HEARTBEAT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PREFECT_HOME": str(home / "prefect"),
            "XC_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}
