"""Raw data sets at addresses: fetched from a real S3 server, as they are at one moment, and reused while unchanged."""

import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_contracts.errors import ProjectError, ServerError, UsageError
from tasks.core.remote import Remote, checked_address
from tasks.core.store import Store
from tasks.data import fetch
from tasks.data.fetch import fetched
from tasks.data.sources import describe
from tasks.home_gc import collect
from tasks.plan import pipeline
from tasks.tracking.tracker import Tracker
from tests.support.object_store import SECRET
from tests.support.planted import write_planted


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_planted(tmp_path / "tiny", train=60, test=10, labels=8)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Store(tmp_path / "home").home


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def used(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in describe(folder).files.values()}


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_what_is_fetched_is_the_data_set_and_nothing_else(form, request, s3, home):
    folder = request.getfixturevalue(form)
    (folder / "notes.bin").write_bytes(b"not of the data set")
    (folder / "old").mkdir()
    (folder / "old" / "trn.json.gz").write_bytes(b"nor this")
    (folder / "dataset.json").write_text(json.dumps({"name": "theirs"}))
    copy = fetched(s3.put(folder, "sets/mine"), home)
    assert contents(copy) == used(folder) | {"dataset.json": (folder / "dataset.json").read_bytes()}
    assert copy.is_relative_to(home / "cache" / "data") and copy.name == "mine"
    ours, theirs = (pipeline(place, "ngame", "cpu", {}) for place in (copy, folder))
    assert [step.about() for step in ours.prepare] == [step.about() for step in theirs.prepare]    # the same keys


def test_a_second_run_fetches_nothing_and_changed_data_is_another(tiny, s3, home):
    address, said = s3.put(tiny, "tiny"), list[str]()
    first = fetched(address, home, said.append)
    s3.server.requests.clear()
    assert fetched(f"{address}/", home, said.append) == first and len(said) == 1
    assert not s3.asked("GET", "/tiny/")
    (tiny / "lbl.json.gz").write_bytes((tiny / "tst.json.gz").read_bytes())
    s3.put(tiny, "tiny")
    second = fetched(address, home)
    assert second != first and contents(second) == used(tiny)


def test_a_copy_that_was_damaged_is_fetched_again(tiny, s3, home):
    address = s3.put(tiny, "tiny")
    damaged = fetched(address, home) / "trn.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert contents(fetched(address, home)) == used(tiny)


@pytest.mark.parametrize("after", [0, 2])
def test_data_that_is_replaced_while_it_is_fetched_is_refused(after, tiny, s3, home):
    """Whether the file was read already or not: what is fetched was all there at one moment."""
    address, gets = s3.put(tiny, "tiny"), []

    def replace(method, path):
        if method == "GET" and "/tiny/" in path:
            gets.append(path)
            if len(gets) == after + 1:
                s3.server.before = lambda *request: None
                s3.files.pipe_file(f"{s3.name}/tiny/group.raw.txt", b"group 0\n" * 9)

    s3.server.before = replace
    with pytest.raises(ProjectError, match=f"{address} has changed while it was fetched"):
        fetched(address, home)
    assert not list((home / "cache" / "data").iterdir())
    assert (fetched(address, home) / "group.raw.txt").read_bytes() == b"group 0\n" * 9


