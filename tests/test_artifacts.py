"""Publishing under faults: a kill or an error at every operation, damage of every kind, and processes side by side.

`scenario` is the workload. It runs in a child which is killed, or whose operations fail, at one operation after the
other; then `problems` lists how the HOME that is left breaks a promise. XC_ALL_FAULTS=1 takes no samples under strace.
"""

import errno
import inspect
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from data_contracts.errors import DamagedArtifact, ProjectError, UsageError
from tasks import artifacts
from tasks.artifacts import Artifact, Store, digest_of, file_digest

OLD, NEW = digest_of("old"), digest_of("new")
ROOT = Path(__file__).resolve().parents[1]


def put(path, data):
    """Writes through os.*, where the harness can see it."""
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
    """Publishes step NEW and moves models/champion to it; says each thing once it is acknowledged."""
    store = kind_of_store(home)
    artifact = store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})
    say("published " + artifact.digest)
    store.set_ref("models", "champion", {"digest": artifact.digest})
    say("moved " + artifact.digest)


def one(data=b"content", name="a.bin"):
    """A `write` that leaves one file."""
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
    """How the HOME that a fault left breaks: old or new state, acknowledged = readable, a rerun converges."""
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
    """Forks a process that runs action(say) and then exits; yields (pid, readable end of what it says)."""
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


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- a fault at every operation, in Python ----------------------------------------------------------------------

OPERATIONS = ("open", "write", "fsync", "mkdir", "rename", "replace", "link")


def break_operation(at, fault):
    """Patches os so that operation number `at` is the last one (kill, torn) or fails with an errno; -> the counter."""
    counter = {"calls": 0}

    def broken(name, real):
        def call(*arguments, **keywords):
            if name == "mkdir" and os.path.isdir(arguments[0]):
                return real(*arguments, **keywords)  # changes nothing, and pathlib forgives any error of it
            counter["calls"] += 1
            if counter["calls"] != at:
                return real(*arguments, **keywords)
            if fault == "torn" and name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if fault in ("kill", "torn"):
                os._exit(137)
            raise OSError(fault, os.strerror(fault))

        return call

    for name in OPERATIONS:
        setattr(os, name, broken(name, getattr(os, name)))
    return counter


def run_with_fault(home, at, fault, kind_of_store):
    """Exit code, and what was said, of a child in which one operation is hit."""

    def action(say):
        counter = break_operation(at, fault)
        scenario(home, kind_of_store, say)
        if counter["calls"] < at:
            say("unhurt 1")

    with child(action) as (pid, lines):
        said = dict(line.rstrip("\n").split(" ", 1) for line in lines)
        return ended(pid), said


def sweep(folder, fault, kind_of_store=Store, fresh=False):
    """Hits every operation in turn; -> (problems, the number of operations, the states that were left)."""
    found: list[str] = []
    states: set[bool] = set()
    for at in range(1, 300):
        home = folder / f"{fault}-{at}"
        old = None if fresh else with_old(home)
        code, said = run_with_fault(home, at, fault, kind_of_store)
        if "unhurt" in said:
            return found, at - 1, states
        if fault in ("kill", "torn"):
            found += [f"at {at}: not killed, {code} {said}"] if code != 137 else []
        elif code != 1 or "error" not in said or os.strerror(fault) not in said["error"] or stranded(home):
            found.append(f"at {at}: exit {code}, {said}, left {stranded(home)}")
        states.add(Store(home).find(NEW) is not None)
        found += [f"at {at}: {problem}" for problem in problems(home, said, old)]
        shutil.rmtree(home)
    raise AssertionError("the faults never end")


