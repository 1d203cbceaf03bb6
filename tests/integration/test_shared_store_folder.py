"""A shared folder of this machine (file://) in which something else is in the place of files, or leads out of it."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fsspec.implementations.local import LocalFileSystem

from data_contracts.errors import ServerError
from tasks.core.manifest import MANIFEST
from tasks.core.shared_store import SharedStore
from tests.integration.test_shared_store import chain, made, step


def folder_instead(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "something").write_text("of somebody")


def pipe_instead(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def link_to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "nothing")


def link_to_itself(path: Path, outside: Path) -> None:
    path.symlink_to(path)


def link_to_a_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file")


def link_to_a_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


INSTEAD = [folder_instead, pipe_instead, link_to_nothing, link_to_itself, link_to_a_file, link_to_a_folder]


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("which", ["file", "deep/text", "deep", MANIFEST, "object", "ref"])
def test_what_is_in_the_place_of_a_file_is_moved_aside_and_the_result_published_again(which, instead, tmp_path):
    """Nothing is written, nor waited for, where it leads to; every other result is used."""
    address, calls, said = f"file://{tmp_path}/results", list[str](), list[str]()
    first = SharedStore(tmp_path / "one", address)
    digests = made(first, calls)
    key = next(key for key, manifest in first.steps() if manifest["kind"] == "checkpoint")
    objects, ref = tmp_path / "results" / "objects" / digests["train"], tmp_path / "results" / "refs" / "steps" / key
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("of somebody")
    place = {"object": objects, "ref": ref, "file": objects / "metrics.json"}.get(which, objects / which)
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    instead(place, outside)
    calls.clear()
    more = [*chain(calls), step("look", "report", calls, {"tables": "read", "checkpoint": "train"})]
    assert _in_time(lambda: made(SharedStore(tmp_path / "two", address, said.append), calls, more)).items() \
        >= digests.items()
    assert calls == ["train", "look"] and not any("this run" in line for line in said)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "of somebody"}
    calls.clear()
    assert made(SharedStore(tmp_path / "three", address), calls, more).items() >= digests.items()
    assert calls == []    # the damaged result was replaced by the one that was made again


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_a_folder_that_is_gone_in_the_middle_is_not_made_anew(left, tmp_path):
    """Results would fill the disk below where another was mounted, and no other home would see them."""
    said, calls, place = list[str](), list[str](), tmp_path / "results"
    store = SharedStore(tmp_path / "one", f"file://{place}", said.append)
    assert said == [f"file://{place} becomes a shared store: results of steps go there from now on"]
    digests = made(store, calls, chain(calls)[:2])
    place.rename(tmp_path / "unmounted")
    if left == "an empty folder":
        place.mkdir()
    assert made(store, calls).items() >= digests.items() and calls == ["read", "pack", "train", "build"]
    assert len(said) == 2 and "its file FORMAT is gone; this run publishes no more there" in said[1]
    assert not place.exists() or not [*place.iterdir()]


@pytest.mark.parametrize("instead", INSTEAD[:4])
def test_what_is_in_the_place_of_the_version_is_moved_aside(instead, tmp_path):
    address = f"file://{tmp_path}/results"
    made(SharedStore(tmp_path / "one", address), [])
    (tmp_path / "results" / "FORMAT").unlink()
    instead(tmp_path / "results" / "FORMAT", tmp_path)
    calls = list[str]()
    _in_time(lambda: made(SharedStore(tmp_path / "two", address), calls))
    assert calls == [] and (tmp_path / "results" / "FORMAT").read_text() == "1\n"


@pytest.mark.parametrize("which", ["objects", "refs", "refs/steps"])
def test_links_that_its_owner_made_to_another_disk_are_followed(which, tmp_path):
    address, calls = f"file://{tmp_path}/results", list[str]()
    (tmp_path / "disk").mkdir()
    (tmp_path / "results" / which).parent.mkdir(parents=True)
    (tmp_path / "results" / which).symlink_to(tmp_path / "disk")
    first = made(SharedStore(tmp_path / "one", address), calls)
    assert (tmp_path / "results" / which).is_symlink() and any((tmp_path / "disk").iterdir())
    assert made(SharedStore(tmp_path / "two", address), calls) == first and len(calls) == 4


def test_a_damaged_manifest_is_named_by_its_address(tmp_path):
    address, said = f"file://{tmp_path}/results", list[str]()
    digests = made(SharedStore(tmp_path / "one", address), [])
    manifest = f"objects/{digests['pack']}/{MANIFEST}"
    (tmp_path / "results" / manifest).write_bytes(b"")
    made(SharedStore(tmp_path / "two", address, said.append), [])
    assert f"    {address}/{manifest} is not the one that was published: it is not used, and made again" in said


def test_what_this_user_may_not_read_is_named_with_a_remedy_of_this_machine(tmp_path, monkeypatch):
    """root may read everything, so the file system is told to refuse."""
    address = f"file://{tmp_path}/results"
    made(SharedStore(tmp_path / "one", address), [])
    monkeypatch.setattr(LocalFileSystem, "cat_file", Mock(side_effect=PermissionError(errno.EACCES, "not for you")))
    with pytest.raises(ServerError, match="refuses access") as raised:
        SharedStore(tmp_path / "two", address)
    assert "give this user the right to read" in str(raised.value) and "AWS" not in str(raised.value)


def _in_time(call: Callable[[], Any]) -> Any:
    """Return what `call` does; fail where that takes minutes, as it does for ever at a pipe."""
    results = list[Any]()
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(120)
    assert results, "it failed, or still waits"
    return results[0]
