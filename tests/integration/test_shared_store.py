"""Results of steps shared at an address: published as a whole or not at all, fetched as published or made again."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import DamagedArtifact, ProjectError, ServerError
from tasks.core.dask_workers import Workers
from tasks.core.manifest import MANIFEST
from tasks.core.shared_store import SharedStore, open_store
from tasks.core.step import Console, Step, StepContext, forecast, run_all
from tasks.core.store import Store, digest_of
from tests.support.faults import NEW, write_new
from tests.support.object_store import SECRET

ROOT = Path(__file__).parents[2]


def step(name: str, kind: str, calls: list[str], needs: dict[str, str] | None = None) -> Step:
    """Return a step that writes what it reads, and its name after it, below a folder too."""
    def action(context: StepContext) -> None:
        calls.append(name)
        read = "".join((folder / "deep" / "text").read_text() for _, folder in sorted(context.inputs.items()))
        (context.out / "deep").mkdir()
        (context.out / "deep" / "text").write_text(f"{read}{name} ")
        (context.out / "metrics.json").write_text("[1]")

    return Step(name, kind, action, ("tasks.core.step",), {}, needs or {})


def chain(calls: list[str]) -> list[Step]:
    """Return a pipeline whose first steps are read by later ones alone."""
    return [step("read", "tables", calls), step("pack", "corpus", calls, {"tables": "read"}),
            step("train", "checkpoint", calls, {"corpus": "pack"}),
            step("build", "retriever", calls, {"checkpoint": "train", "corpus": "pack"})]


def made(store: Store, calls: list[str], steps: list[Step] | None = None) -> dict[str, str]:
    """Run the pipeline; return the digest of each result. `calls` gets the names of the steps that ran."""
    done = run_all(steps or chain(calls), store, Workers(count=0), Console())
    return {name: artifact.digest for name, artifact in done.items()}


@pytest.fixture(params=["s3", "memory", "file"])
def address(request, tmp_path) -> str:
    """Return the address of a shared folder that is not there yet, on each kind of file system."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3').address}/team/results"
    return f"file://{tmp_path}/results" if request.param == "file" else f"memory://{tmp_path.name}/results"


def test_a_second_home_makes_nothing_again(address, tmp_path):
    calls, said = list[str](), list[str]()
    first = made(SharedStore(tmp_path / "one", address), calls)
    assert calls == ["read", "pack", "train", "build"]
    other = SharedStore(tmp_path / "two", address, said.append)
    assert [each.reuse for each in forecast(chain(calls), other)] == [True] * 4
    assert made(other, calls) == first and len(calls) == 4
    for store in (other, Store(tmp_path / "two")):    # what was fetched is of the home
        assert all((store.open(store.find(key), whole=False) / "metrics.json").read_text() == "[1]"
                   for key, _ in Store(tmp_path / "one").steps())
    lacking = {manifest["kind"] for key, manifest in other.steps() if other.lacks_files(other.find_unfetched(key))}
    assert lacking == {"tables", "checkpoint"} and sum("fetches" in line for line in said) == 2


def test_files_that_a_step_reads_are_fetched_for_it(address, tmp_path):
    """Also those that this home had, and removed after it was trained."""
    calls = list[str]()
    first = SharedStore(tmp_path / "one", address)
    made(first, calls)
    first.remove_files_except(next(first.find_unfetched(key) for key, manifest in first.steps()
                            if manifest["kind"] == "checkpoint"))
    for home in ("one", "two"):
        more = [*chain(calls), step("look", "report", calls, {"tables": "read", "checkpoint": "train"})]
        calls.clear()
        store = SharedStore(tmp_path / home, address)
        made(store, calls, more)
        assert calls == (["look"] if home == "one" else [])
        (key,) = [key for key, manifest in store.steps() if manifest["kind"] == "report"]
        assert (store.open(store.find(key)) / "deep" / "text").read_text() == "read pack train read look "


def test_without_the_address_a_home_is_as_it_was(address, tmp_path):
    """Objects whose files were not fetched count as removed, and are made again where they are read."""
    calls = list[str]()
    first = made(SharedStore(tmp_path / "one", address), calls)
    made(SharedStore(tmp_path / "two", address), calls)
    calls.clear()
    more = [*chain(calls), step("look", "report", calls, {"checkpoint": "train"})]
    assert made(open_store(tmp_path / "two", ""), calls, more).items() >= first.items()
    assert calls == ["train", "look"]
    forecast(chain(calls), SharedStore(tmp_path / "three", address))    # it asked for nothing but what there is
    calls.clear()
    alone = open_store(tmp_path / "three", "")
    assert made(alone, calls, more).items() >= first.items() and calls[-2:] == ["build", "look"]
    kinds = {manifest["kind"]: key for key, manifest in alone.steps()}
    assert all(alone.open(alone.find(kinds[kind])) for kind in ("corpus", "report"))


