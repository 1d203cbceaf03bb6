"""`xc serve --workers N` where the disk of temporary files is full: the workers count in mapped files there."""

import errno
import subprocess

import pytest

from tests.integration.test_serving_workers import TWO, models, whole, workers
from tests.support.running_server import problem, running, within

__all__ = ["models"]


@pytest.fixture
def disk(tmp_path):
    """Return what mounts a small disk that ends with the test."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size):
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if made.returncode:
            pytest.skip("this user cannot mount a disk")
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", folder], capture_output=True)


def fill(folder):
    with (folder / "fill").open("wb", buffering=0) as file, pytest.raises(OSError) as full:
        while True:
            file.write(bytes(4096))
    assert full.value.errno == errno.ENOSPC


def test_a_temporary_folder_that_is_full_ends_no_worker(models, disk):
    folder = disk("16m")
    with running(models.home, *TWO, TMPDIR=str(folder)) as server:
        assert within(120, lambda: whole(server))
        before = workers(server)
        fill(folder)
        for _ in range(4):
            assert server.fine() and server.ask("/docs").status == server.ask("/v1/projects").status == 200
            problem(server.ask("/nothing"), 404, "route")
            problem(server.ask("/predict"), 405, "route")
        assert whole(server) and workers(server) == before and "ended by" not in server.log.read_text()
        assert b'route="other",status="4xx"} 4.0' in server.ask("/metrics").body


def test_a_temporary_folder_without_room_is_named_at_the_start(models, disk):
    folder = disk("512k")
    told = rf"cannot count what the workers answer: {folder}.*: No space left on device"
    with pytest.raises(AssertionError, match=told), running(models.home, *TWO, TMPDIR=str(folder)):
        pass
