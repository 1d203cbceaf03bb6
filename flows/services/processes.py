"""A program that a home runs: started in a session of its own with a mark, found again by it, and ended whole.

Each process that a service starts inherits its mark, an environment variable of one start. So what is ended is that
service and its descendants, whatever became of the pid since, and nobody else who happens to hold a port.
"""

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path

import psutil

from data_contracts.errors import ServerError

MARK = "XC_SERVICE"
START_SECONDS = 180.0   # for a server's first start on a machine that is busy, with its database to be made
ANSWER_SECONDS = 10.0   # for a server that was started long ago
STOP_SECONDS = 20.0     # between asking a service to end and ending it
ATTEMPTS = 5            # at ending a service that starts processes meanwhile
PROBE_SECONDS = 3.0
PR_SET_PDEATHSIG = 1    # of prctl(2)
WELL, STOPPED, SILENT, ENDED = "well", "stands still", "does not answer", "has ended"


@dataclass(frozen=True)
class Service:
    """A program to run.

    address: where it answers, "" for one that nobody calls. flag: of the option that moves its port. health: what
    answers 200 while it is well, "" for one that need only run. needs: services that have to be well before it starts.
    first: done before it starts; then: once it is well, and again whenever all is to be up.
    """

    name: str
    title: str
    command: Sequence[str]
    environment: Mapping[str, str]
    address: str = ""
    port: int = 0
    flag: str = ""
    health: str = ""
    needs: Sequence[str] = ()
    first: Callable[[], None] = lambda: None
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Record:
    """A start of a service, noted before its process is there; its environment may hold passwords.

    pid, create_time (seconds since 1970): of its first process, 0 until that is known. restarts: how often it was
    started again since `xc up`. environment: None in what an older version noted.
    """

    name: str
    title: str
    pid: int
    create_time: float
    address: str
    health: str
    command: Sequence[str] = field(repr=False)
    mark: str = field(repr=False)
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    restarts: int = 0

    @classmethod
    def of(cls, service: Service) -> "Record":
        """Return the record of a start that is to come."""
        return cls(service.name, service.title, 0, 0.0, service.address, service.health, list(service.command),
                   uuid.uuid4().hex, dict(service.environment))

    def again(self) -> "Record":
        """Return the record of the next start."""
        return replace(self, pid=0, create_time=0.0, mark=uuid.uuid4().hex, restarts=self.restarts + 1)

    @property
    def alive(self) -> bool:
        """Whether the process that was started is still there."""
        return self._status() not in ("", psutil.STATUS_ZOMBIE)

    @property
    def state(self) -> str:
        """WELL, STOPPED (by a signal), SILENT (its health check fails) or ENDED."""
        if not self.alive:
            return ENDED
        if self._status() == psutil.STATUS_STOPPED:
            return STOPPED
        return WELL if self._answers() else SILENT

    @property
    def well(self) -> bool:
        """Whether it runs and answers its health check."""
        return self.state == WELL

    def _status(self) -> str:
        """Return the state of its process as the system names it, "" where it is not there."""
        try:
            process = psutil.Process(self.pid) if self.pid else None
            return str(process.status()) if process is not None and _is(process, self) else ""
        except psutil.NoSuchProcess:
            return ""

    def _answers(self) -> bool:
        if not self.health:
            return True
        try:
            with urllib.request.urlopen(self.health, timeout=PROBE_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, HTTPException, OSError):
            return False


@dataclass(frozen=True)
class Started:
    """A service as the process that started it knows it."""

    process: "subprocess.Popen[bytes]"
    record: Record
    log: Path

    def check(self) -> None:
        """Raise ServerError with the last words of its log where it has ended."""
        if self.process.poll() is not None:
            raise ServerError(f"{self.record.title} ended with code {self.process.returncode} as it started: "
                              f"{last_line(self.log)}", hint=f"its log: {self.log}")


