"""Which services a home has, and where those that run are: Prefect, MLflow, a worker for each pool, app, supervisor."""

import atexit
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from data_contracts.errors import ServerError
from flows.services.environment import HEARTBEAT, QUIET, set_up
from flows.services.processes import Record, Service, end_service, free_port, launch, wait_well
from flows.services.stack import Stack
from tasks.core.files import secret
from tasks.tracking.mlflow_client import make_database, signed_in
from tasks.tracking.relocation import relocate

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 120.0     # a server that lasts for one run takes 7 to 27 s to start on two cores


@dataclass(frozen=True)
class Ports:
    """Where the services of a home are to listen, on loopback."""

    prefect: int = 4200
    mlflow: int = 5000
    app: int = 8000


def services(home: Path, ports: Ports, *, prefect: str = "", mlflow: str = "", model: str = "",
             gpu: bool = False) -> list[Service]:
    """Return what `xc up` runs; `prefect` (its API) and `mlflow` are addresses of servers that exist already.

    model: what the app answers with, the only one there is where it is empty.
    """
    home = home.absolute()
    found = []
    given = {"XC_MLFLOW": mlflow} if mlflow else {}
    auth = os.environ.get("PREFECT_API_AUTH_STRING", "") if prefect else password(home)
    if not prefect:
        address = _address(home, "prefect", ports.prefect)
        found.append(replace(prefect_service(home, ports.prefect), then=partial(_prepare, home, address)))
        prefect = f"{address}/api"
    own = not mlflow
    if own:
        found.append(mlflow_service(home, ports.mlflow))
        mlflow = _address(home, "mlflow", ports.mlflow)
    for pool in ("cpu", *(["gpu"] if gpu else [])):
        found.append(worker_service(home, pool, {"PREFECT_API_URL": prefect, **given,
                                                 **({"PREFECT_API_AUTH_STRING": auth} if auth else {})}))
    found.append(app_service(home, ports.app, mlflow, model, own))
    found.append(supervisor_service(home))
    return found


def prefect_service(home: Path, port: int) -> Service:
    """Return the Prefect server, whose state is in HOME/prefect.

    Whoever may create a deployment there may run any command as this user, so it wants a password of every client,
    a token with every change, and a page of its own origin.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "prefect", "Prefect", [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1",
                               "--port", str(port), "--analytics-off"],
        _environment(home) | {
            "PREFECT_SERVER_API_AUTH_STRING": password(home), "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
            "PREFECT_UI_API_URL": "/api", "PREFECT_API_URL": f"{address}/api"},
        address, port, "--prefect-port", f"{address}/api/health")


def mlflow_service(home: Path, port: int) -> Service:
    """Return the MLflow server on the database that runs without a server use too.

    New experiments keep their files in HOME/mlartifacts by its path, as embedded ones do: what was written through
    the server is read without it, and the other way round.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "mlflow", "MLflow", [sys.executable, "-W", "ignore", "-m", "serving.mlflow_server", "--home", str(home),
                             "--port", str(port)],
        _environment(home), address, port, "--mlflow-port", f"{address}/health", first=partial(_whole_database, home))


