"""How much memory a run is said to take: what its processes held together, each page once."""

import mmap
import os
import subprocess
import sys
import time

import pytest

from flows.preview import Preview
from tasks.core import memory
from tasks.core.memory import MemoryUse, Peak, memory_use, watched
from tasks.core.step import Forecast, Step

HOLDS = 150_000_000
LARGE = 800_000_000


def small_child():
    """Return a process of this one's that waits for a line."""
    program = f"x = bytearray(b'x') * {HOLDS}; print('there', flush=True); input()"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_what_a_process_holds_is_counted_and_a_mapped_file_is_told_apart(tmp_path):
    before = memory_use()
    with small_child() as child:
        assert child.stdout.readline() == b"there\n"
        time.sleep(memory.YOUNG)
        assert HOLDS < memory_use().bytes - before.bytes < 1.2 * HOLDS
        child.communicate(b"\n")
    file = tmp_path / "file"
    file.write_bytes(bytearray(b"x") * HOLDS)
    before = memory_use()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, HOLDS, 4096)) > 0
        now = memory_use()
        assert now.files - before.files > .9 * HOLDS
        assert (now.bytes - now.files) - (before.bytes - before.files) < 0.2 * HOLDS


def test_pages_that_a_forked_process_shares_are_counted_once():
    mine = bytearray(b"x") * LARGE
    before = memory_use().bytes
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)    # until the other closes the pipe
        os._exit(0)
    try:
        time.sleep(2 * memory.YOUNG)
        assert memory_use().bytes < before + .1 * LARGE and len(mine) == LARGE
    finally:
        os.close(read)
        os.close(write)
        os.waitpid(child, 0)


def test_a_process_that_is_being_started_does_not_count_its_parents_memory_again(monkeypatch):
    """Until it runs its own program it is in the parent's memory; of readings between starts some met that moment."""
    monkeypatch.setattr(memory, "YOUNG", 60.0)
    before = memory_use().bytes
    with small_child() as child:
        assert child.stdout.readline() == b"there\n"
        assert abs(memory_use().bytes - before) < .2 * HOLDS
        monkeypatch.setattr(memory, "YOUNG", 0.0)
        assert memory_use().bytes - before > HOLDS
        child.communicate(b"\n")


def test_a_process_that_has_ended_holds_nothing():
    with small_child() as child:
        child.communicate(b"\n")
    assert memory_use(child.pid) == MemoryUse()


@pytest.fixture
def readings(monkeypatch):
    """Return a list of what the next readings find; the last one stays."""
    values = [MemoryUse(1)]
    monkeypatch.setattr(memory, "memory_use", lambda: values.pop(0) if len(values) > 1 else values[0])
    return values


def test_a_peak_is_of_the_time_since_the_last_was_taken(readings):
    readings[:] = [MemoryUse(100, 10), MemoryUse(300, 20), MemoryUse(200, 5), MemoryUse(50), MemoryUse(70)]
    peak = Peak()
    for _ in range(3):
        peak.update()
    assert peak.take() == MemoryUse(300, 20) and peak.take() == MemoryUse(70)


def test_memory_is_read_while_the_block_lasts(monkeypatch, readings):
    monkeypatch.setattr(memory, "READ_EVERY", 0.001)
    readings[:] = [MemoryUse(1), MemoryUse(500, 100), MemoryUse(2)]
    with watched() as peak:
        deadline = time.monotonic() + 60
        while len(readings) > 1 and time.monotonic() < deadline:
            time.sleep(.001)
        assert peak.take() == MemoryUse(500, 100)


def test_the_memory_of_a_steps_last_run_stays_beside_its_time(store):
    step = Step("train", "checkpoint", lambda context: None, ())
    assert step.peak_memory(store) is None
    step.note_time(store, 3.0)
    assert step.peak_memory(store) is None
    for size in (400, 300):    # the last run's, not the largest of all
        step.note_memory(store, MemoryUse(size, 30))
        assert step.peak_memory(store) == MemoryUse(size, 30) and step.took(store) == 3.0
    step.note_time(store, 5.0)
    assert step.peak_memory(store) is None and step.took(store) == 5.0    # of a run that was killed since


@pytest.mark.parametrize(("reused", "told"), [((True, False, False), 300), ((True, True, False), 200),
                                              ((True, True, True), 900)])
def test_a_run_takes_what_the_steps_to_run_held_at_most(reused, told):
    held_by_step = zip((900, 300, 200), reused, strict=True)
    steps = [Forecast(str(size), reuse, "", 1.0, MemoryUse(size)) for size, reuse in held_by_step]
    assert Preview(None, steps).memory == MemoryUse(told)


def test_without_the_memory_of_a_step_to_run_none_is_told():
    steps = [Forecast("read", False, "", 1.0, MemoryUse(9)), Forecast("train", False, "", None)]
    assert Preview(None, steps).memory is None
    assert Preview(None, [Forecast("read", True, "", 1.0), steps[0]]).memory == MemoryUse(9)
