"""Feedback and the next training: learned from, measured on what was held out, and the same when a run is resumed."""

import json
from pathlib import Path

from tasks.core.store import Store
from tasks.data.feedback.journal import Feedback, FeedbackJournal
from tasks.data.prepare import ADD_FEEDBACK
from tasks.plan import feedback_on
from tasks.tracking.tracker import Tracker
from tests.support.planted import QUICK, words
from tests.support.run_command import command, copied

SHORTER = {"m1.epochs": "8", "m2.epochs": "2", "m2.refresh_from": "1", "m2.refresh_every": "1"}    # than the first


def test_the_next_training_learns_what_reviewers_say(whole, planted, xc, tmp_path):
    home = copied(whole[0], tmp_path / "home")
    journal = FeedbackJournal(home, "planted")
    # Words that no text of the data has, of two labels; and labels that are wrong for words of others.
    said = [Feedback(f"zork{number % 40} quux{label}\u2028text {number}", [f"L{label}"], [f"L{other}"])
            for number in range(60) for label, other in [(3, 4) if number % 2 else (17, 18)]]
    journal.append(said)
    options = "ngame", "cpu-learned", {**QUICK, **SHORTER}
    assert len(feedback_on(home, "planted", options, begin=True).items) == 60    # as a run does that is then killed
    journal.append([Feedback(" ".join(words(5)), ["L6"])])
    code, out, told = xc(*command(planted, home, **SHORTER))
    assert code == 0, told
    assert "with feedback on 60 texts, feedback/planted.jsonl" in told and json.loads(out)["version"] == "2"
    words_of_run = [word for word in command(planted, home, **SHORTER)[1:] if word != "--json"]
    assert journal.begun() is None and xc("prepare", *words_of_run)[0] == 0
    assert journal.begun() is None, "what trains nothing begins no training"
    later = journal.path.read_bytes()
    journal.path.write_bytes(b"".join(later.splitlines(keepends=True)[:60]))    # nothing more was said yet
    for part in ("train", "evaluate"):
        code, _, told = xc(part, *words_of_run)
        assert code == 0 and "all reused" in told
        assert journal.begun() is None, "a version holds what was learned of it"
    journal.path.write_bytes(later)
    assert len(journal.begin("another's")) == 61
    step = next(manifest for _, manifest in Store(home).steps() if manifest["about"]["step"] == ADD_FEEDBACK)
    assert step["kind"] == "tables"
    with Tracker(home).required() as client:
        run = client.get_model_version("planted", "2").run_id
        effect = json.loads(Path(client.download_artifacts(run, "feedback.json")).read_text())
    counts, shares = effect["counts"], {share["what"].partition(",")[0]: share for share in effect["shares"]}
    assert counts["texts"] == 60 and counts["held out"] + counts["new queries"] == 60 and counts["held out"] >= 4
    right = shares["labels said to be right"]
    assert right["of"] == counts["held out"] and right["before"] < right["after"] == right["of"]
    report = max((home / "reports").glob("*.html"), key=lambda path: path.stat().st_mtime).read_text()
    assert "What feedback changed" in report and "Reviewers have judged 60 texts" in report
    page = min((home / "reports").glob("*.html"), key=lambda path: path.stat().st_mtime)
    page.write_text("half")    # as by a kill, before the version was noted
    Store(home).set_ref("reports", page.stem, {"version": None})
    code, _, told = xc(*command(planted, home), "--feedback", "ignore")
    assert code == 0 and "feedback" not in told.replace("--feedback", "") and "all reused" in told
    assert journal.begun() == 61, "what another training begins with stays marked"
    assert page.read_text().startswith("<!doctype html>")
