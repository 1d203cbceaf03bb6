"""Processes side by side: locks, races for one step, collection beside writers, rights."""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from data_contracts.errors import ProjectError, UsageError
from flows.prefect_state import page_of_this_run
from tasks.core import manifest
from tasks.core.files import held, hold, locked
from tasks.core.store import Artifact, Store, digest_of
from tests.support.faults import NEW, OLD, child, ended, one, pointing_to, put, stranded, with_old, write_new


def test_a_scheduled_run_is_to_be_cancelled_where_it_shows_not_killed(store, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert page_of_this_run() == ""
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "7")
    with store.run_lock(page=page_of_this_run()), pytest.raises(UsageError, match=", a scheduled run") as caught, \
            store.run_lock():
        pass
    assert caught.value.hint == "wait for it, or cancel it: http://127.0.0.1:4200/runs/flow-run/7"
    with store.run_lock(), pytest.raises(UsageError) as caught, store.run_lock():
        pass
    assert caught.value.hint.endswith(f"stop it: kill {os.getpid()}")


def test_second_run_names_the_holder_and_a_kill_frees_the_lock_at_once(store):
    def hold(say):
        with Store(store.home).run_lock():
            program = subprocess.Popen(["sleep", "60"], close_fds=False)
            fork = os.fork()
            if fork == 0:
                time.sleep(60)
                os._exit(0)
            say(f"{program.pid} {fork}")
            time.sleep(60)

    with child(hold) as (pid, lines), ExitStack() as stack:
        children = [int(number) for number in lines.readline().split()]
        for survivor in children:
            stack.callback(os.kill, survivor, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(UsageError, match=f"is in use by process {pid}\n"), store.run_lock():
            pass
        assert time.monotonic() - start < 30    # it does not wait for the holder, which sleeps for 60 s
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for survivor in children:
            os.kill(survivor, 0)  # neither inherits the lock
        start = time.monotonic()
        with store.run_lock():
            assert (store.home / "lock").read_text() == f"{os.getpid()}\n"
            assert time.monotonic() - start < 30


def test_what_a_fork_inherits_does_not_end_a_lock_of_its_own(tmp_path):
    """The number of the file that was closed in it may be that of the file which it locks."""
    user = {Path()}    # any object that can be referred to weakly
    hold(tmp_path, user)

    def lock(say):
        nonlocal user
        with locked(tmp_path, fcntl.LOCK_EX, 60.0):
            user = None    # the last to hold the folder
            say(held(tmp_path))

    with child(lock) as (_, lines):
        user = None
        assert lines.readline() == "True\n"


def test_run_lock_is_freed_after_an_error(store):
    with pytest.raises(BlockingIOError), store.run_lock():
        raise BlockingIOError("of the body, not of the lock")
    with store.run_lock(), pytest.raises(UsageError, match=f"process {os.getpid()}"), store.run_lock():
        pass


def test_same_step_twice_has_one_winner(store):
    for n in range(5):
        key = digest_of(n)

        def publish(content, key=key):
            def action(say):
                say(Store(store.home).publish(key, "prepare", {}, one(content)).digest)

            return action

        with child(publish(b"1" * 99)) as (_, first), child(publish(b"2" * 99)) as (_, second):
            answers = {first.readline().strip(), second.readline().strip()}
        assert answers == {store.find(key).digest}
        assert (store.open(store.find(key)) / "a.bin").read_bytes() in (b"1" * 99, b"2" * 99)


def test_winner_is_taken_and_the_loser_collected(store):
    winner = store.publish(NEW, "prepare", {}, one(b"1"))
    assert store.publish(NEW, "prepare", {}, one(b"2")) == winner == store.find(NEW)
    assert len(store.collect()) == 1
    assert (store.open(winner) / "a.bin").read_bytes() == b"1"


def test_same_object_committed_by_two(store):
    def late(folder):
        write_new(folder)
        store.publish(NEW, "prepare", {}, write_new)  # another gets there first

    assert store.publish(NEW, "prepare", {}, late) == store.find(NEW)
    assert stranded(store.home) == []


def test_collection_waits_for_a_writer_and_then_gives_up(store, artifact, monkeypatch):
    monkeypatch.setattr("tasks.core.store.GC_SECONDS", 0.1)
    go, going = threading.Event(), threading.Event()

    def write(folder):
        put(folder / "a.bin", b"slow")
        going.set()
        assert go.wait(30)

    made = []
    thread = threading.Thread(target=lambda: made.append(store.publish(OLD, "prepare", {}, write)))
    thread.start()
    assert going.wait(30)
    with pytest.raises(UsageError, match="a step is being published"):
        store.collect()
    store.sweep()
    assert len(stranded(store.home)) == 1
    go.set()
    thread.join()
    assert store.collect() == []
    assert (store.open(made[0]) / "a.bin").read_bytes() == b"slow"


def test_collection_beside_writers_deletes_nothing_in_flight(store):
    def writer(name):
        def action(say):
            mine = Store(store.home)
            for n in range(15):
                artifact = mine.publish(digest_of([name, n]), "prepare", {}, one(f"{name}{n}".encode()))
                mine.set_ref("models", name, asdict(artifact))
                say(f"{n} {artifact.digest}")

        return action

    with child(writer("a")) as (_, a), child(writer("b")) as (_, b):
        said = []
        for lines in zip(a, b, strict=True):
            assert store.collect() == []
            said += [(name, *line.split()) for name, line in zip("ab", lines, strict=True)]
    assert len(said) == 30
    for name, n, digest in said:
        assert (store.open(Artifact.of(digest)) / "a.bin").read_bytes() == f"{name}{n}".encode()


@pytest.mark.parametrize("clean", [Store.collect, Store.sweep])
def test_what_a_killed_writer_left_is_removed(store, artifact, clean):
    def write(folder):
        write_new(folder)
        os.kill(os.getpid(), signal.SIGKILL)

    with child(lambda say: Store(store.home).publish(OLD, "prepare", {}, write)) as (pid, _):
        assert ended(pid) == -signal.SIGKILL
    assert len(stranded(store.home)) == 1
    assert not clean(store)
    assert stranded(store.home) == []
    assert store.find(NEW) == artifact


def test_killed_collection_leaves_no_half_object(store, artifact):
    (store.home / "refs" / "steps" / NEW).unlink()

    def half(path, **_):
        os.unlink(next(file for file in Path(path).rglob("*.bin")))
        os._exit(137)

    def action(say):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shutil, "rmtree", half)
            store.collect()

    with child(action) as (pid, _):
        assert ended(pid) == 137
    assert os.listdir(store.home / "objects") == []
    assert len(stranded(store.home)) == 1
    assert store.collect() == []
    assert stranded(store.home) == []


