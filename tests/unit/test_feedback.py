"""The journal of feedback and what is made of it: nothing acknowledged is lost, and the last word counts."""

import gzip
import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from data_contracts.check import check
from data_contracts.errors import ContractError, DamagedArtifact, ProjectError
from data_contracts.findings import Thresholds
from data_contracts.tables import Tables
from flows import run as flow
from flows.cli.commands.feedback import list_
from tasks import run_end
from tasks.core.dask_workers import Workers
from tasks.core.step import run
from tasks.core.store import Store
from tasks.data.feedback.decisions import Decisions
from tasks.data.feedback.journal import Feedback, FeedbackJournal
from tasks.data.prepare import ADD_FEEDBACK, steps
from tasks.data.sources import describe
from tests.support.faults import at_once
from tests.support.raw_folders import read_table, write_json
from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.text import example

SAID = [Feedback("a wolf", ["L1"], ["L2"]), Feedback("日本語 \u2028", added=["L3"]), Feedback("a wolf", ["L2"], ["L1"])]


@pytest.fixture
def journal(tmp_path):
    return FeedbackJournal(tmp_path, "m")


def test_what_was_written_is_read(journal):
    assert journal.read() == []
    journal.append(SAID[:1])
    journal.append(SAID[1:])
    read = journal.read()
    assert [(one.text, *map(list, (one.accepted, one.rejected, one.added))) for one in read] == [
        (one.text, *map(list, (one.accepted, one.rejected, one.added))) for one in SAID]
    assert oct(journal.path.stat().st_mode & 0o777) == "0o600"
    assert oct(journal.path.parent.stat().st_mode & 0o777) == "0o700"


def test_the_list_of_decisions_does_not_steer_a_terminal(journal, monkeypatch, capsys):
    journal.append([Feedback("\x1b]0;pwned\x07a\nwolf \u202e", ["L1"], content="\x1b[2J")])
    monkeypatch.setattr("flows.cli.commands.feedback._journal", lambda *_: (journal, "m"))
    list_()
    out = capsys.readouterr().out
    assert out.endswith("\t+L1\t\\x1b]0;pwned\\x07a wolf \\u202e \\x1b[2J\n") and out.count("\n") == 1


def test_wherever_a_write_is_cut_off_what_was_there_before_stays(journal):
    journal.append(SAID[:1])
    whole = journal.path.stat().st_size
    journal.append(SAID[1:2])
    data = journal.path.read_bytes()
    for size in range(whole, len(data)):
        journal.path.write_bytes(data[:size])
        assert len(journal.read()) == 1
        journal.append(SAID[2:])
        assert [one.text for one in journal.read()] == [SAID[0].text, SAID[2].text]


def test_a_disk_that_is_full_leaves_whole_lines(journal, monkeypatch):
    journal.append(SAID[:1])
    before = journal.path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.data.feedback.journal.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(SAID[1:])
    assert journal.path.read_bytes() == before


def test_a_damaged_line_is_named(journal):
    journal.append(SAID)
    lines = journal.path.read_bytes().split(b"\n")
    journal.path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(DamagedArtifact) as caught:
        journal.read()
    assert caught.value.where.endswith("m.jsonl:2")


def test_two_writers_do_not_mix(tmp_path):
    def write(number):
        for turn in range(50):
            FeedbackJournal(tmp_path, "m").append([Feedback(f"{number} {turn}", ["L1"])] * 2)

    at_once(write, 2)
    texts = [one.text for one in FeedbackJournal(tmp_path, "m").read()]
    assert len(texts) == 200 and texts[::2] == texts[1::2]


def test_a_training_that_is_resumed_reads_what_it_began_with(journal):
    assert journal.begin("ngame") == [] and journal.begun() is None
    journal.append(SAID[:2])
    assert len(journal.begin("ngame")) == 2
    journal.append(SAID[2:])
    assert len(journal.begin("ngame")) == 2 and journal.begun() == 2
    journal.end()
    assert len(journal.begin("ngame")) == 3


def test_an_unfinished_training_holds_back_no_feedback_from_one_with_other_settings(journal):
    """Such as a comparison that was evaluated, and never registered."""
    journal.append(SAID[:2])
    journal.begin("unidec")
    journal.append(SAID[2:])
    assert journal.begun("unidec") == journal.begun() == 2 and journal.begun("ngame") is None
    assert len(journal.begin("ngame")) == 3 and journal.begun("ngame") == 3 and journal.begun("unidec") is None


def test_a_journal_that_was_moved_away_leaves_the_next_training_no_longer_mark(journal, capsys, monkeypatch):
    """As a server whose journal is full asks for; what a resumed training reads stays the same."""
    journal.append(SAID)
    journal.begin("ngame")
    journal.path.unlink()
    journal.append(SAID[:1])
    monkeypatch.setattr("flows.cli.commands.feedback._journal", lambda *_: (journal, "m"))
    list_()
    assert capsys.readouterr().err == "m: 1 decision\n"
    assert len(journal.begin("ngame")) == 1
    journal.append(SAID[1:])
    assert len(journal.begin("ngame")) == 1
    list_()
    assert capsys.readouterr().err == "m: 3 decisions; 2 came after the unfinished training began\n"


