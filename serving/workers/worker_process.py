"""A worker of a server as its dispatcher sees it, and the channel between both."""

import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, field

from tasks.core.backoff import Backoff

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 60.0    # before a worker is started again, in seconds


@dataclass
class Worker:
    """A worker, and the dispatcher's end of the channel that connections go through.

    passed: connections on their way to it. turn: when it got the last one, counted in connections. backoff: when it is
    started again.
    """

    number: int
    pid: int = 0
    ended: int = -1    # a file descriptor that is readable once it has ended
    channel: socket.socket | None = None
    passed: deque[socket.socket] = field(default_factory=deque)
    turn: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE, LONGEST_PAUSE, due=0.0))


@dataclass(frozen=True)
class WorkerChannel:
    """A worker's number and its end of the channel, through which nothing more comes once the server stops."""

    number: int
    channel: socket.socket = field(repr=False)


def fork() -> tuple[int, int, socket.socket]:
    """Fork this process; return the pid of the child, a descriptor that tells its end, and a channel's end to it.

    In the child pid is 0, and the channel's end is the other one. Raises OSError where the system has no process,
    memory or descriptor left; then no child is left either.
    """
    ours, theirs = socket.socketpair()
    sys.stderr.flush()    # or the child would write it again
    try:
        pid = os.fork()
    except OSError:
        for each in (ours, theirs):
            each.close()
        raise
    if pid == 0:
        ours.close()
        return 0, -1, theirs
    theirs.close()
    try:
        return pid, os.pidfd_open(pid), ours
    except OSError:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
