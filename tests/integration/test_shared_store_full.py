"""A shared folder that is full: the run goes on with its home alone, and the folder is named, not the home's disk."""

import errno
import os

import pytest
from fsspec.implementations.local import LocalFileSystem

from tasks.core.remote import Remote
from tasks.core.shared_store import SharedStore
from tests.integration.test_shared_store import made


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_shared_folder_that_is_full_is_said_once_and_caught_up(number, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(number, os.strerror(number))

    address, calls, said = f"file://{tmp_path}/results", list[str](), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "put_file", full)
        first = made(SharedStore(tmp_path / "one", address, said.append), calls)
    assert len(calls) == 4
    assert [line.strip() for line in said[1:]] == [
        f"{address} has no room: {os.strerror(number)}; this run publishes no more there, the next one publishes what "
        "is missing"]
    made(SharedStore(tmp_path / "one", address), calls)
    assert made(SharedStore(tmp_path / "two", address), calls) == first and len(calls) == 4


def test_what_this_machine_has_no_room_for_is_its_own_error(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalFileSystem, "get_file", full)
    (tmp_path / "a").write_text("a")
    with pytest.raises(OSError, match="No space left") as raised:
        Remote(f"file://{tmp_path}").download({"a": tmp_path / "b"})
    assert raised.value.errno == errno.ENOSPC
