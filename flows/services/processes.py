"""Service processes: start them, check their health, and end them with all descendants.

Each start of a service has a unique mark in an environment variable, which its processes inherit. So exactly that
service and its descendants are ended, even if a pid was reused, and no other program that has its port.
"""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from data_contracts.errors import ServerError
from tasks.core.devices import listeners, port_holder
from tasks.core.files import full_disk

MARK = "XC_SERVICE"
START_SECONDS = 180.0   # for a server's first start on a busy machine, including the creation of its database
ANSWER_SECONDS = 10.0   # for an answer of one that was started long ago: on a busy machine Prefect took more than 3
STOP_SECONDS = 20.0     # between SIGTERM and SIGKILL
ATTEMPTS = 5            # at ending a service that starts processes meanwhile
PR_SET_PDEATHSIG = 1    # of prctl(2)
WELL, STOPPED, SILENT, ENDED = "well", "stands still", "does not answer", "has ended"


@dataclass(frozen=True)
class Service:
    """A program to run.

    address: where it answers, "" for one that no client calls. flag: the option that sets its port. health: the address
    that answers 200 while it is well, "" for one that only has to run. needs: services that must be well before it
    starts. before_start: called just before; after_start: called once it is well, and at each `up` while it runs.
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
    before_start: Callable[[], None] = lambda: None
    after_start: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Record:
    """A start of a service, stored before its process exists; its environment may hold passwords.

    pid, create_time (seconds since 1970): of its first process, 0 until known. restarts: how often it was restarted
    since `xc up`. manager: what runs it and restarts it, such as "systemd", "" for `xc up`.
    """

    name: str
    title: str
    pid: int
    create_time: float
    address: str
    health: str
    command: Sequence[str] = field(repr=False)
    mark: str = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    restarts: int = 0
    manager: str = ""

    @classmethod
    def of(cls, service: Service) -> "Record":
        """Return the record of a service about to be started."""
        return cls(service.name, service.title, 0, 0.0, service.address, service.health, list(service.command),
                   uuid.uuid4().hex, dict(service.environment))

    def next_start(self) -> "Record":
        """Return the record of the next start."""
        return replace(self, pid=0, create_time=0.0, mark=uuid.uuid4().hex, restarts=self.restarts + 1)

    @property
    def alive(self) -> bool:
        """Whether the process that was started still exists."""
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
        """Return the state of its process as psutil names it, "" where it does not exist."""
        try:
            process = psutil.Process(self.pid) if self.pid else None
            return str(process.status()) if process is not None and _is(process, self) else ""
        except psutil.NoSuchProcess:
            return ""

    def _answers(self) -> bool:
        if not self.health:
            return True
        try:
            with urllib.request.urlopen(self.health, timeout=ANSWER_SECONDS) as response:
                return bool(response.status == 200) and self._listens()
        except (HTTPException, OSError, psutil.NoSuchProcess):
            return False

    def _listens(self) -> bool:
        """Return whether it is what answers at its port; another program may have taken that before it came to it."""
        pids = listeners(urlsplit(self.health).port or 0)
        return not pids or any(pid == self.pid or _mark(psutil.Process(pid)) == self.mark for pid in pids)


@dataclass(frozen=True)
class Started:
    """A service with the handle of its process and its log, in the process that started it."""

    process: "subprocess.Popen[bytes]"
    record: Record
    log: Path

    def check(self) -> None:
        """Raise ServerError with the last line of its log where it has ended, ProjectError where the disk is full."""
        if self.process.poll() is not None:
            ended = ServerError(f"{self.record.title} ended with code {self.process.returncode} as it started: "
                                f"{last_line(self.log)}", hint=f"its log: {self.log}")
            if full := full_disk(ended, self.log.parent):
                raise full from ended
            raise ended


def launch(record: Record, home: Path, log: Path, *, follow: bool = False) -> Started:
    """Start a service in a session of its own, so that no signal to this terminal reaches it.

    follow: end it when this process ends, however that happens.
    """
    with suppress(FileNotFoundError):
        os.replace(log, log.with_suffix(".log.1"))
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(record.command), env={**os.environ, **record.environment, MARK: record.mark}, cwd=home,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()) if follow else None)    # noqa: PLW1509  no thread yet
    began = psutil.Process(process.pid).create_time()
    return Started(process, replace(record, pid=process.pid, create_time=began), log)


def wait_well(started: Started, seconds: float = START_SECONDS, others: Sequence[Started] = ()) -> None:
    """Return once a service answers; raise ServerError where it or one of `others` ends, or it takes too long."""
    record, deadline = started.record, time.monotonic() + seconds
    while not record.well:
        for service in (started, *others):
            service.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{record.title} did not answer {record.health} within {seconds:.0f} s: "
                              f"{last_line(started.log)}", hint=f"its log: {started.log}; the same command tries again")
        time.sleep(0.2)


def wait_answer(record: Record, hint: str) -> None:
    """Return once a service started earlier answers; raise ServerError where it does not, or is stopped."""
    still_starting = max(0.0, record.create_time + START_SECONDS - time.time())
    deadline = time.monotonic() + max(ANSWER_SECONDS, min(still_starting, START_SECONDS))
    while (state := record.state) != WELL:
        if state != SILENT or time.monotonic() > deadline:
            where = f" at {record.address}" if record.address else ""
            raise ServerError(f"{record.title}{where} {state}: process {record.pid}", hint=hint)
        time.sleep(0.2)


def check_port(service: Service) -> None:
    """Raise ServerError where a service cannot have its port, naming the process that has it, if one does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", service.port))
            return
        except OSError as error:
            other = f"choose another port: xc up {service.flag} PORT"
            if error.errno == errno.EADDRINUSE:
                raise ServerError(f"port {service.port} of {service.title} is taken by {port_holder(service.port)}",
                                  hint=f"end that, or {other}") from error
            raise ServerError(f"port {service.port} of {service.title} cannot be used: {error.strerror}",
                              hint=other) from error


