"""Ports for the servers of tests, below those that the system gives away by itself."""

import os
import random
from itertools import count, islice

from tasks.core import network

LOWEST, SHARE = 10_000, 2_000    # a test process's share of ports: no two processes of a run try the same
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_first = LOWEST + _worker * SHARE
_numbers = count(random.randrange(SHARE))    # another run of the tests may be under way here


def free_ports(wanted: int) -> list[int]:
    """Return ports that are free, and that no program takes which asks for any port, or which connects to another.

    A server may start on one long after: a port that the system itself chose would have been free for others till then.
    """
    if _first + SHARE > network.lowest_of_system():    # a container may leave no such ports
        return [network.free_port() for _ in range(wanted)]
    tried = (_first + number % SHARE for number in islice(_numbers, SHARE))
    return list(islice(filter(network.is_free, tried), wanted))


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
