"""Restart services that have ended: python -m flows.services.supervisor HOME.

`xc up` starts it with the services, `xc down` ends it first. It reads their records in HOME/run.
"""

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import ProjectError
from flows.services.processes import last_line
from flows.services.stack import Say, Stack

NAME = "supervisor"
CHECK_SECONDS = 1.0                # seconds between two checks
FIRST, MOST = 1.0, 60.0    # first and longest pause before a restart, in seconds; it doubles each time
STEADY = 300.0             # seconds of running after which the pause is FIRST again


@dataclass
class Pause:
    """The pause before a service is restarted; due: the time of the restart, None while it runs."""

    began: float
    seconds: float = FIRST / 2
    due: float | None = None

    def end(self, now: float) -> float:
        """Record that the service has ended; return when it is due."""
        self.seconds = FIRST if now - self.began >= STEADY else min(2 * self.seconds, MOST)
        self.due = now + self.seconds
        return self.due


class Supervisor:
    """Restarts the services of one home."""

    def __init__(self, stack: Stack, say: Say) -> None:
        self._stack, self._say = stack, say
        self._pauses: dict[str, Pause] = {}

    def step(self, now: float) -> None:
        """Check each service once; now: seconds on a monotonic clock."""
        for record in self._stack.records().values():
            if record.name == NAME or record.environment is None or record.manager:
                continue
            pause = self._pauses.setdefault(record.name, Pause(now))
            if record.alive:
                pause.due = None
                continue
            if (due := pause.due) is None:
                due = pause.end(now)
                self._say(f"{record.title} has ended: {last_line(self._stack.logs / f'{record.name}.log')}; "
                          f"it is started again in {pause.seconds:.0f} s")
            if now >= due:
                self._restart(record.name, record.title, pause, now)

    def _restart(self, name: str, title: str, pause: Pause, now: float) -> None:
        try:
            if self._stack.restart(name):
                self._say(f"{title} is started again")
                pause.began, pause.due = now, None
        except (OSError, ProjectError) as error:
            pause.end(now)
            self._say(f"{title} cannot be started: {error}; again in {pause.seconds:.0f} s")


def main() -> None:
    """Watch the services as long as the home exists."""
    def say(line: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)

    stack = Stack(Path(sys.argv[1]))
    supervisor = Supervisor(stack, say)
    while stack.folder.is_dir():
        supervisor.step(time.monotonic())
        with suppress(ChildProcessError):    # reaps ended children, which would stay as zombies
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    main()
