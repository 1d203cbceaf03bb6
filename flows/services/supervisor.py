"""Restart services that have ended: python -m flows.services.supervisor HOME.

`xc up` starts it with the services, `xc down` ends it too; while that holds the lock, nothing is restarted. It reads
their records in HOME/run.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from data_contracts.errors import ProjectError
from flows.services.processes import last_line
from flows.services.stack import Say, Stack
from tasks.core.backoff import Backoff

NAME = "supervisor"
CHECK_SECONDS = 1.0    # between two checks
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0    # before a restart, in seconds


class Supervisor:
    """Restarts the services of one home."""

    def __init__(self, stack: Stack, say: Say) -> None:
        self._stack, self._say = stack, say
        self._backoffs: dict[str, Backoff] = {}

    def step(self, now: float) -> None:
        """Check each service once; now: seconds on a monotonic clock."""
        for record in self._stack.records().values():
            if record.name == NAME or record.manager:
                continue
            backoff = self._backoffs.setdefault(record.name, Backoff(FIRST_PAUSE, LONGEST_PAUSE, now))
            if record.alive:
                backoff.due = None
                continue
            if (due := backoff.due) is None:
                due = backoff.end(now)
                self._say(f"{record.title} has ended, it is started again in {backoff.seconds:.0f} s; its last line: "
                          f"{last_line(self._stack.logs / f'{record.name}.log')}")
            if now >= due:
                self._restart(record.name, record.title, backoff, now)

    def _restart(self, name: str, title: str, backoff: Backoff, now: float) -> None:
        try:
            if self._stack.restart(name):
                self._say(f"{title} is started again")
                backoff.start(now)
        except (OSError, ProjectError) as error:
            backoff.end(now)
            self._say(f"{title} cannot be started: {error}; again in {backoff.seconds:.0f} s")


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