def test_collection_keeps_what_is_named(store, artifact):
    named = store.publish(OLD, "prepare", {}, one(b"named"))
    leased = store.publish(digest_of(3), "prepare", {}, one(b"leased"))
    store.set_ref("models", "champion", {"versions": [{"path": named.path}]})
    for key in (NEW, OLD, digest_of(3)):
        (store.home / "refs" / "steps" / key).unlink()
    assert store.collect(keep=[leased.digest]) == [artifact.digest]
    assert (store.open(named) / "a.bin").read_bytes() == b"named"
    assert store.collect() == [leased.digest]
    assert store.collect() == []


def test_read_only_home_can_be_read_but_not_run():
    """As a user without rights where the tests run as root, whom permissions do not stop."""
    home = Path(tempfile.mkdtemp(dir="/tmp")) / "home"
    try:
        artifact = with_old(home)
        for path in (home, *home.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        home.parent.chmod(0o755)

        def action(say):
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            manifest.verify.cache_clear()
            for create in (False, True):
                store = Store(home, create=create)
                say(store.find(OLD) == artifact and (store.open(artifact) / "a.bin").read_bytes() == b"old")
                say(store.get_ref("models", "champion") == pointing_to(artifact))
            for attempt in (lambda: store.publish(NEW, "x", {}, one()), lambda: store.run_lock().__enter__()):
                try:
                    attempt()
                except ProjectError as error:
                    say(error)

        with child(action) as (pid, lines):
            said = [line.strip() for line in lines]
            assert ended(pid) == 0, said
        assert said[:4] == ["True"] * 4
        assert [line.split(":")[0] for line in said[4::2]] == ["cannot publish x", "cannot start a run"]
        assert all(line.startswith("hint: give this user the right to write there") for line in said[5::2])
    finally:
        shutil.rmtree(home.parent)


def test_folder_that_is_no_home(tmp_path):
    with pytest.raises(UsageError, match="is not the HOME of a pipeline"):
        Store(tmp_path, create=False)
    assert os.listdir(tmp_path) == []
    put(tmp_path / "file", b"")
    with pytest.raises(ProjectError, match="file is a file"):
        Store(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match="link cannot be a HOME"):
        Store(tmp_path / "link")
