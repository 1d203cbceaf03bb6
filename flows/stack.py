"""The processes of a home: servers and workers started in sessions of their own, found again, and ended whole.

    HOME/run/NAME.json    what runs: pid, create_time, address, command, and the mark that its processes carry
    HOME/logs/NAME.log    what it says; NAME.log.1 is what it said before it was last started

Each process that a service starts inherits its mark, an environment variable of one start. So what is ended is that
service and its descendants, whatever became of the pid since.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path

import psutil

from data_contracts.errors import ServerError, UsageError
from tasks.files import explained, locked

MARK = "XC_SERVICE"
START_SECONDS = 180.0   # for a server's first start on a machine that is busy, with its database to be made
STOP_SECONDS = 20.0     # between asking a service to end and ending it
PROBE_SECONDS = 3.0
PR_SET_PDEATHSIG = 1    # of prctl(2)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Service:
    """A program to run.

    address: where it answers, "" for one that nobody calls. flag: of the option that moves its port. health: what
    answers 200 while it is well. needs: services that have to be well before it starts. first: done before it starts;
    then: once it is well.
    """

    name: str
    title: str
    command: Sequence[str]
    environment: Mapping[str, str]
    address: str
    port: int
    flag: str
    health: str
    needs: Sequence[str] = ()
    first: Callable[[], None] = lambda: None
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Record:
    """A service that was started."""

    name: str
    title: str
    pid: int
    create_time: float      # seconds since 1970
    address: str
    health: str
    command: Sequence[str] = field(repr=False)
    mark: str = field(repr=False)

    @property
    def alive(self) -> bool:
        """Whether the process that was started is still there."""
        try:
            process = psutil.Process(self.pid)
            return process.status() != psutil.STATUS_ZOMBIE and _is(process, self)
        except psutil.NoSuchProcess:
            return False

    @property
    def well(self) -> bool:
        """Whether it answers its health check."""
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
                              f"{_last(self.log)}", hint=f"its log: {self.log}")


class Stack:
    """The services of one home."""

    def __init__(self, home: Path) -> None:
        self.home = Path(home).absolute()
        self.folder, self.logs = self.home / "run", self.home / "logs"

    def records(self) -> dict[str, Record]:
        """Return what was started and not stopped, by name, in the order of the starts."""
        found = []
        for path in self.folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError):
                found.append(Record(**json.loads(path.read_text())))
        return {record.name: record for record in sorted(found, key=lambda record: record.create_time)}

    def running(self, name: str) -> Record | None:
        """Return the service of this name where it runs."""
        record = self.records().get(name)
        return record if record is not None and record.alive else None

    def up(self, services: Sequence[Service], say: Say) -> list[str]:
        """Start those of `services` that do not run, and wait until they are well; -> the names of those started.

        Raises ServerError where a port is taken or a service does not come up; what this call started is ended then.
        """
        with self._alone():
            missing = [service for service in services if self.running(service.name) is None]
            for service in missing:
                check_port(service)
            started: list[str] = []
            try:
                self._start(missing, started, say)
            except BaseException:
                self._end([self.records()[name] for name in started], say)
                raise
            return started

    def down(self, say: Say) -> list[str]:
        """End every service that was started here, the last one first; -> the names of those that ran."""
        if not self.folder.is_dir():
            return []
        with self._alone():
            return self._end(list(self.records().values()), say)

    def _start(self, missing: Sequence[Service], started: list[str], say: Say) -> None:
        waiting: dict[str, tuple[Service, Started]] = {}

        def wait_for(names: Sequence[str]) -> None:
            for name in names:
                service, one = waiting[name]
                wait_well(one, beside=[other for _, other in waiting.values()])
                del waiting[name]
                service.then()
                say(f"{service.title:<11} {service.address or 'runs'}")

        for service in missing:
            wait_for([name for name in waiting if name in service.needs])
            service.first()
            waiting[service.name] = (service, self._launch(service))
            started.append(service.name)
        wait_for(list(waiting))

    def _launch(self, service: Service) -> "Started":
        begun = launch(service, self.home, self.logs / f"{service.name}.log")
        record = begun.record
        part = self.folder / f".{service.name}.part"
        part.write_text(json.dumps(asdict(record), indent=1) + "\n")
        os.replace(part, self.folder / f"{service.name}.json")
        return begun

    def _end(self, records: Sequence[Record], say: Say) -> list[str]:
        ended = []
        for record in reversed(records):
            if end(processes(record)):
                ended.append(record.name)
                say(f"{record.title:<11} ended")
            (self.folder / f"{record.name}.json").unlink(missing_ok=True)
        return ended

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second `up` or `down` of this home out until this one is done."""
        with explained("start the services", self.home):
            for folder in (self.folder, self.logs):
                folder.mkdir(0o700, exist_ok=True)
            (self.folder / "lock").touch()
        with locked(self.folder / "lock", fcntl.LOCK_EX, 0.5) as mine:
            if not mine:
                raise UsageError(f"another `xc up` or `xc down` is at work in {self.home}", hint="wait for it")
            yield


def launch(service: Service, home: Path, log: Path, *, follow: bool = False) -> Started:
    """Start a service in a session of its own, so that no signal to this terminal reaches it.

    follow: it is to end when this process does, however that ends.
    """
    mark = uuid.uuid4().hex
    with suppress(FileNotFoundError):
        os.replace(log, log.with_suffix(".log.1"))
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(service.command), env={**os.environ, **service.environment, MARK: mark}, cwd=home,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_end_with_parent if follow else None)    # noqa: PLW1509  no thread has been started yet
    return Started(process, Record(
        service.name, service.title, process.pid, psutil.Process(process.pid).create_time(), service.address,
        service.health, list(service.command), mark), log)


def wait_well(started: Started, seconds: float = START_SECONDS, beside: Sequence[Started] = ()) -> None:
    """Return once a service answers; ServerError where it, or one `beside` it, ends, or it takes too long."""
    record, deadline = started.record, time.monotonic() + seconds
    while not record.well:
        for each in (started, *beside):
            each.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{record.title} did not answer {record.health} within {seconds:.0f} s: "
                              f"{_last(started.log)}", hint=f"its log: {started.log}; the same command tries again")
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
    """Return every process of a service that is there: those that carry its mark, and all that they started."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and (_mark(process) == record.mark
                                               or (process.pid == record.pid and _is(process, record))):
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = each
    return [process for process in found.values() if _there(process)]


def end(found: Sequence[psutil.Process], seconds: float = STOP_SECONDS) -> bool:
    """End processes: they are asked to, and killed where they do not; -> whether there was any."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(number)
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


def _end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, where the kernel is Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


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


def _last(log: Path) -> str:
    """Return the last line of a log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
