"""Under a service manager: lists the parts of a home, replaces this process by one, waits until one is ready."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import ServerError, UsageError
from flows.config import PORTS, Ports
from flows.services.definitions import services
from flows.services.processes import MARK, START_SECONDS, STOP_SECONDS, Service, check_port
from flows.services.stack import Stack
from flows.services.supervisor import NAME as SUPERVISOR

DRAIN_SECONDS = 60.0    # for the app to answer what it has, with some to spare (serving/server.py)
# Addresses of existing servers, and what signs in to them.
SERVER_VARIABLES = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "XC_MLFLOW", "MLFLOW_TRACKING_USERNAME",
                    "MLFLOW_TRACKING_PASSWORD")


@dataclass(frozen=True)
class Setup:
    """What a service manager is to run: a home, its ports, the app's model and processes; prefix: of the units' names.

    prefect, mlflow: addresses of existing servers, "" for the home's own.
    """

    home: Path
    user: str
    prefix: str = "xc"
    ports: Ports = PORTS
    model: str = ""
    workers: int = 1
    gpu: bool = False
    prefect: str = ""
    mlflow: str = ""

    def parts(self) -> list["Part"]:
        """Return the parts in the order of their starts; the service manager does the supervisor's work."""
        servers = [*([] if self.prefect else [Part("prefect", "Prefect server")]),
                   *([] if self.mlflow else [Part("mlflow", "MLflow server")])]
        own = {server.name for server in servers}
        pools = ("cpu", *(["gpu"] if self.gpu else []))
        return [*servers, *(Part(f"worker-{pool}", f"worker of the pool {pool}", sorted(own & {"prefect"}))
                            for pool in pools), Part("app", "app", sorted(own & {"mlflow"}), DRAIN_SECONDS)]

    def words(self, doing: str, part: str) -> list[str]:
        """Return the arguments of `xc` that run a part, or wait until it is ready; they hold no address of a server."""
        return ["service", doing, part, "--home", str(self.home), "--prefect-port", str(self.ports.prefect),
                "--mlflow-port", str(self.ports.mlflow), "--port", str(self.ports.app),
                *(["--model", self.model] if self.model else []),
                *(["--workers", str(self.workers)] if self.workers > 1 else [])]


@dataclass(frozen=True)
class Part:
    """A part of a home. needs: parts that must be ready before it. stop: seconds that it may take to stop."""

    name: str
    title: str
    needs: Sequence[str] = ()
    stop: float = STOP_SECONDS


def service_of(name: str, home: Path, ports: Ports, *, mlflow: str, model: str, workers: int) -> Service:
    """Return the service of a part by its name; UsageError names the parts that there are."""
    known = {service.name: service for service in services(
        home, ports, prefect=os.environ.get("PREFECT_API_URL", ""), mlflow=mlflow, model=model, workers=workers,
        gpu=True) if service.name != SUPERVISOR}
    if name not in known:
        raise UsageError(f"there is no part {name!r}", hint=f"name one of {', '.join(known)}")
    return known[name]


def become(service: Service, home: Path, manager: str) -> None:
    """Replace this process by a service, which the commands of the home then find as one that `xc up` started.

    Its passwords are read from the home here, so that no unit has them.
    """
    check_port(service)
    service.before_start()
    record = Stack(home).adopt(service, manager)
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(home)
    os.execve(service.command[0], list(service.command),
              {**os.environ, **service.environment, MARK: record.mark})


def wait_ready(service: Service, home: Path) -> None:
    """Return once a service answers, and what depends on it is set up; raise ServerError where it does not."""
    stack, deadline = Stack(home), time.monotonic() + START_SECONDS
    while (record := stack.running(service.name)) is None or not record.well:
        if time.monotonic() > deadline:
            raise ServerError(f"{service.title} did not answer within {START_SECONDS:.0f} s", hint="its log says why")
        time.sleep(0.2)
    service.after_start()
