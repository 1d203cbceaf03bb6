"""Hidden folders in which what a user names is made: none that is in use is taken for one that was left."""

import fcntl
import os
import tempfile

import pytest

from tasks.core.hidden_folders import end_left, hidden_folder


@pytest.mark.parametrize("call", ["tempfile.mkdtemp", "fcntl.flock"])
def test_one_that_another_call_removes_before_it_is_locked_is_made_again(tmp_path, monkeypatch, call):
    """After it is made, before it is opened; or between that and the lock."""
    out, module = tmp_path / "out", {"tempfile": tempfile, "fcntl": fcntl}[call.partition(".")[0]]
    original = getattr(module, call.partition(".")[2])
    removed = []

    def other(*given, **options):
        monkeypatch.setattr(call, original)    # once
        if module is fcntl:
            removed.extend(tmp_path.iterdir())
            end_left(out)
        result = original(*given, **options)
        if module is tempfile:
            removed.extend(tmp_path.iterdir())
            end_left(out)
        return result

    monkeypatch.setattr(call, other)
    with hidden_folder(out) as folder:
        assert len(removed) == 1 and removed[0] != folder
        assert [*tmp_path.iterdir()] == [folder]
        end_left(out)    # another call of the same name
        assert folder.exists()
    assert not [*tmp_path.iterdir()]


def test_what_only_has_such_a_name_is_left_alone(tmp_path):
    file, pipe, link = (tmp_path / f".out.{name:_<8}.new" for name in ("file", "pipe", "link"))
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    file.write_text("a user's")
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "elsewhere")
    end_left(tmp_path / "out")
    assert file.exists() and pipe.exists() and (link / "folder").exists()
