"""How much memory a run is said to take: what its processes held together, each byte once."""

import mmap
import subprocess
import sys
import threading

from flows import preview
from flows.preview import memory_in_use, memory_noted
from tasks.core.step import slug
from tasks.plan import timing_key

HOLDS = 150_000_000


def test_what_processes_share_and_what_is_mapped_from_files_is_not_counted(tmp_path):
    """A process that is started has for its most what the one that started it held; it does not hold that."""
    mine = bytearray(b"x") * HOLDS
    before = memory_in_use()
    with subprocess.Popen([sys.executable, "-c", f"x = bytearray(b'x') * {HOLDS}; print('there', flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"there\n"
        assert HOLDS < memory_in_use() - before < 1.2 * HOLDS
        child.communicate(b"\n")
    file = tmp_path / "file"
    file.write_bytes(mine)
    before = memory_in_use()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, HOLDS, 4096)) > 0
        assert memory_in_use() - before < 0.2 * HOLDS


def test_the_most_of_all_runs_of_a_kind_is_kept(store, monkeypatch):
    monkeypatch.setattr(preview, "LOOK_EVERY", 0.001)
    for holds, most in ((300, 300), (200, 300), (400, 400)):
        values, seen = iter([100, holds, 150]), threading.Event()

        def look(values=values, seen=seen):
            value = next(values, None)
            if value is None:    # the one before was taken note of
                seen.set()
            return value or 50

        monkeypatch.setattr(preview, "memory_in_use", look)
        with memory_noted(store, "ngame", "cpu", "small"):
            assert seen.wait(60)
        assert store.get_ref("held", slug(timing_key("small", "ngame", "cpu"))) == {"bytes": most}
