"""Memory that a process and its descendants hold together, each page counted once, and its peak."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.core.repeating import repeating

LOOK_EVERY = 1.0      # seconds between two readings of the memory of a run's processes
SHARE = 0.02          # of the time that readings take at most: one of 4 GB takes 25 ms, and holds the process up
YOUNG = 0.3           # seconds in which a process that was started may still be in its parent's memory (vfork)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Held:
    """Bytes of memory; files: those of them that are pages of files, which the kernel drops where memory is short."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.bytes + other.bytes, self.files + other.files)


def held(pid: int | None = None) -> Held:
    """Return what a process, by default this one, and its descendants hold.

    A page that several processes share counts for each by its share (PSS), so that the sum has it once: forked
    processes share all that neither has changed. Where the kernel does not tell it, shared pages count for each.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *(child for child in root.children(recursive=True) if not _is_young(child.pid))]
    except psutil.Error:    # it has ended
        return Held()
    return sum(map(_of, processes), Held())


def _of(process: psutil.Process) -> Held:
    """Return what one process holds; nothing where it has just ended, or is another user's."""
    with suppress(psutil.Error, OSError):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup")
        if not rollup.exists():
            return Held(process.memory_info().rss)
        sizes = {name: int(size.split()[0]) << 10 for name, _, size in
                 (line.partition(":") for line in rollup.read_text().splitlines()[1:])}
        return Held(sizes["Pss"] + sizes.get("SwapPss", 0), sizes.get("Pss_File", 0))
    return Held()


def _is_young(pid: int) -> bool:
    """Return whether a process was started a moment ago.

    Until it runs its own program it is in the memory of its parent, whose pages would count twice: that of a run of 3
    GB was once told as 8. What it holds itself is seen by the next reading.
    """
    with suppress(OSError, ValueError, IndexError):
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / _TICKS
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started < YOUNG
    return False


class Peak:
    """The most that this process and its descendants have held since it was last asked for, read every second."""

    def __init__(self) -> None:
        self._lock, self._most = threading.Lock(), Held()

    def look(self) -> None:
        """Read what is held now."""
        now = held()
        with self._lock:
            self._most = max(self._most, now, key=lambda each: each.bytes)

    def take(self) -> Held:
        """Return the peak, and begin a new one."""
        self.look()
        with self._lock:
            most, self._most = self._most, Held()
        return most


@contextmanager
def watched() -> Iterator[Peak]:
    """Yield the peak of this process and its descendants while the block lasts.

    The kernel's own peak is of no use: a process inherits that of its parent, so each worker would seem to have used
    as much as the whole run.
    """
    peak = Peak()

    def look() -> float:
        began = time.monotonic()
        peak.look()
        return max(LOOK_EVERY, (time.monotonic() - began) / SHARE)

    with repeating(look, "memory"):
        yield peak
