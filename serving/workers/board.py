"""What the workers of a server know of each other: a slot for each in memory that they share.

Only a slot's worker writes to it, and the dispatcher clears it when that worker has ended. Numbers are written at each
change, the rest (`Facts`) ten times a second.
"""

import json
import mmap
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

SLOT = 4096                        # bytes
FAULT = 1000                       # most characters of a fault that are kept
SILENT = 5.0                       # seconds without a sign, after which a worker gets no connections
AHEAD = 2                          # connections more than another worker, above which kept-alive ones are closed
_NUMBERS = struct.Struct("=QQdQ")    # those of Numbers
_TEXT = struct.Struct("=II")          # length and CRC-32 of the facts
_TRIES = 100                       # at reading facts while they are written


@dataclass(frozen=True)
class Facts:
    """What a worker says of itself. version: "" for none; fault: as of AliasFollower; refuses: whether it answers 500.

    waiting: texts in its queue.
    """

    name: str = ""
    version: str = ""
    fault: str = ""
    refuses: bool = False
    waiting: int = 0


@dataclass(frozen=True)
class Numbers:
    """A worker's connections: open now, and how many it takes at most; pid: 0 until it runs.

    sign: time of its event loop's last turn, in seconds of the monotonic clock.
    """

    open: int = 0
    most: int = 0
    sign: float = 0.0
    pid: int = 0


class Others:
    """What the other workers of a server know: nothing, where there are none."""

    draining = False       # whether the server is about to stop
    fault = ""             # why answers may be wrong or outdated
    refuses = False        # whether a worker refuses to answer, since files of the version were changed


class Board:
    """The slots of `count` workers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, (count + 1) * SLOT)    # anonymous, and shared with forks

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self._memory[0] != 0

    def drain(self) -> None:
        """Tell every worker that the server is about to stop."""
        self._memory[0] = 1

    def clear(self, number: int) -> None:
        """Forget what a worker said that has ended."""
        self._memory[(number + 1) * SLOT:(number + 2) * SLOT] = bytes(SLOT)

    def post(self, number: int, numbers: Numbers) -> None:
        """Write a worker's numbers."""
        _NUMBERS.pack_into(self._memory, (number + 1) * SLOT, numbers.open, numbers.most, numbers.sign, numbers.pid)

    def numbers(self, number: int) -> Numbers:
        """Return a worker's numbers."""
        return Numbers(*_NUMBERS.unpack_from(self._memory, (number + 1) * SLOT))

    def post_facts(self, number: int, facts: Facts) -> None:
        """Write a worker's facts."""
        fault, room = facts.fault[:FAULT], SLOT - _NUMBERS.size - _TEXT.size
        while len(data := json.dumps(asdict(facts) | {"fault": fault}).encode()) > room and fault:
            fault = fault[:len(fault) // 2]    # letters that are not ASCII take six bytes each
        start = (number + 1) * SLOT + _NUMBERS.size
        _TEXT.pack_into(self._memory, start, len(data), zlib.crc32(data))
        self._memory[start + _TEXT.size:start + _TEXT.size + len(data)] = data

    def facts(self, number: int) -> Facts | None:
        """Return a worker's facts; None before it has any, or where it was killed as it wrote them."""
        start = (number + 1) * SLOT + _NUMBERS.size
        for _ in range(_TRIES):
            length, checksum = _TEXT.unpack_from(self._memory, start)
            data = self._memory[start + _TEXT.size:start + _TEXT.size + length]
            if length and zlib.crc32(data) == checksum:
                return Facts(**json.loads(data))
        return None

    def responsive(self, number: int) -> bool:
        """Return whether a worker runs and its event loop turns."""
        numbers = self.numbers(number)
        return numbers.pid != 0 and time.monotonic() < numbers.sign + SILENT


class Peers(Others):
    """The board as worker `number` sees it."""

    def __init__(self, board: Board, number: int) -> None:
        self.board, self.number = board, number

    def others(self) -> Iterator[Facts]:
        """Yield the facts of the other workers."""
        for number in range(self.board.count):
            if number != self.number and (facts := self.board.facts(number)) is not None:
                yield facts

    @property
    def draining(self) -> bool:    # type: ignore[override]
        """Whether the server is about to stop."""
        return self.board.draining

    @property
    def fault(self) -> str:    # type: ignore[override]
        """Return the first fault of another worker, or that one does not run."""
        if told := next((facts.fault for facts in self.others() if facts.fault), ""):
            return told
        count = self.board.count
        runs = sum(self.board.responsive(number) or number == self.number for number in range(count))
        return "" if runs == count else f"{runs} of {count} workers run"

    @property
    def refuses(self) -> bool:    # type: ignore[override]
        """Return whether another worker refuses to answer."""
        return any(facts.refuses for facts in self.others())

    def crowded(self) -> bool:
        """Return whether another worker has so many fewer connections that one of this worker's should move there."""
        mine = self.board.numbers(self.number).open
        return any(mine >= self.board.numbers(number).open + AHEAD for number in range(self.board.count)
                   if number != self.number and self.board.responsive(number))
