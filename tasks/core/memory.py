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

READ_EVERY = 1.0    # seconds between two readings of the memory of a run's processes
SHARE = 0.02        # largest share of time spent reading: reading a process of 4 GB takes 25 ms and blocks it
YOUNG = 0.3         # seconds in which a process that was started may still be in its parent's memory (vfork)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of memory; files: those of them that are pages of files, which the kernel drops where memory is short."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(self.bytes + other.bytes, self.files + other.files)


def memory_use(pid: int | None = None) -> MemoryUse:
    """Return what a process, by default this one, and its descendants hold.

    A page that several processes share counts for each by its share (PSS), so that the sum has it once: forked
    processes share all that neither has changed. Where the kernel does not tell it, shared pages count for each.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *(child for child in root.children(recursive=True) if not _is_young(child.pid))]
    except psutil.Error:    # it has ended
        return MemoryUse()
    return sum(map(_of, processes), MemoryUse())


def _of(process: psutil.Process) -> MemoryUse:
    """Return what one process holds; nothing where it has just ended, or is another user's."""
    with suppress(psutil.Error, OSError):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup")
        if not rollup.exists():
            return MemoryUse(process.memory_info().rss)
        sizes = {name: int(size.split()[0]) << 10 for name, _, size in
                 (line.partition(":") for line in rollup.read_text().splitlines()[1:])}
        return MemoryUse(sizes["Pss"] + sizes.get("SwapPss", 0), sizes.get("Pss_File", 0))
    return MemoryUse()


def _is_young(pid: int) -> bool:
    """Return whether a process was started a moment ago.

    Until it runs its own program it is in the memory of its parent, whose pages would count twice: once a run of 3 GB
    was reported as 8 GB. The next reading sees its own memory.
    """
    with suppress(OSError, ValueError, IndexError):
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / _TICKS
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started < YOUNG
    return False


class Peak:
    """The most that this process and its descendants have held since it was last asked for, read every second."""

    def __init__(self) -> None:
        self._lock, self._most = threading.Lock(), MemoryUse()

    def update(self) -> None:
        """Read what is held now."""
        now = memory_use()
        with self._lock:
            self._most = max(self._most, now, key=lambda each: each.bytes)

    def take(self) -> MemoryUse:
        """Return the peak, and begin a new one."""
        self.update()
        with self._lock:
            most, self._most = self._most, MemoryUse()
        return most


@contextmanager
def watched() -> Iterator[Peak]:
    """Yield the peak of this process and its descendants while the block lasts.

    The kernel's own peak is of no use: a process inherits that of its parent, so each worker would seem to have used
    as much as the whole run.
    """
    peak = Peak()

    def update() -> float:
        began = time.monotonic()
        peak.update()
        return max(READ_EVERY, (time.monotonic() - began) / SHARE)

    with repeating(update, "memory"):
        yield peak
