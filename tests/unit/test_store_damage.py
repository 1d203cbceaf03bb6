"""Damage of every kind: it is refused with a message and a remedy, set aside, and built anew."""

import errno
import json
import os
import shutil
import time
from dataclasses import asdict

import pytest

from data_contracts.errors import DamagedArtifact, ProjectError
from tasks.core import manifest
from tasks.core.files import file_digest
from tasks.core.store import Artifact, Store
from tests.support.faults import NEW, OLD, is_new, one, overwrite, put, refused, write_new


def test_truncated(store, artifact):
    os.truncate(store.home / artifact.path / "ids.bin", 10)
    refused(store, artifact, r"ids\.bin has 10 bytes, 3000 were published")


def test_bit_flipped(store, artifact):
    overwrite(store.home / artifact.path / "part/tokens.bin", 5, b"\x04")
    refused(store, artifact, r"part/tokens\.bin does not have the sha256 that was published")


def test_zero_filled(store, artifact):
    overwrite(store.home / artifact.path / "ids.bin", 0, bytes(3000))
    refused(store, artifact, r"ids\.bin does not have the sha256")


def test_manifest_bit_flipped(store, artifact):
    path = store.home / artifact.path / "MANIFEST.json"
    overwrite(path, 0, path.read_bytes().replace(b'"rows":2', b'"rows":3'))
    refused(store, artifact, r"MANIFEST\.json is not the one that was published")


def test_manifest_missing(store, artifact):
    (store.home / artifact.path / "MANIFEST.json").unlink()
    refused(store, artifact, r"MANIFEST\.json cannot be read: No such file")


def test_misnamed(store, artifact):
    other = store.publish(OLD, "prepare", {}, one())
    shutil.rmtree(store.home / artifact.path)
    (store.home / other.path).rename(store.home / artifact.path)
    refused(store, artifact, r"MANIFEST\.json is not the one that was published")


def test_missing_file(store, artifact):
    (store.home / artifact.path / "ids.bin").unlink()
    refused(store, artifact, r"ids\.bin is missing")


def test_extra_file(store, artifact):
    put(store.home / artifact.path / "part/evil.pkl", b"cos\nsystem\n")
    refused(store, artifact, r"part/evil\.pkl is not in the manifest")


def test_symlink_for_a_file(store, artifact, tmp_path):
    path = store.home / artifact.path / "ids.bin"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")  # its content is still right
    refused(store, artifact, r"ids\.bin is not a regular file")


def test_symlink_for_a_folder(store, artifact, tmp_path):
    path = store.home / artifact.path / "part"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(store, artifact, r"part is not a regular file")


def test_symlink_for_the_object(store, artifact, tmp_path):
    path = store.home / artifact.path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(store, artifact, r"is not a folder")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["ids.bin", "MANIFEST.json"])
def test_fifo_for_a_file(store, artifact, name):
    path = store.home / artifact.path / name
    path.unlink()
    os.mkfifo(path)
    if name == "MANIFEST.json":
        with pytest.raises(DamagedArtifact, match=r"MANIFEST\.json is not a regular file"):
            store.manifest(artifact)
    refused(store, artifact, rf"{name} is not a regular file")


def test_object_gone(store, artifact):
    shutil.rmtree(store.home / artifact.path)
    with pytest.raises(DamagedArtifact, match=f"{artifact.path} cannot be read: No such file"):
        store.open(artifact)
    assert store.find(NEW) is None
    assert store.publish(NEW, "prepare", {}, one(b"other")) != artifact  # the dangling ref is replaced
    assert (store.open(store.find(NEW)) / "a.bin").read_bytes() == b"other"


def test_empty_folder_in_the_place_of_an_object(store, artifact):
    shutil.rmtree(store.home / artifact.path)
    (store.home / artifact.path).mkdir()
    refused(store, artifact, r"MANIFEST\.json cannot be read")


def test_unreadable_sector_is_damage_but_lack_of_descriptors_is_not(store, artifact, monkeypatch):
    def failing(code):
        def fail(path):
            raise OSError(code, os.strerror(code), str(path))

        return fail

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "file_digest", failing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many open files"):
            store.find(NEW)
    assert store.find(NEW) == artifact
    manifest.verify.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "file_digest", failing(errno.EIO))
        with pytest.raises(DamagedArtifact, match=r"ids\.bin cannot be read: Input/output error"):
            store.open(artifact)