def worker_service(home: Path, pool: str, servers: dict[str, str]) -> Service:
    """Return the worker that runs what is scheduled on a pool, as processes of this machine."""
    port = free_port()
    environment = {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(port),
                   "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "5")}
    return Service(
        f"worker-{pool}", f"worker {pool}", [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool,
                                             "--type", "process", "--name", pool, "--with-healthcheck"],
        _environment(home) | environment | servers, "", port, "", f"http://127.0.0.1:{port}/health", ("prefect",))


def app_service(home: Path, port: int, mlflow: str, model: str, own: bool) -> Service:
    """Return the app that answers with the champion; until there is one it says so, with 503.

    own: `mlflow` is the home's server.
    """
    address = f"http://127.0.0.1:{port}"
    return Service(
        "app", "app", [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--mlflow", mlflow,
                       "--port", str(port), "--wait", *(["--model", model] if model else [])],
        _environment(home) | (signed_in(home) if own else {}), address, port, "--port", f"{address}/healthz",
        ("mlflow",))


def supervisor_service(home: Path) -> Service:
    """Return what starts the others again when they end."""
    return Service("supervisor", "supervisor", [sys.executable, "-m", "flows.services.supervisor", str(home)],
                   _environment(home))


def password(home: Path) -> str:
    """Return "user:password" of the home's Prefect server; it is made at the first call, for this user's eyes."""
    return secret(home.absolute() / "prefect" / "password")


def join(home: Path) -> None:
    """Have this process use the home's Prefect server where it runs and the environment names no other."""
    if not os.environ.get("PREFECT_API_URL") and (record := Stack(home).running("prefect")) is not None:
        _use(home, record.address)


def require_prefect(home: Path) -> str:
    """Return the address of the Prefect server in use, once it answers; ServerError where there is none."""
    join(home)
    if not (address := os.environ.get("PREFECT_API_URL", "")):
        raise ServerError(f"no Prefect server of {home} is up", hint="xc up; or name one: PREFECT_API_URL")
    try:
        urllib.request.urlopen(f"{address}/health", timeout=10.0).close()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ServerError(f"no Prefect server answers at {address}: {error}", hint="xc status; xc up") from error
    return address


def mlflow_of(home: Path, given: str = "") -> str:
    """Return the address of MLflow: as given, else of the home's server where it runs, else "" for its database.

    Where that is the home's server, this process is signed in.
    """
    given = given or os.environ.get("XC_MLFLOW", "")
    record = Stack(home).running("mlflow")
    if record is not None and given.rstrip("/").replace("//localhost:", "//127.0.0.1:") in ("", record.address):
        os.environ |= signed_in(home)
        return record.address
    return given


def have_prefect(home: Path, wanted: Sequence[str] = (), *, tracked: bool) -> bool:
    """Have a Prefect server: the one that is named or runs, else one that is started now and ends with this process.

    Returns whether it is one of the latter kind. What the run will need is got ready while that one starts: the modules
    `wanted`, and MLflow's database where it is `tracked` there.
    It is in a session of its own: a signal to the run's process group, by a shutdown or `timeout`, must not end it
    before the run could tell it how it ended. Raises ServerError where it does not start.
    """
    join(home)
    if os.environ.get("PREFECT_API_URL"):
        for name, value in HEARTBEAT.items():
            os.environ.setdefault(name, value)
        # Each call waits 2, 4 and 8 s: long enough for a server that is started again. By default it is a minute, and a
        # run whose server is gone makes several calls before it ends.
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")
        return False
    home = home.absolute()
    service = prefect_service(home, free_port())
    service = replace(service, command=[*service.command, "--no-ui", "--no-scheduler", "--no-late-runs"])
    log = home / "logs" / "prefect-run.log"
    log.parent.mkdir(0o700, exist_ok=True)
    new = not (home / "prefect" / "prefect.db").exists()
    started = launch(Record.of(service), home, log, follow=True)
    # Registered before Prefect is imported, so it happens after Prefect has sent its last words.
    atexit.register(lambda: end_service(started.record))
    _use(home, service.address)
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")    # where it is gone, nobody starts it again
    for name in wanted:
        import_module(name)
    if new:    # its server makes tables for 10 s by one processor; these take the other one six
        for name in ("great_expectations", "torch._dynamo", "matplotlib.figure"):
            import_module(name)
        if tracked:
            with suppress(Exception):    # is tried again where it is wanted, and told there
                _whole_database(home)
    wait_well(started, RUN_SECONDS)
    return True


@contextmanager
def lost_server_explained() -> Iterator[None]:
    """Name the Prefect server that does not answer, at the start of a run or in the middle of it."""
    try:
        yield
    except Exception as error:
        import httpx

        cause: BaseException | None = error    # where a flow begins or ends, Prefect says it with a RuntimeError
        while cause is not None and not isinstance(cause, httpx.TransportError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise ServerError(f"the Prefect server at {os.environ.get('PREFECT_API_URL')} does not answer: {cause}",
                          hint="the same command resumes; where xc up started the server, do that first") from error


def _prepare(home: Path, address: str) -> None:
    """Give the home's Prefect server what it lacks: pools, its watch over runs that are killed, the place of the home.

    As long as no worker runs, nothing that is late can be in progress.
    """
    _use(home, address)
    set_up(home)
    from flows.deploy import POOLS, follow_home, prepare_server, skip_missed

    prepare_server()
    follow_home(home)
    if not any(Stack(home).running(f"worker-{pool}") for pool in POOLS):
        skip_missed()


def _whole_database(home: Path) -> None:
    """Make MLflow's database whole or not at all, where there is none; have one that was moved name files anew."""
    if not (home / "mlflow.db").exists():
        make_database(home)
    relocate(home)


def _use(home: Path, address: str) -> None:
    os.environ["PREFECT_API_URL"] = f"{address}/api"
    os.environ["PREFECT_API_AUTH_STRING"] = password(home)


def _address(home: Path, name: str, port: int) -> str:
    """Return where a service of the home is: where it runs already, else at `port`."""
    record = Stack(home).running(name)
    return record.address if record is not None else f"http://127.0.0.1:{port}"


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of every service: state in HOME, and this very code."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **HEARTBEAT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PREFECT_HOME": str(home / "prefect"),
            "XC_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}
