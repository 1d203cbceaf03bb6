"""What may be published, what a manifest says, and refs."""

import errno
import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import DamagedArtifact, ProjectError, UsageError
from tasks.core.files import file_digest
from tasks.core.store import Artifact, Store, digest_of
from tests.support.faults import NEW, OLD, is_new, one, put, stranded, write_new


def test_manifest_says_what_and_from_what(store, artifact):
    manifest = store.manifest(artifact)
    sizes = {file["path"]: file["size"] for file in manifest.pop("files")}
    assert sizes == {"ids.bin": 3000, "part/tokens.bin": 2048}
    head = {"version": 1, "kind": "prepare", "key": NEW, "inputs": {"raw": "r2"}, "about": {"rows": 2}}
    assert manifest == head
    assert artifact.digest == file_digest(store.home / artifact.path / "MANIFEST.json")
    assert Artifact(**json.loads(json.dumps(asdict(artifact)))) == artifact


def test_digest_does_not_depend_on_clock_or_home(tmp_path, monkeypatch):
    digests = set()
    for days in (0, -1, 3650):

        def write(folder, days=days):
            write_new(folder)
            os.utime(folder / "ids.bin", (1e9 + days * 86400,) * 2)

        with monkeypatch.context() as patch:
            now = time.time() + days * 86400
            patch.setattr(time, "time", lambda now=now: now)
            digests.add(Store(tmp_path / f"home{days}").publish(NEW, "prepare", {"b": "1", "a": "2"}, write))
    assert len(digests) == 1


def link_away(folder):
    (folder / "a.bin").symlink_to("/etc/passwd")


def link_folder_away(folder):
    (folder / "a").symlink_to("/etc")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("write", [link_away, link_folder_away, lambda folder: os.mkfifo(folder / "a.bin")])
def test_only_regular_files_are_published(store, write):
    with pytest.raises(ProjectError, match="is not a regular file, so it cannot be published"):
        store.publish(NEW, "prepare", {}, write)
    assert (store.find(NEW), stranded(store.home), os.listdir(store.home / "objects")) == (None, [], [])
    assert Path("/etc/passwd").exists()


@pytest.mark.parametrize("about", [{"loss": float("nan")}, {"path": Path("x")}])
def test_about_is_json(store, about):
    with pytest.raises((TypeError, ValueError)):
        store.publish(NEW, "prepare", {}, one(), about)
    assert (store.find(NEW), stranded(store.home)) == (None, [])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit(3), RuntimeError("loss is NaN")])
def test_any_exception_publishes_nothing(store, artifact, error):
    def write(folder):
        write_new(folder)
        raise error

    with pytest.raises(type(error)):
        store.publish(OLD, "prepare", {}, write)
    assert (store.find(OLD), stranded(store.home), os.listdir(store.home / "objects")) == (None, [], [artifact.digest])
    assert store.collect() == []  # gc.lock is free again


def test_removed_files_are_gone_and_the_artifact_is_known(store, monkeypatch):
    def write(folder):
        for name in ("a.bin", "b.bin", "metrics.json"):
            put(folder / name, name.encode())

    artifact = store.publish(OLD, "checkpoint", {}, write)
    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):    # before the first file is gone
        patch.setattr(os, "unlink", killed)
        store.remove_files_except(artifact, "metrics.json")
    assert store.find(OLD) == artifact and store.lacks_files(artifact)
    store.remove_files_except(artifact, "metrics.json")
    assert store.find(OLD) == artifact
    assert {path.name for path in store.open(artifact, whole=False).iterdir()} == {
        "MANIFEST.json", "SPENT", "metrics.json"}
    with pytest.raises(DamagedArtifact, match="was removed, as nothing was to read it"):
        store.open(artifact)
    assert store.publish(OLD, "checkpoint", {}, write) == artifact and store.open(artifact)
    store.remove_files_except(artifact, "metrics.json")
    store.forget(OLD)
    assert store.find(OLD) is None and not (store.home / artifact.path).exists()
    assert store.publish(OLD, "checkpoint", {}, write) == artifact and not store.lacks_files(artifact)
    store.remove_files_except(artifact, "metrics.json")
    (store.home / artifact.path / "metrics.json").write_bytes(b"metrics!json")
    assert store.find(OLD) is None


def test_what_an_input_has_too_is_a_link_to_it(store):
    def write(folder):
        os.mkdir(folder / "encoder")
        put(folder / "encoder" / "same.bin", b"same" * 100)
        put(folder / "other.bin", b"other")

    before = store.publish(OLD, "checkpoint", {}, one(b"same" * 100))
    after = store.publish(NEW, "retriever", {"encoder": before.digest, "raw": "r1"}, write)
    linked = store.open(after) / "encoder" / "same.bin"
    assert linked.samefile(store.open(before) / "a.bin") and linked.read_bytes() == b"same" * 100
    assert (store.open(after) / "other.bin").stat().st_nlink == 1 and len(list(store.open(after).iterdir())) == 3
    store.remove_files_except(before)
    assert store.open(after) and linked.stat().st_nlink == 1


def test_disk_full_leaves_what_is_published(store, artifact):
    def write(folder):
        put(folder / "a.bin", b"x" * 100)
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    with pytest.raises(ProjectError, match=r"cannot publish prepare: .*No space left on device") as caught:
        store.publish(OLD, "prepare", {}, write)
    assert str(store.home) in caught.value.what
    assert "free space" in caught.value.hint
    assert (store.find(OLD), stranded(store.home)) == (None, [])
    assert is_new(store.open(artifact))