def planted(store, manifest):
    """An object with this manifest under its right name, as a newer program or an attacker would make it."""
    data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    folder = store.home / "tmp" / "planted"
    folder.mkdir()
    put(folder / "MANIFEST.json", data)
    artifact = Artifact.of(file_digest(folder / "MANIFEST.json"))
    folder.rename(store.home / artifact.path)
    return artifact


def test_newer_object_is_kept(store):
    artifact = planted(store, {"version": 2, "chunks": []})
    with pytest.raises(ProjectError, match="was made by a newer version") as caught:
        store.open(artifact)
    assert not isinstance(caught.value, DamagedArtifact)
    assert "update the checkout" in caught.value.hint and "pip" not in caught.value.hint    # the index has a stranger's
    store.set_ref("steps", NEW, asdict(artifact))
    with pytest.raises(ProjectError, match="newer version"):
        store.find(NEW)
    assert (store.home / artifact.path).is_dir()


@pytest.mark.parametrize(
    "manifest", [b"\x80\x04cos\nsystem\n", b"[]", b"[" * 100_000, {"version": "1"}, {"version": 1, "files": [7]}]
)
def test_hostile_manifest(store, manifest):
    with pytest.raises(DamagedArtifact, match=r"MANIFEST\.json is not a manifest"):
        store.open(planted(store, manifest))


@pytest.mark.parametrize("path", ["../../etc", "objects/../tmp", "objects/" + "A" * 64, "objects/" + "a" * 64 + "\n"])
def test_hostile_artifact_name(store, path):
    with pytest.raises(DamagedArtifact, match="is not the name of an artifact"):
        store.open(Artifact(path, path.removeprefix("objects/")))
    with pytest.raises(DamagedArtifact, match="is not the name of an artifact"):
        store.open(Artifact(path, "a" * 64))


def test_newer_home(store):
    (store.home / "FORMAT").write_text("2\n")
    with pytest.raises(ProjectError, match="FORMAT was made by a newer version"):
        Store(store.home)


@pytest.mark.parametrize("content", ["", "\0\0", "one"])
def test_damaged_format(store, content):
    (store.home / "FORMAT").write_text(content)
    with pytest.raises(DamagedArtifact, match="FORMAT is not a version"):
        Store(store.home)


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"[]", b'{"digest": "../.."}', b'{"digest": 7}', b"{"])
def test_damaged_step_ref_is_replaced(store, artifact, content, caplog):
    (store.home / "refs/steps" / NEW).write_bytes(content)
    assert store.find(NEW) is None
    assert f"refs/steps/{NEW} names no artifact" in caplog.text
    assert list(store.steps()) == []
    assert store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2}) == artifact == store.find(NEW)


def test_damage_is_logged_and_each_copy_is_kept(store, artifact, caplog):
    for n in (1, 2):
        os.truncate(store.home / artifact.path / "ids.bin", n)
        assert store.find(NEW) is None
        assert f"ids.bin has {n} bytes" in caplog.text
        assert (store.home / "quarantine" / f"{artifact.digest}-{n}" / "ids.bin").stat().st_size == n
        store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})


def test_damaged_object_is_replaced_by_publish_itself(store, artifact):
    os.truncate(store.home / artifact.path / "ids.bin", 1)
    assert store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2}) == artifact
    assert is_new(store.open(artifact))


def test_object_that_another_process_has_just_rebuilt_is_not_set_aside(store, artifact, monkeypatch):
    opened = store.open

    def damaged_before(artifact, **asked):
        monkeypatch.setattr(store, "open", opened)
        raise DamagedArtifact("seen before the other process moved it")

    monkeypatch.setattr(store, "open", damaged_before)
    assert store.find(NEW) == artifact
    assert os.listdir(store.home / "quarantine") == []


def test_files_are_hashed_once_and_again_after_any_change(store, artifact, monkeypatch):
    hashed = []

    def counted(path):
        hashed.append(path.name)
        return file_digest(path)

    monkeypatch.setattr(manifest, "file_digest", counted)
    for _ in range(3):
        Store(store.home).open(artifact)
    assert hashed == ["ids.bin", "tokens.bin"]
    path = store.home / artifact.path / "ids.bin"
    before = path.stat()
    time.sleep(0.05)
    overwrite(path, 0, b"NEW")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedArtifact, match=r"ids\.bin does not have the sha256"):
        store.open(artifact)