def test_a_fetch_that_was_killed_goes_on(tiny, s3, home, monkeypatch):
    """By SIGKILL, in the middle of a file; the bytes that are there are not fetched again."""
    big = b"".join(b"group %d\n" % number for number in range(3_000_000))    # five blocks
    (tiny / "group.raw.txt").write_bytes(big)
    address, reached, go_on, blocks = s3.put(tiny, "tiny"), threading.Event(), threading.Event(), []

    def hold(method, path):
        if method == "GET" and path.endswith("group.raw.txt"):
            blocks.append(path)
            if len(blocks) == 3:
                reached.set()
                go_on.wait(60)

    s3.server.before = hold
    code = f"from pathlib import Path; from tasks.data.fetch import fetched; fetched({address!r}, Path({str(home)!r}))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2]) as process:
        assert reached.wait(60)
        os.kill(process.pid, signal.SIGKILL)
    go_on.set()
    (part,) = (home / "cache" / "data").iterdir()
    here, said = (part / "tiny" / "group.raw.txt").stat().st_size, list[str]()
    assert part.name.endswith(".part") and fetch.BLOCK <= here < len(big)
    s3.server.before = lambda *request: None
    s3.server.requests.clear()
    assert contents(fetched(address, home, said.append)) == used(tiny)
    assert "MB are here" in said[0]
    assert len(s3.asked("GET", "group.raw.txt")) == -(-(len(big) - here) // fetch.BLOCK)


def test_a_cache_that_no_run_has_used_lately_is_collected(tiny, s3, home):
    store, tracker = Store(home), Tracker(home)
    kept, old = (fetched(s3.put(tiny, name), home) for name in ("kept", "old"))
    os.utime(old.parent, (1e9, 1e9))
    for path in (old, *old.rglob("*")):
        os.utime(path, (1e9, 1e9))
    before = os.stat(old.parent).st_ctime
    assert collect(store, tracker, -1.0, dry_run=True).counts["data"] == 2
    assert collect(store, tracker, 1.0).counts["data"] == 0 and before    # a change of times is a use, too
    collect(store, tracker, -1.0)
    assert not list((home / "cache" / "data").iterdir())
    assert kept != fetched(f"{s3.address}/kept", home).parent


@pytest.mark.parametrize(("address", "kind", "what"), [
    ("s3://{bucket}/nowhere", ServerError, "is not there"),
    ("s3://no-such-bucket-of-ours/tiny", ServerError, "is not there"),
    ("s3://{bucket}/empty", UsageError, "s3://{bucket}/empty holds no training queries; looked for trn.json.gz"),
    ("s4://{bucket}/tiny", UsageError, "no file system that fsspec knows"),
    ("s3://", UsageError, "not the address of a folder"),
    ("simplecache::s3://{bucket}/tiny", UsageError, "is not the address of a folder"),
    ("s3://me:hunter2@{bucket}/tiny", UsageError, "with credentials in it is not used"),
    ("https://example.invalid/tiny?X-Amz-Signature=hunter2", UsageError, "with credentials in it is not used")])
def test_an_address_that_cannot_be_used_is_named(address, kind, what, s3, home):
    s3.files.pipe_file(f"{s3.name}/empty/readme.txt", b"")
    with pytest.raises(kind, match=what.format(bucket=s3.name)) as error:
        fetched(address.format(bucket=s3.name), home)
    assert "hunter2" not in str(error.value) and error.value.hint
    assert not s3.files.exists("no-such-bucket-of-ours")


def test_no_credentials_no_network_and_no_package_are_told_apart(tiny, s3, home, monkeypatch):
    address = s3.put(tiny, "tiny")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ServerError, match="cannot be used: Could not connect to the endpoint") as error:
        fetched(address, home)
    assert SECRET not in str(error.value) and error.value.exit_code == 5
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.server.address)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(ServerError, match=r"refuses access: .*credentials.*\nhint: give credentials"):
        fetched(address, home)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"gs:// needs a package.*\nhint: pip install 'xcflow\[gcs\]'"):
        fetched("gs://bucket/tiny", home)


def test_secrets_of_the_environment_are_in_no_message(s3, monkeypatch):
    def fail(*_, **__):
        raise OSError(f"signature of {SECRET} at https://me:hunter2@host/ is wrong")

    remote = Remote(s3.address)
    monkeypatch.setattr(remote._opened[0], "ls", fail)
    with pytest.raises(ServerError, match=r"signature of \.\.\. at https://host/ is wrong"):
        remote.files()


@pytest.mark.parametrize(("address", "whole"), [
    ("file://sets/tiny", "file://{here}/sets/tiny"), ("file://../tiny/", "file://{above}/tiny"),
    ("local://sets/tiny", "file://{here}/sets/tiny"), ("LOCAL:///sets/tiny", "file:///sets/tiny")])
