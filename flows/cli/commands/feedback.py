"""`xc feedback ...`: what reviewers decided on a model's answers, for the next training to learn from."""

from pathlib import Path
from typing import Any

from cyclopts import App

from flows.cli.options import HOME, Home, Json, Mlflow, Model, json_line, open_tracker, say
from tasks.core.wording import one_line, plural

feedback = App(name="feedback", help="See what reviewers decided on a model's answers.")


@feedback.command(name="list")
def list_(*, model: Model = "", home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List every decision: when, on which text, and the labels that are right (+) and wrong (-)."""
    journal, name = _journal(model, home, mlflow)
    entries = journal.read()
    for one in entries:
        if as_json:
            print(json_line(dict(vars(one))))
        else:
            said = [f"+{uid}" for uid in (*one.accepted, *one.added)] + [f"-{uid}" for uid in one.rejected]
            labels = [one_line(uid, len(uid)) for uid in said]
            text = f"{one.text} {one.content}"    # as whoever may post feedback sent it
            print("\t".join([one.when, f"v{one.version}", " ".join(labels), one_line(text, len(text))]))
    begun = journal.begun()
    later = f"; {len(entries) - begun:,} came after the unfinished training began" \
        if begun is not None and begun <= len(entries) else ""    # else the journal that it reads was moved away
    say(f"{name}: {plural(len(entries), 'decision')}{later}")


@feedback.command
def export(*, model: Model = "", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Print what stands in the end for each text, a JSON line each: text, right, wrong (uids of labels)."""
    from tasks.data.feedback.decisions import Decisions

    journal, name = _journal(model, home, mlflow)
    decided = Decisions.of(journal.read()).items
    for one in decided:
        print(json_line({"text": one.text, "right": one.right, "wrong": one.wrong}))
    say(f"{name}: {plural(len(decided), 'text')} with decisions")


def _journal(model: str, home: Path, mlflow: str) -> tuple[Any, str]:
    from tasks.data.feedback.journal import FeedbackJournal
    from tasks.registry.resolve import model_name

    name = model_name(open_tracker(home, mlflow), model or None)
    return FeedbackJournal(home, name), name