@pytest.mark.parametrize("until", ["register", "prepare"])
def test_what_a_contract_refuses_has_trained_nothing_that_could_be_resumed(tmp_path, monkeypatch, journal, until):
    @contextmanager
    def opened(*_):
        yield SimpleNamespace(title="m", pipeline=SimpleNamespace(feedback=SAID))

    def refuse(*_):
        raise ContractError("labels are not as frequent as in the run before")

    monkeypatch.setattr(flow, "open_run", opened)
    monkeypatch.setattr(flow, "prepare", refuse)
    journal.append(SAID)
    journal.begin("ngame")
    with pytest.raises(ContractError):
        flow.run_steps(SimpleNamespace(home=tmp_path, name="m"), until)
    assert journal.begun() == {"register": None, "prepare": 3}[until], "what trains nothing ends no training"


def test_a_training_is_marked_where_one_was_killed_as_it_wrote_its_mark(journal):
    journal.append(SAID)
    journal.begin("ngame")
    mark = journal._mark
    mark.rename(mark.with_suffix(".new"))
    assert len(journal.begin("ngame")) == 3 and journal.begun() == 3 and not mark.with_suffix(".new").exists()


def test_the_last_word_on_a_label_counts():
    first, second = Decisions.of([*SAID, Feedback(" a wolf\t", added=["L4"])]).items
    assert (first.text, first.right, first.wrong, first.line) == ("a wolf", ["L2", "L4"], ["L1"], 4)
    assert (second.right, second.wrong, second.line) == (["L3"], [], 2)


def test_a_title_and_a_content_are_the_same_text_as_both_in_one():
    """Training texts are found by what is joined; of Annif's documents it is the content, of others the title."""
    (one,) = Decisions.of([Feedback("a wolf", ["L1"], ["L2"], content="of the sea"),
                           Feedback("a wolf of the sea", ["L2"], ["L3"])]).items
    assert (one.title, one.content, one.text) == ("a wolf of the sea", "", "a wolf of the sea")
    assert (one.right, one.wrong, one.line) == (["L1", "L2"], ["L3"], 2)
    (last,) = Decisions.of([Feedback("a lion", rejected=["L1"]), Feedback("", ["L1"], content="a lion")]).items
    assert (last.right, last.wrong, last.content) == (["L1"], [], "a lion")


def test_a_text_is_held_out_by_itself_and_the_share_is_kept():
    each = Decisions.of([Feedback(f"text {number}", ["L1"]) for number in range(2000)]).items
    held = {one.text for one in each if one.held_out(0.2)}
    assert 340 < len(held) < 460
    assert held == {one.text for one in reversed(each) if one.held_out(0.2)}
    assert held < {one.text for one in each if one.held_out(0.3)}
    assert not any(one.held_out(0.0) for one in each)


@pytest.fixture
def titles_alone(planted, tmp_path):
    """The planted data set with titles alone, as texts that somebody asks about have no content."""
    folder = shutil.copytree(planted, tmp_path / "titles")
    for name in ("trn.json.gz", "tst.json.gz"):
        with gzip.open(folder / name, "rt") as file:
            rows = [json.loads(line) | {"content": ""} for line in file]
        write_json(folder, name, rows)
    return folder


def _learned(data, home, feedback, **config):
    """Return the folder that `add feedback` makes of a raw data set."""
    plan = steps(describe(data), PrepareConfig(leak_share=1.0, **config), 0, Decisions.of(feedback, "feedback/m.jsonl"))
    done, store = {}, Store(home)
    with Workers(count=0) as workers:
        for step in plan[:3]:
            done[step.name] = run(step, done, store, workers).artifact
    return store.open(done[ADD_FEEDBACK])


def _pairs(folder, table):
    rows = [row for shard in sorted((folder / table).glob("*.parquet")) for row in pq.read_table(shard).to_pylist()]
    return {(row["query"], row["label"]) for row in rows}, rows


