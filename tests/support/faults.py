"""The artifact store under faults: a workload, and checks of the HOME that a fault leaves behind.

`scenario` is the workload. Tests run it in a child process and kill it, or let an operation fail, at each operation in
turn; then `problems` lists the promises that the remaining HOME breaks.
"""

import os
import shutil
import signal
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from data_contracts.errors import DamagedArtifact, ProjectError
from tasks.core import manifest
from tasks.core.store import Artifact, Store, digest_of

OLD, NEW = digest_of("old"), digest_of("new")


def put(path, data):
    """Write through os.*, which the harness intercepts."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def write_new(folder):
    put(folder / "ids.bin", b"new" * 1000)
    os.mkdir(folder / "part")
    put(folder / "part" / "tokens.bin", bytes(range(256)) * 8)


def scenario(home, kind_of_store, say):
    """Publish step NEW and move models/champion to it; report each once it is acknowledged."""
    store = kind_of_store(home)
    artifact = store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})
    say("published " + artifact.digest)
    store.set_ref("models", "champion", {"digest": artifact.digest})
    say("moved " + artifact.digest)


def one(data=b"content", name="a.bin"):
    """Return a `write` function that creates one file."""
    return lambda folder: put(folder / name, data)


def with_old(home):
    store = Store(home)
    artifact = store.publish(OLD, "prepare", {"raw": "r1"}, one(b"old"), {"rows": 1})
    store.set_ref("models", "champion", {"digest": artifact.digest})
    return artifact


def is_new(folder):
    whole = bytes(range(256)) * 8
    return (folder / "ids.bin").read_bytes() == b"new" * 1000 and (folder / "part/tokens.bin").read_bytes() == whole


def stranded(home):
    return [path.name for path in home.glob("tmp/*")]


def pointing_to(artifact):
    return {"digest": artifact.digest}


def problems(home, said, old):
    """Return the broken promises: old or new state, acknowledged means readable, a rerun ends in the new state."""
    try:
        examine_state(home, said, old)
        examine_rerun(home, old)
    except (AssertionError, ProjectError, OSError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def examine_state(home, said, old):
    store = Store(home)
    for path in (home / "objects").iterdir():
        store.open(Artifact.of(path.name))
    new, champion = store.find(NEW), store.get_ref("models", "champion")
    assert not old or (store.find(OLD) == old and (store.open(old) / "a.bin").read_bytes() == b"old"), "old is lost"
    assert not new or is_new(store.open(new)), "new is torn"
    allowed = [pointing_to(old) if old else None, *([pointing_to(new)] if new else [])]
    assert champion in allowed, f"champion is neither old nor new: {champion}"
    assert "published" not in said or (new and new.digest == said["published"]), "acknowledged, but not found"
    assert "moved" not in said or champion == {"digest": said["moved"]}, "acknowledged, but not moved"


def examine_rerun(home, old):
    scenario(home, Store, lambda words: None)
    store = Store(home)
    store.collect()
    new = store.find(NEW)
    assert new and is_new(store.open(new)) and store.get_ref("models", "champion") == pointing_to(new), "diverges"
    assert not old or store.find(OLD) == old, "the rerun loses the old artifact"
    assert not stranded(home) and not os.listdir(home / "quarantine"), "the rerun leaves rubbish"


@contextmanager
def child(action):
    """Fork a process that runs action(say) and exits; yield (pid, a file of the lines that it says)."""
    readable, writable = os.pipe()
    raw_write = os.write
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(readable)
            action(lambda words: raw_write(writable, f"{words}\n".encode()))
            code = 0
        except ProjectError as error:
            raw_write(writable, f"error {error.what}\n".encode())
            code = error.exit_code
        except BaseException as error:
            raw_write(writable, f"bug {error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable) as lines:
        try:
            yield pid, lines
        finally:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def apart(function, *arguments, **named):
    """Call a function in a small process: to fork the test's own, which holds a gigabyte, takes 50 times as long."""
    with get_context("forkserver").Pool(1) as pool:
        return pool.apply(function, arguments, named)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_once(action, count):
    """Run action(number) in `count` forked processes at once, and assert that each ends well."""
    with ExitStack() as stack:
        children = [stack.enter_context(child(lambda say, number=number: action(number))) for number in range(count)]
        said = [lines.read() for _, lines in children]
        assert [(ended(pid), words) for (pid, _), words in zip(children, said, strict=True)] == [(0, "")] * count


@pytest.fixture
def quick():
    """Yield a folder in memory if possible: thousands of fsyncs are slow on a disk."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def store(tmp_path):
    manifest.verify.cache_clear()
    return Store(tmp_path / "home")


@pytest.fixture
def artifact(store):
    return store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})


def refused(store, artifact, message):
    """Check that an artifact is refused with a message and a remedy, quarantined, and can be published again."""
    with pytest.raises(DamagedArtifact, match=message) as caught:
        store.open(artifact)
    assert "run the same command again" in caught.value.hint
    assert store.find(NEW) is None
    assert os.path.lexists(store.home / "quarantine" / f"{artifact.digest}-1")
    again = store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})
    assert (again, is_new(store.open(again)), store.find(NEW)) == (artifact, True, artifact)


def overwrite(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