def test_a_folder_of_this_machine_has_one_address_wherever_it_is_read(address, whole, tmp_path, monkeypatch):
    """A scheduled run has another current folder than the command that gave it the address."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"{address} is not the address of a folder of this machine") as error:
        checked_address(address)
    assert error.value.hint == whole.format(here=tmp_path, above=tmp_path.parent)


def test_a_folder_of_this_machine_is_read_in_place(tiny, home):
    assert fetched(tiny, home) == tiny and fetched(f"file://{tiny}", home) == tiny
    assert checked_address("S3://bucket/a@b/") == "s3://bucket/a@b"
    assert not (home / "cache").exists()


def test_any_file_system_of_fsspec_will_do(tiny, home):
    import fsspec

    files = fsspec.filesystem("memory")
    for path in tiny.iterdir():
        files.pipe_file(f"/any/tiny/{path.name}", path.read_bytes())
    first = fetched("memory://any/tiny", home)
    assert contents(first) == used(tiny) and fetched("memory://any/tiny", home) == first
    files.pipe_file("/any/tiny/group.raw.txt", (tiny / "group.raw.txt").read_bytes())    # the same bytes, written later
    again = fetched("memory://any/tiny", home)
    assert again != first and contents(again) == contents(first)


@pytest.mark.parametrize("version", ["blob_id", "sha", "modify", "modificationTime", "Digest", None])
def test_data_that_changes_and_keeps_its_size_is_fetched_again(version, tiny, home, monkeypatch):
    """As hf://, github://, ftp://, webhdfs:// and http:// tell it; a store that tells nothing is refused."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    def listed(files: MemoryFileSystem, path: str, detail: bool = True, **_: object) -> list[dict]:
        entries = [{"name": name, "type": "file", "size": len(file.getvalue())}
                   for name, file in files.store.items() if name.startswith(f"{path}/")]
        return [{**entry, version: f"{zlib.crc32(files.cat(entry['name']))}"} if version else entry
                for entry in entries]

    files = fsspec.filesystem("memory")
    for path in tiny.iterdir():
        files.pipe_file(f"/{version}/tiny/{path.name}", path.read_bytes())
    monkeypatch.setattr(MemoryFileSystem, "ls", listed)
    if not version:
        with pytest.raises(ServerError, match=r"memory://None/tiny does not tell when .* was changed\nhint: copy the"):
            fetched("memory://None/tiny", home)
        return
    first, text = fetched(f"memory://{version}/tiny", home), (tiny / "group.raw.txt").read_bytes()
    files.pipe_file(f"/{version}/tiny/group.raw.txt", text[::-1])
    again = fetched(f"memory://{version}/tiny", home)
    assert (again / "group.raw.txt").read_bytes() == text[::-1] and (first / "group.raw.txt").read_bytes() == text
    assert fetched(f"memory://{version}/tiny", home) == again


def test_commands_take_an_address(tiny, s3, cli, tmp_path):
    """Refused ones end as other bad addresses do, before a home is made, and show no secret."""
    address = s3.put(tiny, "tiny")
    code, _, err = cli("run", "--data", f"{s3.address}/nowhere")
    assert code == 5 and f"{s3.address}/nowhere is not there" in err and SECRET not in err
    code, _, err = cli("run", "--data", f"s3://me:hunter2@{s3.name}/tiny")
    assert code == 2 and "credentials" in err and "hunter2" not in err
    assert not (tmp_path / ".xc").exists()
    code, out, err = cli("plan", "--data", address, "--json")
    planned = json.loads(out)
    assert code == 0 and planned["data"]["folder"] == planned["options"]["data"]["value"] == address, err
    assert "fetching" in err and planned["data"]["name"] == "tiny"
    assert planned["data"]["digest"] == json.loads(cli("plan", "--data", str(tiny), "--json")[1])["data"]["digest"]


def test_a_folder_that_a_web_server_lists_is_fetched(tiny, home):
    """Its listing has names alone; sizes and times come with each file."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tiny.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        address, said = f"http://127.0.0.1:{server.server_port}/{tiny.name}", list[str]()
        try:
            first = fetched(address, home, said.append)
            told = len(said)
            again = fetched(address, home, said.append)
        finally:
            server.shutdown()
    assert used(first) == used(tiny) and again == first and told and len(said) == told
