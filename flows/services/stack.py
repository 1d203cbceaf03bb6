"""The services of a home: started together, watched, found again by what is noted of them, and ended.

    HOME/run/NAME.json    a service and its start: command, environment, address, mark, pid
    HOME/logs/NAME.log    what it says; NAME.log.1 is what it said before it was last started

A start is noted before there is a process, so a kill at any moment leaves nothing that the next call does not know.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from data_contracts.errors import UsageError
from flows.services.processes import Record, Service, Started, check_port, end_service, launch, wait_answer, wait_well
from tasks.core.files import explained, locked, make_folder, write_file

LOCK_SECONDS = 5.0    # the supervisor takes less to start one part again
Say = Callable[[str], None]


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
        return {record.name: record for record in sorted(found, key=lambda record: record.create_time)
                if self._ours(record)}

    def running(self, name: str) -> Record | None:
        """Return the service of this name where it runs."""
        record = self.records().get(name)
        return record if record is not None and record.alive else None

    def up(self, services: Sequence[Service], say: Say, hint: str = "xc down; xc up") -> list[str]:
        """Start those of `services` that do not run, and wait until all are well; -> the names of those started.

        Raises ServerError where a port is taken, a service does not come up, or one that runs does not answer, with
        `hint` as its remedy; what this call started is ended then.
        """
        with self._alone():
            found = self.records()
            missing = [service for service in services if self.running(service.name) is None]
            for service in missing:
                if service.name in found and end_service(found[service.name]):
                    say(f"{service.title:<11} what was left of it ended")
                check_port(service)
            for service in services:
                if (record := self.running(service.name)) is not None:
                    wait_answer(record, hint)
                    service.then()
            started: list[str] = []
            try:
                self._start(missing, started, say)
            except BaseException:
                self._end([record for name, record in self.records().items() if name in started], say)
                raise
            return started

    def down(self, say: Say) -> list[str]:
        """End every service that was started here, the last one first; -> the names of those that ran."""
        if not self.folder.is_dir():
            return []
        with self._alone():
            return self._end(list(self.records().values()), say)

    def again(self, name: str) -> bool:
        """Start a service that has ended again, without what is left of it; -> whether this was to be done.

        It is not while somebody else starts or ends services.
        """
        with locked(self.folder / "lock", fcntl.LOCK_EX, 0.0) as mine:
            record = self.records().get(name) if mine else None
            if record is None or record.alive:
                return False
            end_service(record)
            self._launch(record.again())
            return True

    def _ours(self, record: Record) -> bool:
        """Return whether a service works here, and not in the home of which this one is a copy."""
        home = Path((record.environment or {}).get("XC_HOME", self.home))
        try:
            return home.samefile(self.home)
        except (FileNotFoundError, NotADirectoryError):    # this one was moved
            return True
        except OSError:    # closed to this user
            return False

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
            started.append(service.name)
            waiting[service.name] = (service, self._launch(Record.of(service)))
        wait_for(list(waiting))

    def _launch(self, record: Record) -> Started:
        self._note(record)
        begun = launch(record, self.home, self.logs / f"{record.name}.log")
        self._note(begun.record)
        return begun

    def _note(self, record: Record) -> None:
        part = self.folder / f".{uuid.uuid4().hex}.part"
        write_file(part, json.dumps(asdict(record), indent=1).encode() + b"\n")
        os.replace(part, self.folder / f"{record.name}.json")

    def _end(self, records: Sequence[Record], say: Say) -> list[str]:
        ended = []
        for record in reversed(records):
            if end_service(record):
                ended.append(record.name)
                say(f"{record.title:<11} ended")
            (self.folder / f"{record.name}.json").unlink(missing_ok=True)
        return ended

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second `up` or `down` of this home out until this one is done."""
        with explained("start the services", self.home):
            for folder in (self.folder, self.logs):
                make_folder(folder)
            (self.folder / "lock").touch()
        with locked(self.folder / "lock", fcntl.LOCK_EX, LOCK_SECONDS) as mine:
            if not mine:
                raise UsageError(f"another `xc up` or `xc down` is at work in {self.home}", hint="wait for it")
            yield
