"""Import over an earlier data set: what its user set stays, and what a killed import left is put right."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from tasks.data.sources import describe
from tasks.data.sources.importing import import_file
from tasks.data.sources.raw import ABOUT
from tasks.data.sources.writing import raw_folder, recover
from tests.support.faults import child, ended
from tests.unit.test_importing import write
from tests.unit.test_importing_halves import ROWS, split


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])    # with the mark of Windows' editors
def test_the_name_and_the_constants_that_a_user_set_stay(tmp_path: Path, encoding: str):
    """Else the next run registers another model, which nobody serves and no champion is compared with."""
    out = tmp_path / "tickets"
    split(out, ROWS[:50])
    about = json.loads((out / ABOUT).read_text())
    assert about["name"] == "tickets" and "propensity" not in about
    edited = {**about, "name": "tickets-prod", "propensity": {"a": 0.5, "b": 0.4}}
    (out / ABOUT).write_text(json.dumps(edited), encoding)
    before = describe(out)
    assert before.name == "tickets-prod"
    split(out, ROWS[:60], uid="u")
    after = describe(out)
    assert (after.name, after.propensity) == (before.name, before.propensity)
    assert json.loads((out / ABOUT).read_text())["uid_column"] == "u"


def _import_and_die(out: Path, at: int) -> None:
    rename, calls = os.rename, list[Path]()

    def kill(source, target):
        calls.append(target)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.rename = kill
    split(out, ROWS[:50], 0.5)


@pytest.mark.parametrize("at", [1, 2])
def test_the_next_import_puts_right_what_a_killed_one_left(tmp_path: Path, at: int):
    """Killed before the earlier data set was moved away, or before the new one was in its place."""
    out = tmp_path / "out"
    halves = split(out, ROWS[:50], 0.5)
    with child(lambda say: _import_and_die(out, at)) as (pid, _):
        assert ended(pid) == -signal.SIGKILL
    assert out.exists() == (at == 1) and list(tmp_path.glob(".out.*"))
    assert split(out, ROWS[:50]) == halves
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.jsonl"}


def test_the_folder_of_an_import_that_still_writes_is_left_alone(tmp_path: Path):
    with raw_folder(tmp_path / "out", {}) as made:
        recover(tmp_path / "out")
        (made / "file").write_text("whole")
    assert (tmp_path / "out" / "file").exists()


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would be removed under the user's shell, in which nothing works then."""
    file = write(tmp_path, "a.jsonl", [{"t": "x", "l": "a"}])
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    for out in (Path(), tmp_path / "out"):
        with pytest.raises(UsageError, match=r"is the current folder, which cannot be replaced\nhint: cd \.\."):
            import_file(file, out, text="t", labels="l", test_fraction=0)
    assert import_file(file, Path("data"), text="t", labels="l", test_fraction=0)["train"] == 1


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, OSError), (errno.EACCES, UsageError)])
def test_a_disk_without_room_is_not_told_as_a_folder_where_one_may_not_write(tmp_path, monkeypatch, number, raised):
    def refused(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tasks.core.hidden_folders.tempfile.mkdtemp", refused)
    with pytest.raises((OSError, UsageError)) as caught, raw_folder(tmp_path / "out", {}):
        pass
    assert type(caught.value) is raised