def processes(record: Record) -> list[psutil.Process]:
    """Return every running process of a service: those with its mark, and their descendants.

    Descendants with the mark of another service, as the supervisor has them, belong to that service.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and (_mark(process) == record.mark
                                               or (process.pid == record.pid and _is(process, record))):
                for member in (process, *process.children(recursive=True)):
                    if _mark(member) in ("", record.mark):
                        found[member.pid] = member
    return [process for process in found.values() if _runs(process)]


def end_service(record: Record) -> bool:
    """End every process of a service, even those it starts meanwhile; return whether there was any."""
    for attempt in range(ATTEMPTS):
        if not end(processes(record)):
            return attempt > 0
    return True


def end(targets: Sequence[psutil.Process]) -> bool:
    """End processes by SIGTERM, after STOP_SECONDS by SIGKILL; return whether there was any."""
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        for process in targets:
            with suppress(psutil.Error):
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)    # a stopped process could not end
        _, left = psutil.wait_procs([process for process in targets if _runs(process)], patience)
        if not [process for process in left if _runs(process)]:
            break
    return bool(targets)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends; Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:    # the parent has ended meanwhile
        os._exit(1)


def _is(process: psutil.Process, record: Record) -> bool:
    """Return whether a process with a record's pid is the one that was started, by its mark.

    The start time shifts when the clock is set, so it decides only where the mark cannot be read.
    """
    mark = _mark(process)
    return mark == record.mark if mark else abs(process.create_time() - record.create_time) < 1.0


def _mark(process: psutil.Process) -> str:
    """Return the mark of a process; "" where it has none or belongs to another user."""
    try:
        return process.environ().get(MARK, "")
    except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank, cut to 300 characters; of an error with its hint, the error."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    if lines and lines[-1].startswith("hint: "):
        lines = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
    return lines[-1][:300] if lines else "it said nothing"