@pytest.mark.parametrize("kind", ["tables", "corpus", "checkpoint", "retriever"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest", "no manifest", "ref"])
def test_what_is_not_as_it_was_published_is_refused_and_made_again(kind, damage, tmp_path):
    """By the same run, which also mends it for all others."""
    import fsspec

    address = f"memory://{tmp_path.name}-{kind}-{damage.replace(' ', '-')}/results"
    calls, files, said = list[str](), fsspec.filesystem("memory"), list[str]()
    first = SharedStore(tmp_path / "one", address)
    digests = made(first, calls)
    name = {"tables": "read", "corpus": "pack", "checkpoint": "train", "retriever": "build"}[kind]
    key = next(key for key, manifest in first.steps() if manifest["kind"] == kind)
    root = address.removeprefix("memory:/")
    place = f"{root}/objects/{digests[name]}/" + (MANIFEST if "manifest" in damage else "deep/text")
    if damage == "ref":
        files.pipe_file(f"{root}/refs/steps/{key}", b'{"digest": "../../etc"}')
    elif damage in ("gone", "no manifest"):
        files.rm_file(place)
    else:
        whole = files.cat_file(place)
        files.pipe_file(place, whole[:-1] if damage == "cut" else bytes([whole[0] ^ 1]) + whole[1:])
    calls.clear()
    more = [*chain(calls), step("look", "report", calls, {"tables": "read", "checkpoint": "train"})]
    store = SharedStore(tmp_path / "two", address, said.append)
    assert made(store, calls, more).items() >= digests.items()
    assert name in calls and calls[-1] == "look" and set(calls) <= {"read", "pack", "train", "build", "look"}
    assert damage == "ref" or any("it is not used, and made again" in line for line in said)
    calls.clear()
    assert made(SharedStore(tmp_path / "three", address), calls, more).items() >= digests.items()
    assert calls == []


def test_a_manifest_that_leads_out_of_its_folder_is_refused(address, tmp_path):
    """A result whose every hash is right, made by somebody who may write to the address."""
    store = SharedStore(tmp_path / "home", address)
    for path in ("../../../escaped", "/tmp/escaped", "a/../../b", "SPENT"):
        evil = json.dumps({"version": 1, "kind": "corpus", "key": NEW, "inputs": {}, "about": {}, "files": [
            {"path": path, "size": 1, "sha256": digest_of("x")}]}).encode()
        digest = hashlib.sha256(evil).hexdigest()
        store.remote.write(f"objects/{digest}/{MANIFEST}", evil)
        store.remote.write(f"refs/steps/{NEW}", json.dumps({"digest": digest}).encode())
        assert store.find(NEW) is None and digest in store.refused
    assert not list((tmp_path / "home" / "objects").iterdir()) and not list((tmp_path / "home" / "tmp").iterdir())


def test_a_result_of_another_step_is_refused(address, tmp_path):
    store = SharedStore(tmp_path / "one", address)
    artifact = store.publish(NEW, "corpus", {}, write_new)
    other = digest_of("another step")
    store.remote.write(f"refs/steps/{other}", json.dumps({"digest": artifact.digest}).encode())
    assert SharedStore(tmp_path / "two", address).find(other) is None


def test_a_newer_layout_is_left_alone(address, tmp_path):
    SharedStore(tmp_path / "one", address).remote.write("FORMAT", b"2\n")
    with pytest.raises(ProjectError, match="made by a newer version"):
        SharedStore(tmp_path / "two", address)


def test_files_come_first_then_the_manifest_then_the_ref(s3, tmp_path):
    store = SharedStore(tmp_path / "home", s3.address + "/shared")
    s3.server.requests.clear()
    artifact = store.publish(NEW, "corpus", {}, write_new)
    puts = [path.removeprefix(f"/{s3.name}/shared/") for path in s3.asked("PUT")]
    assert set(puts[:-2]) == {f"{artifact.path}/ids.bin", f"{artifact.path}/part/tokens.bin"}
    assert puts[-2:] == [f"{artifact.path}/{MANIFEST}", f"refs/steps/{NEW}"]
    before = len(s3.server.requests)
    assert store.find(NEW) == artifact and len(s3.server.requests) == before    # it knows that it has sent it
    assert SharedStore(tmp_path / "home", s3.address + "/shared").find(NEW) == artifact
    assert len(s3.asked("PUT")) == len(puts)    # one request tells that it is there


@pytest.mark.parametrize("last", ["part/tokens.bin", MANIFEST, f"refs/steps/{NEW}"])
def test_killed_at_any_request_of_a_publication_nothing_is_there_and_the_next_run_publishes(last, s3, tmp_path):
    """By SIGKILL, before the file, the manifest and the ref are written."""
    address, reached, go_on = f"{s3.address}/shared", threading.Event(), threading.Event()

    def hold(method, path):
        if method == "PUT" and path.endswith(last):
            reached.set()
            go_on.wait(60)
            raise ConnectionError    # what was under way never arrives

    code = ("from pathlib import Path; from tasks.core.shared_store import SharedStore; "
            "from tests.support.faults import NEW, write_new; "
            f"SharedStore(Path({str(tmp_path / 'one')!r}), {address!r}).publish(NEW, 'corpus', {{}}, write_new)")
    s3.server.before = hold
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        assert reached.wait(60)
        os.kill(process.pid, signal.SIGKILL)
    s3.server.before = lambda *request: None
    go_on.set()
    assert SharedStore(tmp_path / "two", address).find(NEW) is None
    artifact = SharedStore(tmp_path / "one", address).find(NEW)    # HOME had it, so it is sent
    assert artifact and SharedStore(tmp_path / "two", address).find(NEW) == artifact


@pytest.fixture
def frequent_thread_switches():
    """Let threads take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


def test_of_many_that_begin_at_once_none_meets_half_a_file(address, tmp_path, frequent_thread_switches):
    for attempt in range(20):
        gate = threading.Barrier(4)

        def begin(number: int, attempt: int = attempt, gate: threading.Barrier = gate) -> bytes | None:
            gate.wait(60)
            return SharedStore(tmp_path / f"home{number}", f"{address}/{attempt}").remote.read("FORMAT")

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(begin, range(4)))) == 1


@pytest.mark.parametrize("same", [True, False])
def test_of_two_that_publish_the_same_step_at_once_one_is_kept(same, address, tmp_path):
    """Where they made the same, both write the same bytes; where not, every home keeps its own."""
    gate = threading.Barrier(4)

    def publish(number: int) -> tuple[Store, str]:
        def write(folder: Path) -> None:
            write_new(folder)
            if not same:
                (folder / "number").write_text(str(number))
            gate.wait(60)

        store = SharedStore(tmp_path / f"home{number}", address)
        return store, store.publish(NEW, "corpus", {}, write).digest

    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(publish, range(4)))
    fetched = SharedStore(tmp_path / "other", address).find(NEW)
    assert fetched and fetched.digest in {digest for _, digest in published}
    assert len({digest for _, digest in published}) == (1 if same else 4)
    assert all(store.open(store.find(NEW)).name == digest for store, digest in published)


def test_an_address_that_fails_during_a_run_is_said_once_and_caught_up(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    address, calls, said = f"{s3.address}/shared", list[str](), list[str]()

    def fail(method, path):
        if "objects" in path:
            raise ConnectionError

    store = SharedStore(tmp_path / "one", address, said.append)
    store.remote._opened[0].retries = 1
    s3.server.before = fail
    first = made(store, calls)
    assert len(calls) == 4 and len([line for line in said if "this run publishes no more there" in line]) == 1
    s3.server.before = lambda *request: None
    assert not [key for key in s3.keys("shared") if key.startswith("refs")]
    made(SharedStore(tmp_path / "one", address), calls)
    assert made(SharedStore(tmp_path / "two", address), calls) == first and len(calls) == 4


def test_who_may_only_read_there_fetches_on_after_a_new_result(tmp_path, monkeypatch):
    address, calls, said = f"memory://{tmp_path.name}/results", list[str](), list[str]()
    made(SharedStore(tmp_path / "one", address), calls)
    for name in ("write", "upload", "delete"):
        monkeypatch.setattr(f"tasks.core.remote.Remote.{name}", Mock(side_effect=ServerError("it refuses access")))
    more = [*chain(calls), step("embed", "vectors", calls, {"corpus": "pack"}),
            step("look", "report", calls, {"checkpoint": "train"})]
    made(SharedStore(tmp_path / "two", address, said.append), calls, more)
    assert calls == ["read", "pack", "train", "build", "embed", "look"]    # train's files were fetched
    assert len([line for line in said if "this run" in line]) == 1


def test_an_address_that_cannot_be_used_ends_a_run_before_it_begins(s3, tmp_path, monkeypatch):
    with pytest.raises(ServerError, match="s3://no-such-bucket-of-ours/x is not there"):
        SharedStore(tmp_path / "home", "s3://no-such-bucket-of-ours/x")
    assert not s3.files.exists("no-such-bucket-of-ours")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ServerError, match="cannot be used: Could not connect") as error:
        SharedStore(tmp_path / "home", s3.address)
    assert SECRET not in str(error.value)


def test_a_damaged_object_of_home_is_not_published(s3, tmp_path):
    """It is fetched instead, where the address has it."""
    address = f"{s3.address}/shared"
    store = SharedStore(tmp_path / "one", address)
    artifact = store.publish(NEW, "corpus", {}, write_new)
    (store.home / artifact.path / "ids.bin").write_bytes(b"damaged")
    with pytest.raises(DamagedArtifact):
        store.open(artifact)
    again = SharedStore(tmp_path / "one", address).find(NEW)
    assert again == artifact and (store.open(again) / "ids.bin").read_bytes() == b"new" * 1000