def test_feedback_becomes_queries_positives_and_rejected_labels(titles_alone, tmp_path):
    known, tested = (next(read_table(describe(titles_alone), f"queries.{split}")) for split in ("train", "test"))
    before = {(row["query"], row["label"]) for part in read_table(describe(titles_alone), "positives.train")
              for row in part.to_pylist()}
    row = next(at for at, title in enumerate(known["title"]) if title not in set(tested["title"]))
    own = sorted(label for query, label in before if query == row)
    other = next(label for label in range(80) if label not in own)
    text = known["title"][row].as_py()
    said = [Feedback("a text of nobody", ["L7"], ["L8", "L9"]), Feedback(text, [f"L{other}"], [f"L{own[0]}"]),
            Feedback("only wrong", rejected=["L3"]), Feedback("of no known label", ["nobody's"]),
            Feedback(tested["title"][0].as_py(), ["L1"]),
            Feedback("a title", ["L1"], content="and a content")]
    folder = _learned(titles_alone, tmp_path / "home", said, feedback_held_out=0.0)
    check(Tables(folder, Thresholds(leak_share=1.0))).raise_for_failure()
    places = [at for at, title in enumerate(known["title"].to_pylist()) if title == text]
    positives, rows = _pairs(folder, "positives.train")
    n = len(known)
    corrected = before | {(n, 7), (n + 2, 1)} | {(place, other) for place in places}
    assert positives == corrected - {(place, own[0]) for place in places}
    assert {row["line"] for row in rows if row["file"] == "feedback/m.jsonl"} == {1, 2, 6}
    assert _pairs(folder, "rejected.train")[0] == {(n, 8), (n, 9), (n + 1, 3)} | {(place, own[0]) for place in places}
    titles = [title for shard in sorted((folder / "queries.train").glob("*.parquet"))
              for title in pq.read_table(shard)["title"].to_pylist()]
    assert titles[n:] == ["a text of nobody", "only wrong", "a title"]
    assert (folder / "held_out.jsonl").read_text() == ""
    assert json.loads((folder / "feedback.json").read_text())["left out"] == [
        "1 decision on labels that the data does not have", "1 text of the test split"]


def test_a_decision_on_an_example_of_the_page_is_one_on_a_test_text(xc_json, tmp_path):
    """The page shows a test text by its beginning; a text that is trained on is corrected all the same."""
    def row(place, title, content=""):
        return {"uid": f"q{place}", "title": title, "content": content, "target_ind": [0], "target_rel": [1]}

    long, also = "word " * 60, "toner " * 60
    write_json(xc_json, "trn.json.gz", [row(0, "printer"), row(1, "another")])
    write_json(xc_json, "tst.json.gz", [row(2, "printer", "is out of toner"), row(3, "login", "does not work"),
                                        row(4, "", long), row(5, also)])
    examples = [example(*texts) for texts in (("login", "does not work"), ("", long), (also, ""))]
    said = [Feedback(text, ["y"]) for text in (*examples, "printer", "word")]
    folder = _learned(xc_json, tmp_path / "home", said, feedback_held_out=0.0)
    titles = [title for shard in sorted((folder / "queries.train").glob("*.parquet"))
              for title in pq.read_table(shard)["title"].to_pylist()]
    assert titles == ["printer", "another", "word"]
    assert {(0, 1), (2, 1)} < _pairs(folder, "positives.train")[0]
    assert json.loads((folder / "feedback.json").read_text())["left out"] == ["3 texts of the test split"]


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_a_positive_of_feedback_weighs_the_average_one(xc_json, tmp_path, power):
    """Of relevances, weighed by any power: the mean relevance would weigh more than the mean weight."""
    write_json(xc_json, "trn.json.gz", [
        {"uid": f"q{at}", "title": f"text {at}", "content": "", "target_ind": [at % 3, 2], "target_rel": [1, clicks]}
        for at, clicks in ((0, 4), (1, 900))])
    folder = _learned(xc_json, tmp_path / "home", [Feedback("a text of nobody", ["z"])], weight_power=power,
                      feedback_held_out=0.0)
    _, rows = _pairs(folder, "positives.train")
    *data, own = [row["relevance"] ** power for row in rows]
    assert len(data) == 4 and rows[-1]["query"] == 2 and own == pytest.approx(sum(data) / 4, rel=1e-6)


def test_too_much_feedback_is_refused(planted, tmp_path):
    said = [Feedback(f"text {number}", ["L1"]) for number in range(200)]
    with pytest.raises(ContractError, match="feedback is 12% of the training queries"):
        _learned(planted, tmp_path, said, feedback_most=0.05)


def test_without_feedback_no_step_changes(planted):
    plain, with_none = (steps(describe(planted), PrepareConfig(), 0, *more) for more in ([], [Decisions()]))
    assert [step.about() for step in plain] == [step.about() for step in with_none]
    assert ADD_FEEDBACK not in [step.name for step in plain]


@pytest.mark.parametrize("error", [DamagedArtifact("files are not as registered"), ProjectError("no such version"),
                                   ValueError("another format")])
def test_a_champion_that_cannot_be_opened_does_not_cost_the_report(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(run_end, "resolve", refuse)
    monkeypatch.setattr(run_end, "Retriever", SimpleNamespace(load=str))
    monkeypatch.setattr(run_end, "feedback_effect", lambda tables, corpus, after, before: (after, before))
    run = SimpleNamespace(name="tickets", tracker=None, store=SimpleNamespace(open=lambda artifact, **_: artifact))
    done = {ADD_FEEDBACK: "tables", "build retriever": "ours"}
    assert run_end._feedback(run, None, done, SimpleNamespace(champion={"version": "1"})) == ("ours", None)