@pytest.mark.parametrize("error", [OSError("1049767 requested and 73696 written"),    # NumPy's
                                   RuntimeError("Error while serializing: I/O error: No space left on device (os error "
                                                "28)")])    # as of safetensors
def test_a_full_disk_is_known_by_the_words_of_an_error_without_a_number(store, error):
    told = rf"cannot publish prepare: {store.home}: No space left on device"
    with pytest.raises(ProjectError, match=told) as caught:
        store.publish(OLD, "prepare", {}, Mock(side_effect=error))
    assert "free space" in caught.value.hint


def test_a_step_does_not_write_the_manifest(store):
    with pytest.raises(FileExistsError, match=r"MANIFEST\.json"):
        store.publish(NEW, "prepare", {}, one(b"{}", "MANIFEST.json"))
    assert (store.find(NEW), stranded(store.home)) == (None, [])


def test_unexpected_os_error_is_not_explained_away(store):
    with pytest.raises(FileNotFoundError):
        store.publish(OLD, "prepare", {}, lambda folder: put(folder / "none" / "a", b""))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a\n", "a\0", "é", "a" * 129])
def test_names_are_checked(store, name):
    for action in (
        lambda: store.set_ref("models", name, {}),
        lambda: store.set_ref(name, "champion", {}),
        lambda: store.get_ref("models", name),
        lambda: store.find(name),
        lambda: store.publish(name, "prepare", {}, one()),
        lambda: store.publish(NEW, name, {}, one()),
        lambda: store.scratch(name),
        lambda: store.drop_scratch(name),
        lambda: store.collect([name]),
    ):
        with pytest.raises(UsageError, match="cannot be a name"):
            action()


def test_refs_move(store):
    assert store.get_ref("models", "champion") is None
    for value in ({"digest": NEW}, {"digest": OLD, "gates": [1, None, 0.5]}):
        store.set_ref("models", "champion", value)
        assert store.get_ref("models", "champion") == value


def test_damaged_ref_names_its_file(store):
    store.set_ref("models", "champion", {"digest": NEW})
    os.truncate(store.home / "refs/models/champion", 5)
    with pytest.raises(DamagedArtifact, match="refs/models/champion is not JSON"):
        store.get_ref("models", "champion")


def test_steps_come_latest_last(store):
    for n in (3, 1, 2):
        store.publish(digest_of(n), "train", {}, one(), {"n": n})
        os.utime(store.home / "refs/steps" / digest_of(n), (n, n))
    gone = store.publish(digest_of(4), "train", {}, one(), {"n": 4})
    shutil.rmtree(store.home / gone.path)
    assert [(key, manifest["about"]["n"]) for key, manifest in store.steps()] == [(digest_of(n), n) for n in (1, 2, 3)]


def test_a_step_that_was_used_in_the_future_is_not_the_last(store):
    """The clock was ahead; that of a network disk may be so by seconds."""
    now = time.time()
    for n, seconds in enumerate((9e6, 8e6, -60, 5)):
        store.publish(digest_of(n), "train", {}, one(), {"n": n})
        os.utime(store.home / "refs/steps" / digest_of(n), (now + seconds, now + seconds))
    assert [manifest["about"]["n"] for _, manifest in store.steps()] == [1, 0, 2, 3]
    store.find(digest_of(1))
    assert [manifest["about"]["n"] for _, manifest in store.steps()] == [0, 2, 1, 3]


def test_scratch_stays_until_it_is_dropped(store):
    put(store.scratch(NEW) / "step-1", b"x")
    store.collect()
    assert (Store(store.home).scratch(NEW) / "step-1").read_bytes() == b"x"
    store.drop_scratch(NEW)
    store.drop_scratch(NEW)
    assert os.listdir(store.scratch(NEW)) == []


def test_home_is_private(store, artifact):
    folders = [store.home, *(path for path in store.home.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o077 for path in folders if path.name != "part"} == {0}


def test_a_home_that_was_open_is_closed(store, cli):
    """By whatever uses it; a folder of other things is not taken for one."""
    home = store.home
    for use in (lambda: Store(home), lambda: Store(home, create=False),
                *(lambda words=words: cli(*words, "--home", str(home)) for words in (
                    ("models",), ("runs",), ("status",), ("down",), ("gc",), ("predict", "x")))):
        home.chmod(0o755)
        use()
        assert home.stat().st_mode & 0o777 == 0o700
    other = home.parent / "other"
    other.mkdir(mode=0o755)
    other.chmod(0o755)
    put(other / "file", b"")
    with pytest.raises(UsageError, match="holds other files, and others can look into it: its mode is 0755"):
        Store(other)
    assert other.stat().st_mode & 0o777 == 0o755 and os.listdir(other) == ["file"]


def test_a_home_whose_set_up_was_cut_off_in_an_open_folder_is_set_up_by_the_next(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.core.files.write_file", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(ProjectError, match="cannot set up HOME"):
            Store(home)
    assert (home / "objects").exists() and not (home / "FORMAT").exists()
    assert Store(home).find(NEW) is None and home.stat().st_mode & 0o777 == 0o700


def test_digests():
    assert digest_of({"a": 1, "b": [2, None]}) == digest_of({"b": [2, None], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1]) != digest_of([2, "1"])
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # printf {} | sha256sum
    assert file_digest(Path("/dev/null")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