def launch(record: Record, home: Path, log: Path, *, follow: bool = False) -> Started:
    """Start a service in a session of its own, so that no signal to this terminal reaches it.

    follow: it is to end when this process does, however that ends.
    """
    with suppress(FileNotFoundError):
        os.replace(log, log.with_suffix(".log.1"))
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(record.command), env={**os.environ, **(record.environment or {}), MARK: record.mark}, cwd=home,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=partial(_end_with_parent, os.getpid()) if follow else None)    # noqa: PLW1509  no thread yet
    began = psutil.Process(process.pid).create_time()
    return Started(process, replace(record, pid=process.pid, create_time=began), log)


def wait_well(started: Started, seconds: float = START_SECONDS, beside: Sequence[Started] = ()) -> None:
    """Return once a service answers; ServerError where it, or one `beside` it, ends, or it takes too long."""
    record, deadline = started.record, time.monotonic() + seconds
    while not record.well:
        for each in (started, *beside):
            each.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{record.title} did not answer {record.health} within {seconds:.0f} s: "
                              f"{last_line(started.log)}", hint=f"its log: {started.log}; the same command tries again")
        time.sleep(0.2)


def wait_answer(record: Record, hint: str) -> None:
    """Return once a service that was started before answers; ServerError where it does not, or stands still."""
    young = max(0.0, record.create_time + START_SECONDS - time.time())
    deadline = time.monotonic() + max(ANSWER_SECONDS, min(young, START_SECONDS))
    while (state := record.state) != WELL:
        if state != SILENT or time.monotonic() > deadline:
            where = f" at {record.address}" if record.address else ""
            raise ServerError(f"{record.title}{where} {state}: process {record.pid}", hint=hint)
        time.sleep(0.2)


def check_port(service: Service) -> None:
    """Raise ServerError naming who holds the port that a service is to listen on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", service.port))
            return
        except OSError as error:
            raise ServerError(f"port {service.port} of {service.title} is taken by {_holder(service.port)}",
                              hint=f"end that, or choose another port: xc up {service.flag} PORT") from error


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def processes(record: Record) -> list[psutil.Process]:
    """Return every process of a service that is there: those that carry its mark, and all that they started.

    What they started as another service, as the supervisor does, is that service's.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and (_mark(process) == record.mark
                                               or (process.pid == record.pid and _is(process, record))):
                for each in (process, *process.children(recursive=True)):
                    if _mark(each) in ("", record.mark):
                        found[each.pid] = each
    return [process for process in found.values() if _there(process)]


def end_service(record: Record) -> bool:
    """End every process of a service, those too that it starts meanwhile; -> whether there was any."""
    for again in range(ATTEMPTS):
        if not end(processes(record)):
            return again > 0
    return True


def end(found: Sequence[psutil.Process], seconds: float = STOP_SECONDS) -> bool:
    """End processes: they are asked to, and killed where they do not; -> whether there was any."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)    # one that stands still could not end
        _, left = psutil.wait_procs([process for process in found if _there(process)], patience)
        if not [process for process in left if _there(process)]:
            break
    return bool(found)


def _is(process: psutil.Process, record: Record) -> bool:
    """Return whether a process with a record's pid is the one that was started, by its mark.

    A start time follows the machine's clock when that is set, so it decides only where the mark cannot be read.
    """
    mark = _mark(process)
    return mark == record.mark if mark else abs(process.create_time() - record.create_time) < 1.0


def _mark(process: psutil.Process) -> str:
    """Return the mark that a process carries; "" where there is none or it is another user's."""
    try:
        return process.environ().get(MARK, "")
    except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return ""


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process with the one that started it, where the kernel is Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:    # it has ended meanwhile
        os._exit(1)


def _there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _holder(port: int) -> str:
    """Return who listens on a port: its pid and command, as far as this user may know."""
    with suppress(psutil.Error):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f"process {each.pid}: {' '.join(psutil.Process(each.pid).cmdline())[:200]}"
    return "a process of another user"


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"