@pytest.fixture
def quick():
    """A folder in memory where there is one: thousands of fsyncs take their time on a disk."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("fresh", [False, True], ids=["old-state", "fresh-home"])
@pytest.mark.parametrize("fault", ["kill", "torn", errno.ENOSPC, errno.EIO, errno.EROFS])
def test_fault_at_every_operation(quick, fault, fresh):
    found, operations, states = sweep(quick, fault, fresh=fresh)
    assert found == []
    assert operations > 30
    assert states == {False, True}  # both the state before and the one after were seen


class CopiesInPlace(Store):
    def _commit(self, folder, artifact):
        shutil.copytree(folder, self.home / artifact.path, copy_function=lambda a, b: put(b, Path(a).read_bytes()))


class MovesRefInPlace(Store):
    def _place(self, data, target, move):
        if move is os.link:
            return super()._place(data, target, move)
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(file, data)
        os.close(file)
        return True


class NamesBeforeItCommits(Store):
    """Acknowledges the name, and commits at the next call."""

    def _commit(self, folder, artifact):
        self.late = artifact
        os.rename(folder, self.home / "tmp" / "late")

    def set_ref(self, kind, name, value):
        os.rename(self.home / "tmp" / "late", self.home / self.late.path)
        super().set_ref(kind, name, value)


@pytest.mark.parametrize(
    ("broken", "fault", "symptom"),
    [
        (CopiesInPlace, "kill", "DamagedArtifact"),
        (MovesRefInPlace, "torn", "is not JSON"),
        (NamesBeforeItCommits, "kill", "acknowledged, but not found"),
    ],
)
def test_the_sweep_sees_a_broken_protocol(quick, broken, fault, symptom):
    found, _, _ = sweep(quick, fault, broken)
    assert any(symptom in problem for problem in found), found


def test_the_sweep_sees_a_write_that_ignores_errors(quick, monkeypatch):
    def careless(path, data):
        with suppress(OSError):
            put(path, data)

    monkeypatch.setattr(artifacts, "_write", careless)
    found, _, _ = sweep(quick, errno.ENOSPC)
    assert any("exit 0" in problem for problem in found), found


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    store = Store(tmp_path / "home")
    assert is_new(store.open(store.publish(NEW, "prepare", {}, write_new)))


def test_everything_is_flushed_before_the_rename_and_the_rename_before_the_ref(tmp_path, monkeypatch):
    """What a kill cannot show and a power cut would: the order of fsync, rename and link."""
    store, log, names = Store(tmp_path / "home"), [], {}
    real = {name: getattr(os, name) for name in ("open", "fsync", "rename", "link")}

    def opened(path, *rest, **keywords):
        file = real["open"](path, *rest, **keywords)
        names[file] = str(path)
        return file

    def flushed(file):
        log.append(f"fsync {names[file]}")
        real["fsync"](file)

    def moved(name):
        def call(source, target):
            log.append(f"{name} {source} {target}")
            real[name](source, target)

        return call

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", moved("rename"))
    monkeypatch.setattr(os, "link", moved("link"))
    artifact = store.publish(NEW, "prepare", {}, write_new)
    log = [re.sub(r"tmp/[0-9a-f]{32}", "tmp/U", line.replace(f"{store.home}/", "")) for line in log]
    commit, link = log.index(f"rename tmp/U {artifact.path}"), log.index(f"link tmp/U refs/steps/{NEW}")
    files = ["tmp/U/ids.bin", "tmp/U/part/tokens.bin", "tmp/U/MANIFEST.json", "tmp/U/part", "tmp/U"]
    assert sorted(log[:commit]) == sorted(f"fsync {name}" for name in files)
    assert log[:commit].index("fsync tmp/U/MANIFEST.json") < log[:commit].index("fsync tmp/U")
    assert log[commit + 1 : link] == ["fsync objects", "fsync tmp/U"]
    assert log[link + 1 :] == ["fsync refs/steps"]


# ---- the same with real system calls ----------------------------------------------------------------------------

CALLS = ("openat", "write", "fsync", "mkdir", "rename", "link")
CODE = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from data_contracts.errors import ProjectError
from tasks.artifacts import Store
NEW = {NEW!r}
{inspect.getsource(put)}
{inspect.getsource(write_new)}
{inspect.getsource(scenario)}
try:
    scenario(Path(sys.argv[1]), Store, lambda words: os.write(1, (words + "\\n").encode()))
except ProjectError as error:
    os.write(1, ("error " + error.what + "\\n").encode())
    sys.exit(error.exit_code)
"""


