"""Start, find, restart and stop the services of a home, by their records in HOME/run.

    HOME/run/NAME.json    the record of a service: command, environment, address, mark, pid
    HOME/logs/NAME.log    its output; NAME.log.1 is the output of its previous start

A record is written before its process starts, so no kill at any moment leaves a process that the next call cannot find.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from data_contracts.errors import ServerError, UsageError
from flows.services.processes import Record, Service, Started, check_port, end_service, launch, wait_answer, wait_well
from tasks.core.files import explained, locked, make_folder, put_file

LOCK_SECONDS = 5.0    # the supervisor needs less to restart a service
Say = Callable[[str], None]


class Stack:
    """The services of one home."""

    def __init__(self, home: Path) -> None:
        self.home = Path(home).absolute()
        self.folder, self.logs = self.home / "run", self.home / "logs"

    def records(self) -> dict[str, Record]:
        """Return the records of services that were started and not stopped, by name, in the order of their starts."""
        records = []
        for path in self.folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError):
                records.append(Record(**json.loads(path.read_text())))
        return {record.name: record for record in sorted(records, key=lambda record: record.create_time)
                if self._ours(record)}

    def running(self, name: str) -> Record | None:
        """Return the record of the service of this name, None where it does not run."""
        record = self.records().get(name)
        return record if record is not None and record.alive else None

    def up(self, services: Sequence[Service], say: Say, hint: str = "xc down; xc up") -> list[str]:
        """Start those of `services` that do not run, and wait until all are well; return the names of those started.

        Raises ServerError where a port is taken, a service does not come up, or a running one does not answer, with
        `hint` as its remedy; what this call started is ended first.
        """
        with self._locked():
            records = self.records()
            missing = [service for service in services if self.running(service.name) is None]
            for service in missing:
                if service.name in records and end_service(records[service.name]):
                    say(f"{service.title:<11} what was left of it ended")
                check_port(service)
            for service in services:
                if (record := self.running(service.name)) is not None:
                    wait_answer(record, hint)
                    service.after_start()
            started: list[Record] = []
            try:
                self._start(missing, started, say)
            except BaseException:
                self._end(started, say)    # not by their files, which may have been deleted with the home
                raise
            return [record.name for record in started]

    def down(self, say: Say) -> list[str]:
        """End every service that was started here, the last one first; return the names of those that ran.

        Those that a service manager runs, and would start again, are left to it.
        """
        if not self.folder.is_dir():
            return []
        with self._locked():
            return self._end([record for record in self.records().values()
                              if not (record.manager and record.alive)], say)

    def managers(self) -> list[str]:
        """Return the service managers, such as "systemd", that run services of this home now."""
        return sorted({record.manager for record in self.records().values() if record.manager and record.alive})

    def adopt(self, service: Service, manager: str) -> Record:
        """Record this process as a service that it is about to become; raise ServerError where that runs already."""
        with self._locked():
            if (record := self.running(service.name)) is not None and record.pid != os.getpid():
                raise ServerError(f"{service.title} of {self.home} is up already: process {record.pid}",
                                  hint="xc down, if xc up started it")
            began = psutil.Process().create_time()
            record = replace(Record.of(service), pid=os.getpid(), create_time=began, manager=manager)
            self._write(record)
            return record

    def restart(self, name: str) -> bool:
        """Restart a service that has ended, ending what is left of it; return whether it was restarted.

        It is not while an `up` or `down` is at work.
        """
        with locked(self.folder / "lock", fcntl.LOCK_EX, 0.0) as locked_here:
            record = self.records().get(name) if locked_here else None
            if record is None or record.alive or record.manager:
                return False
            end_service(record)
            self._launch(record.next_start())
            return True

    def _ours(self, record: Record) -> bool:
        """Return whether a service belongs to this home, and not to one of which this home is a copy."""
        home = Path(record.environment.get("XC_HOME", self.home))
        try:
            return home.samefile(self.home)
        except (FileNotFoundError, NotADirectoryError):    # this home was moved
            return True
        except OSError:    # closed to this user
            return False

    def _start(self, missing: Sequence[Service], started: list[Record], say: Say) -> None:
        waiting: dict[str, tuple[Service, Started]] = {}

        def wait_for(names: Sequence[str]) -> None:
            for name in names:
                service, process = waiting[name]
                wait_well(process, others=[other for _, other in waiting.values()])
                del waiting[name]
                service.after_start()
                say(f"{service.title:<11} {service.address or 'runs'}")

        for service in missing:
            wait_for([name for name in waiting if name in service.needs])
            service.before_start()
            started.append(Record.of(service))
            waiting[service.name] = (service, self._launch(started[-1]))
        wait_for(list(waiting))

    def _launch(self, record: Record) -> Started:
        self._write(record)
        started = launch(record, self.home, self.logs / f"{record.name}.log")
        self._write(started.record)
        return started

    def _write(self, record: Record) -> None:
        data = json.dumps(asdict(record), indent=1).encode() + b"\n"
        put_file(data, self.folder / f"{record.name}.json", os.replace)

    def _end(self, records: Sequence[Record], say: Say) -> list[str]:
        ended = []
        for record in reversed(records):
            if end_service(record):
                ended.append(record.name)
                say(f"{record.title:<11} ended")
            (self.folder / f"{record.name}.json").unlink(missing_ok=True)
        return ended

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock this home against a second `up` or `down` while the block lasts; UsageError where one is at work."""
        with explained("start the services", self.home):
            for folder in (self.folder, self.logs):
                make_folder(folder)
            (self.folder / "lock").touch()
        with locked(self.folder / "lock", fcntl.LOCK_EX, LOCK_SECONDS) as locked_here:
            if not locked_here:
                raise UsageError(f"another `xc up` or `xc down` is at work in {self.home}", hint="wait for it")
            yield
