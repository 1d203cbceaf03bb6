"""Publishing under faults: a kill or an error at every operation, in Python."""

import errno
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

from tasks.core.files import link
from tasks.core.remote import Remote
from tasks.core.store import Store
from tests.support.faults import (
    NEW,
    apart,
    child,
    ended,
    is_new,
    problems,
    put,
    scenario,
    stranded,
    with_old,
    write_new,
)

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


@pytest.mark.parametrize("fresh", [False, True], ids=["old-state", "fresh-home"])
@pytest.mark.parametrize("fault", ["kill", "torn", errno.ENOSPC, errno.EIO, errno.EROFS])
def test_fault_at_every_operation(quick, fault, fresh):
    found, operations, states = apart(sweep, quick, fault, fresh=fresh)
    assert found == []
    assert operations > 30
    assert states == {False, True}  # both the state before and the one after were seen


class CopiesInPlace(Store):
    def _commit(self, folder, artifact):
        shutil.copytree(folder, self.home / artifact.path, copy_function=lambda a, b: put(b, Path(a).read_bytes()))


class MovesRefInPlace(Store):
    def _place(self, data, target, move):
        if move is link:
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
    found, _, _ = apart(sweep, quick, fault, broken)
    assert any(symptom in problem for problem in found), found


def test_the_sweep_sees_a_write_that_ignores_errors(quick, monkeypatch):
    def careless(path, data):
        with suppress(OSError):
            put(path, data)

    monkeypatch.setattr("tasks.core.store.write_file", careless)
    found, _, _ = sweep(quick, errno.ENOSPC)
    assert any("exit 0" in problem for problem in found), found


def without_links(*_):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def sweep_without_links(folder, fault):
    os.link = without_links
    return sweep(folder, fault, fresh=True)


@pytest.mark.parametrize("fault", ["kill", "torn"])
def test_a_disk_without_hard_links_takes_a_home(quick, fault):
    found, _, states = apart(sweep_without_links, quick, fault)
    assert found == [] and states == {False, True}


def test_where_files_cannot_be_linked_the_first_one_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", without_links)
    remote, gate = Remote(f"file://{tmp_path}"), Barrier(8)

    def write(number):
        gate.wait(60)
        return remote.write("x", str(number).encode(), replace=False)

    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(write, range(8)))
    assert remote.read("x") == str(wrote.index(True)).encode() and wrote.count(True) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


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
