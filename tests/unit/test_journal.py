"""The journal of label edits: whole commands in order, whatever is killed, and whoever writes."""

import os
import threading
from contextlib import contextmanager

import pytest

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.data.feedback import journal as feedback_journal
from tasks.data.feedback.journal import Feedback, FeedbackJournal
from tasks.registry.edit_journal import Journal
from tasks.registry.tags import require_name
from tests.support.faults import at_once
from xcmodels.retrieval.label_editing import ADD, REMOVE, Edit

ENTERED = [Edit(ADD, "x:1", "forest wolf sea"), Edit(REMOVE, "tiny:3"), Edit(ADD, "x:2", "日本語", "and more")]


def test_the_journal_keeps_the_order(tmp_path):
    journal = Journal(tmp_path, "m")
    assert journal.entries() == []
    with journal.alone():
        journal.append(ENTERED[:2])
        journal.append(ENTERED[2:])
    assert journal.edits() == ENTERED
    assert all(entry.who and entry.when for entry in journal.entries())
    assert oct(journal.path.stat().st_mode & 0o777) == "0o600"


def test_wherever_a_command_is_cut_off_none_of_its_edits_is_there(tmp_path):
    journal = Journal(tmp_path, "m")
    with journal.alone():
        journal.append(ENTERED[:1])
        whole = journal.path.stat().st_size
        journal.append(ENTERED)
        data = journal.path.read_bytes()
        for size in range(whole, len(data)):
            journal.path.write_bytes(data[:size])
            assert journal.edits() == ENTERED[:1]
        journal.path.write_bytes(data[:whole] + b"\0" * 30)    # as a file system may leave it
        assert journal.edits() == ENTERED[:1]
        journal.append(ENTERED[1:2])
        assert journal.edits() == ENTERED[:2]
        assert journal.path.read_bytes().startswith(data[:whole]) and b"\0" not in journal.path.read_bytes()


def test_the_longest_name_of_a_model_has_its_journals(tmp_path):
    name = "ж" * 124 + "x"
    require_name(name)
    with Journal(tmp_path, name).alone():
        assert Journal(tmp_path, name).edits() == []
    feedback = FeedbackJournal(tmp_path, name)
    feedback.append([Feedback("a wolf", ["L1"])])
    assert feedback.begin("ngame") == feedback.read()
    with pytest.raises(UsageError, match=r"at most 249 bytes, 'ж{40}'\.\.\. has 250\nhint: --name NAME"):
        require_name(f"{name}x")


def test_a_line_that_was_damaged_is_named(tmp_path):
    journal = Journal(tmp_path, "m")
    with journal.alone():
        for edit in ENTERED:
            journal.append([edit])
        lines = journal.path.read_bytes().split(b"\n")
        journal.path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
        with pytest.raises(DamagedArtifact) as caught:
            journal.entries()
        assert caught.value.where.endswith("m.jsonl:2")


def test_what_was_appended_is_on_the_disk_under_its_name(tmp_path, monkeypatch):
    """Else a power cut takes what was acknowledged, or the whole file."""
    flushed, fsync = set(), os.fsync

    def watched(file):
        flushed.add(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", watched)
    FeedbackJournal(tmp_path, "m").append([Feedback("a wolf", ["L1"])])
    journal = Journal(tmp_path, "m")
    with journal.alone():
        journal.append(ENTERED)
    assert flushed == {str(tmp_path), *(f"{tmp_path}/{kind}{file}" for kind in ("feedback", "labels")
                                        for file in ("", "/m.jsonl"))}


def test_two_writers_do_not_mix(tmp_path):
    def write(number):
        journal = Journal(tmp_path, "m")
        for turn in range(20):
            with journal.alone():
                journal.append([Edit(ADD, f"{number}:{turn}", "a"), Edit(ADD, f"{number}:{turn}b", "b")])

    at_once(write, 2)
    uids = [edit.uid for edit in Journal(tmp_path, "m").edits()]
    assert len(uids) == 80 and all(second == f"{first}b" for first, second in zip(uids[::2], uids[1::2], strict=True))


def test_a_decision_is_kept_though_the_journal_is_moved_away_before_it_is_written(tmp_path, monkeypatch):
    """As its server waits for another one, which then writes to a new journal: what both acknowledged is there."""
    journal, here = FeedbackJournal(tmp_path, "m"), threading.current_thread()
    journal.append([Feedback("before")])
    other = threading.Thread(target=journal.append, args=([Feedback("theirs")],))
    began, written = threading.Event(), threading.Event()
    locked, end_of_last_line = feedback_journal.locked, feedback_journal._end_of_last_line

    @contextmanager
    def moved_away(path, how):
        with locked(path, how) as acquired:
            if threading.current_thread() is here:
                journal.path.rename(tmp_path / "moved.jsonl")
                other.start()
                began.wait(1)
            yield acquired

    def slow(file):
        end = end_of_last_line(file)
        if threading.current_thread() is other:
            began.set()
            written.wait(30)
        return end

    monkeypatch.setattr(feedback_journal, "locked", moved_away)
    monkeypatch.setattr(feedback_journal, "_end_of_last_line", slow)
    journal.append([Feedback("ours")])
    written.set()
    other.join()
    assert {each.text for each in journal.read()} == {"ours", "theirs"}


@pytest.mark.parametrize("later", [1, 3, 8])
def test_a_training_after_an_unfinished_one_reads_all_of_a_journal_that_took_the_place_of_its_own(later, tmp_path):
    """Also of one that has grown longer meanwhile; put back, the earlier one is what the training began with."""
    journal = FeedbackJournal(tmp_path, "m")
    journal.append([Feedback(f"old {number}", ["a"]) for number in range(3)])
    assert len(journal.begin("ngame")) == 3    # and is killed
    journal.append([Feedback("later", ["a"])])
    journal.path.rename(away := journal.path.with_name("away"))
    journal.append([Feedback(f"new {number}", ["a"]) for number in range(later)])
    assert journal.begun() is None
    away.replace(journal.path.with_name("back"))
    new = journal.path.read_bytes()
    journal.path.with_name("back").replace(journal.path)
    assert journal.begun() == 3
    journal.path.write_bytes(new)
    assert [each.text for each in journal.begin("ngame")] == [f"new {number}" for number in range(later)]
    assert journal.begun() == later
