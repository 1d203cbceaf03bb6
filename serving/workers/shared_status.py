"""What the workers of a server know of each other: a slot for each in memory that they share.

Only a slot's worker writes to it, and the dispatcher clears it when that worker has ended. `WorkerLoad` is written at
each change of it, `WorkerStatus` ten times a second.
"""

import json
import mmap
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

SLOT = 4096                       # bytes
FAULT = 1000                      # most characters of a fault that are kept
HEARTBEAT_TIMEOUT = 5.0           # seconds without a heartbeat, after which a worker gets no connections
AHEAD = 2                         # a worker with so many connections more than another closes kept-alive ones
_LOAD = struct.Struct("=QQdQ")    # the fields of WorkerLoad
_TEXT = struct.Struct("=II")      # length and CRC-32 of the status
_TRIES = 100                      # at reading a status while it is written


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker says of itself. version: "" for none; fault: as of AliasFollower; refuses: whether it answers 500.

    waiting: texts in its queue.
    """

    name: str = ""
    version: str = ""
    fault: str = ""
    refuses: bool = False
    waiting: int = 0


@dataclass(frozen=True)
class WorkerLoad:
    """A worker's connections: how many are open now, and how many it takes at most; pid: 0 until it runs.

    heartbeat: time of its event loop's last turn, in seconds of the monotonic clock.
    """

    open: int = 0
    most: int = 0
    heartbeat: float = 0.0
    pid: int = 0


class Peers:
    """What the other workers of a server say; as it stands, for a server without others."""

    fault = ""             # why answers may be wrong or outdated
    refuses = False        # whether a worker refuses to answer, since files of the version were changed


class Board:
    """The slots of `count` workers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._model = ""    # what workers that have ended served: a worker that is forked after that has it
        self._memory = mmap.mmap(-1, (count + 1) * SLOT)    # anonymous, and shared with forks

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self._memory[0] != 0

    def drain(self) -> None:
        """Tell every worker that the server is about to stop."""
        self._memory[0] = 1

    @property
    def model(self) -> str:
        """The name of the model that the workers serve, or served, "" before there is one."""
        statuses = map(self.status, range(self.count))
        return next((status.name for status in statuses if status is not None and status.name), self._model)

    def clear(self, number: int) -> None:
        """Forget what a worker said that has ended, but for the name of the model."""
        self._model = self.model
        self._memory[(number + 1) * SLOT:(number + 2) * SLOT] = bytes(SLOT)

    def post_load(self, number: int, load: WorkerLoad) -> None:
        """Write a worker's load."""
        _LOAD.pack_into(self._memory, (number + 1) * SLOT, load.open, load.most, load.heartbeat, load.pid)

    def load(self, number: int) -> WorkerLoad:
        """Return a worker's load."""
        return WorkerLoad(*_LOAD.unpack_from(self._memory, (number + 1) * SLOT))

    def post_status(self, number: int, status: WorkerStatus) -> None:
        """Write a worker's status."""
        fault, room = status.fault[:FAULT], SLOT - _LOAD.size - _TEXT.size
        while len(data := json.dumps(asdict(status) | {"fault": fault}).encode()) > room and fault:
            fault = fault[:len(fault) // 2]    # letters that are not ASCII take six bytes each
        start = (number + 1) * SLOT + _LOAD.size
        _TEXT.pack_into(self._memory, start, len(data), zlib.crc32(data))
        self._memory[start + _TEXT.size:start + _TEXT.size + len(data)] = data

    def status(self, number: int) -> WorkerStatus | None:
        """Return a worker's status; None before it has one, or where it was killed as it wrote it."""
        start = (number + 1) * SLOT + _LOAD.size
        for _ in range(_TRIES):
            length, checksum = _TEXT.unpack_from(self._memory, start)
            data = self._memory[start + _TEXT.size:start + _TEXT.size + length]
            if length and zlib.crc32(data) == checksum:
                return WorkerStatus(**json.loads(data))
        return None

    def responsive(self, number: int) -> bool:
        """Return whether a worker runs and its event loop turns."""
        load = self.load(number)
        return load.pid != 0 and time.monotonic() < load.heartbeat + HEARTBEAT_TIMEOUT


class BoardPeers(Peers):
    """The board as worker `number` sees it."""

    def __init__(self, board: Board, number: int) -> None:
        self.board, self.number = board, number

    def statuses(self) -> Iterator[WorkerStatus]:
        """Yield the status of each other worker that has one."""
        for number in range(self.board.count):
            if number != self.number and (status := self.board.status(number)) is not None:
                yield status

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self.board.draining

    @property
    def fault(self) -> str:    # type: ignore[override]
        """Return the first fault of another worker, or that one does not run."""
        if fault := next((status.fault for status in self.statuses() if status.fault), ""):
            return fault
        count = self.board.count
        runs = sum(self.board.responsive(number) or number == self.number for number in range(count))
        return "" if runs == count else f"{runs} of {count} workers run"

    @property
    def refuses(self) -> bool:    # type: ignore[override]
        """Return whether another worker refuses to answer."""
        return any(status.refuses for status in self.statuses())

    def should_give_up_connection(self) -> bool:
        """Return whether another worker has so many fewer connections that one of this worker's should move there."""
        mine = self.board.load(self.number).open
        return any(mine >= self.board.load(number).open + AHEAD for number in range(self.board.count)
                   if number != self.number and self.board.responsive(number))