def traced(home, *options):
    command = ["strace", "-f", "-qq", *options, sys.executable, "-I", "-S", "-B", "-c", CODE, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = (line.split(" ", 1) for line in done.stdout.splitlines())
    return done.returncode, {first: "".join(rest) for first, *rest in words}, done.stderr


@pytest.fixture
def strace():
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    probe = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    if probe.returncode and "ptrace" in probe.stderr.lower():
        pytest.skip(f"ptrace is not permitted: {probe.stderr.strip()}")
    assert probe.returncode == 0, probe.stderr


def test_fault_at_system_calls(quick, strace):
    home = quick / "count"
    with_old(home)
    code, said, log = traced(home, "-e", f"trace={','.join(CALLS)}")
    assert (code, set(said)) == (0, {"published", "moved"}), log
    calls = re.findall(rf"^(?:\[pid +\d+\] )?({'|'.join(CALLS)})\((.*)", log, re.MULTILINE)
    points = []
    for call in CALLS:
        arguments = [rest for name, rest in calls if name == call]
        first = next(i for i, rest in enumerate(arguments) if call in ("write", "fsync") or str(home) in rest)
        points += [(call, i + 1) for i in range(first, len(arguments))]
    assert {call for call, _ in points} == set(CALLS)
    faults = [(call, n, fault) for call, n in points for fault in ("signal=KILL", "error=ENOSPC", "error=EIO")]
    if not os.environ.get("XC_ALL_FAULTS"):
        faults = faults[::2]  # 2 and 3 have no common divisor, so that each fault meets each call
    found = []
    for call, n, fault in faults:
        shutil.rmtree(home)
        old = with_old(home)
        code, said, log = traced(home, "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={n}")
        where = f"{call} {n} {fault}"
        if code == 0 or (code == -signal.SIGKILL) != (fault == "signal=KILL"):
            found.append(f"{where}: exit {code} {log}")
        if fault != "signal=KILL" and stranded(home) and call != "fsync":
            found.append(f"{where}: left {stranded(home)}")
        found += [f"{where}: {problem}" for problem in problems(home, said, old)]
    assert found == []
    assert len(faults) >= 25


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    artifacts._verify.cache_clear()
    return Store(tmp_path / "home")


@pytest.fixture
def artifact(store):
    return store.publish(NEW, "prepare", {"raw": "r2"}, write_new, {"rows": 2})


def refused(store, artifact, message):
    """The artifact is refused with a message and a remedy; find sets it aside, and the step can be published again."""
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
    refused(store, artifact, r"MANIFEST\.json is not the one that its folder is named after")


def test_manifest_missing(store, artifact):
    (store.home / artifact.path / "MANIFEST.json").unlink()
    refused(store, artifact, r"MANIFEST\.json cannot be read: No such file")


def test_misnamed(store, artifact):
    other = store.publish(OLD, "prepare", {}, one())
    shutil.rmtree(store.home / artifact.path)
    (store.home / other.path).rename(store.home / artifact.path)
    refused(store, artifact, r"MANIFEST\.json is not the one that its folder is named after")


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
        patch.setattr(artifacts, "file_digest", failing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many open files"):
            store.find(NEW)
    assert store.find(NEW) == artifact
    artifacts._verify.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "file_digest", failing(errno.EIO))
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

    def damaged_before(artifact):
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

    monkeypatch.setattr(artifacts, "file_digest", counted)
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


# ---- what may be published --------------------------------------------------------------------------------------


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
        lambda: store.drop_ref(name, "x"),
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
    store.drop_ref("models", "champion")
    store.drop_ref("models", "champion")
    assert store.get_ref("models", "champion") is None


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


def test_digests():
    assert digest_of({"a": 1, "b": [2, None]}) == digest_of({"b": [2, None], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1]) != digest_of([2, "1"])
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # printf {} | sha256sum
    assert file_digest(Path("/dev/null")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# ---- processes side by side -------------------------------------------------------------------------------------


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
        assert time.monotonic() - start < 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for survivor in children:
            os.kill(survivor, 0)  # neither inherits the lock
        start = time.monotonic()
        with store.run_lock():
            assert (store.home / "lock").read_text() == f"{os.getpid()}\n"
            assert time.monotonic() - start < 0.5


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
    monkeypatch.setattr(artifacts, "GC_SECONDS", 0.1)
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


def test_collection_removes_what_a_killed_writer_left(store, artifact):
    def write(folder):
        write_new(folder)
        os.kill(os.getpid(), signal.SIGKILL)

    with child(lambda say: Store(store.home).publish(OLD, "prepare", {}, write)) as (pid, _):
        assert ended(pid) == -signal.SIGKILL
    assert len(stranded(store.home)) == 1
    assert store.collect() == []
    assert stranded(store.home) == []
    assert store.find(NEW) == artifact


def test_killed_collection_leaves_no_half_object(store, artifact):
    store.drop_ref("steps", NEW)

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
        store.drop_ref("steps", key)
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
            artifacts._verify.cache_clear()
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
    with pytest.raises(ProjectError, match=r"cannot set up HOME: .*file/"):
        Store(tmp_path / "file")


# ---- every order of calls ---------------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """Store against a model: which content each step key names, which objects exist, and which are damaged."""

    keys, contents = st.integers(0, 2), st.integers(0, 1)
    names = st.sampled_from(["champion", "previous"])

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.store = Store(self.folder / "home")
        self.digests, self.named, self.whole, self.damaged, self.refs = {}, {}, set(), set(), {}

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self, made):
        self.whole.discard(made)
        self.damaged.discard(made)

    @rule(key=keys, content=contents)
    def publish(self, key, content):
        artifact = self.store.publish(digest_of(key), "step", {}, one(bytes([key, content])))
        made, winner = (key, content), (key, self.named.get(key))
        self.drop(made)
        self.whole.add(made)
        if winner not in self.whole:
            self.drop(winner)
            self.named[key] = content
            self.digests[made] = artifact.digest
        if made not in self.digests:
            self.digests[made] = next(iter({p.name for p in self.objects()} - set(self.digests.values())))
        assert artifact.digest == self.digests[key, self.named[key]]
        assert (self.store.open(artifact) / "a.bin").read_bytes() == bytes([key, self.named[key]])

    @rule(key=keys)
    def find(self, key):
        made = (key, self.named.get(key))
        artifact = self.store.find(digest_of(key))
        assert artifact == (Artifact.of(self.digests[made]) if made in self.whole else None)
        if artifact is None:
            self.drop(made)

    @precondition(lambda self: self.whole)
    @rule(data=st.data(), how=st.sampled_from(["flip", "truncate", "extra", "unlink"]))
    def damage(self, data, how):
        made = data.draw(st.sampled_from(sorted(self.whole)))
        path = self.store.home / "objects" / self.digests[made] / "a.bin"
        if how == "flip":
            before = path.stat().st_mtime_ns
            overwrite(path, 0, bytes([path.read_bytes()[0] ^ 64]))
            os.utime(path, ns=(before + 1, before + 1))  # the clock of the file system may not have ticked
        elif how == "truncate":
            os.truncate(path, 1)
        elif how == "extra":
            put(path.with_name("b.bin"), b"")
        else:
            path.unlink()
        self.whole.remove(made)
        self.damaged.add(made)

    @rule(name=names, data=st.data())
    @precondition(lambda self: self.whole)
    def set_ref(self, name, data):
        self.refs[name] = data.draw(st.sampled_from(sorted(self.whole)))
        self.store.set_ref("models", name, {"digest": self.digests[self.refs[name]]})

    @rule(keep=st.booleans())
    def collect(self, keep):
        live = {*self.named.items(), *self.refs.values(), *(self.whole if keep else ())}
        gone = (self.whole | self.damaged) - live
        removed = self.store.collect([self.digests[made] for made in self.whole] if keep else [])
        assert removed == sorted(self.digests[made] for made in gone)
        for made in gone:
            self.drop(made)

    @rule()
    def restart(self):
        artifacts._verify.cache_clear()
        self.store = Store(self.store.home)

    def objects(self):
        return list((self.store.home / "objects").iterdir())

    @invariant()
    def whole_objects_are_readable_and_damaged_ones_refused(self):
        if not hasattr(self, "store"):
            return
        assert {path.name for path in self.objects()} == {self.digests[made] for made in self.whole | self.damaged}
        assert stranded(self.store.home) == []
        for made in self.whole:
            path = self.store.open(Artifact.of(self.digests[made])) / "a.bin"
            assert path.read_bytes() == bytes(made)
        for made in self.damaged:
            with pytest.raises(DamagedArtifact):
                self.store.open(Artifact.of(self.digests[made]))
        for name, made in self.refs.items():
            assert self.store.get_ref("models", name) == {"digest": self.digests[made]}


TestEveryOrder = StoreMachine.TestCase
TestEveryOrder.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
logging.getLogger("hypothesis").setLevel(logging.ERROR)
