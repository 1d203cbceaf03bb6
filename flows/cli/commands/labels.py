"""`xc labels ...`: add labels to a model and remove them, without training."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from flows.cli.options import HOME, DryRun, Home, Json, Mlflow, Model, json_line, open_tracker, require_home, say
from tasks.core.wording import one_line, plural

labels = App(name="labels", help="Add labels to a model and remove them, without training.")
File = Annotated[str, Parameter(help="CSV, TSV, JSONL, Parquet, or a uid a line to remove; - is stdin.",
                                allow_leading_hyphen=True)]
Later = Annotated[bool, Parameter(help="Only record it; `xc labels apply`, or the hourly deployment, applies it.")]


@labels.command
def add(file: File, /, *, later: Later = False, dry_run: DryRun = False, model: Model = "", home: Home = HOME,
        mlflow: Mlflow = "") -> None:
    """Add the labels of FILE: a uid, a text and, if you like, a longer content each. They are found by their texts."""
    _edit("add", file, later=later, dry_run=dry_run, model=model, home=home, mlflow=mlflow)


@labels.command
def remove(file: File, /, *, later: Later = False, dry_run: DryRun = False, model: Model = "", home: Home = HOME,
           mlflow: Mlflow = "") -> None:
    """Remove the labels of FILE, one uid a line: they are never predicted again."""
    _edit("remove", file, later=later, dry_run=dry_run, model=model, home=home, mlflow=mlflow)


@labels.command(name="list")
def list_(*, model: Model = "", home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List what was added and removed, when and by whom, and whether the champion has it."""
    from tasks.registry.label_edits import journal_of

    store, tracker, name = _opened(model, home, mlflow)
    entries, applied = journal_of(store, tracker, name)
    if as_json:
        print(json_line({"model": name, "applied": applied, "edits": [
            {"when": entry.when, "who": entry.who, **vars(entry.edit)} for entry in entries]}))
        return
    for entry in entries:
        cells = (entry.when, entry.who, entry.edit.op, entry.edit.uid, entry.edit.text)
        print("\t".join(one_line(cell, len(cell)) for cell in cells))
    say(f"{name}: {plural(len(entries), 'edit')}, "
        + ("the champion has them" if applied else "`xc labels apply` gives them to the champion"))


@labels.command
def apply(*, model: Model = "", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Give the champion what was added and removed, where it does not have it."""
    _apply(*_opened(model, home, mlflow))


def _edit(op: str, file: str, *, later: bool, dry_run: bool, model: str, home: Path, mlflow: str) -> None:
    from tasks.registry.label_files import read_labels

    rows = read_labels(file, texts=op == "add")
    store, tracker, name = _opened(model, home, mlflow)
    from tasks.registry.label_edits import edit_labels

    count = edit_labels(store, tracker, name, op, rows, dry_run=dry_run, resume=not later)
    number = plural(count, "label")
    done = "added to" if op == "add" else "removed from"
    if dry_run:
        say(f"{number} would be {done} {name}")
    elif later:
        say(f"{number} will be {done} {name} by `xc labels apply`, or the hourly deployment")
    else:
        say(f"{number} will be {done} {name}")    # `_apply` says when they are
        _apply(store, tracker, name)


def _apply(store: Any, tracker: Any, name: str) -> None:
    from tasks.registry.label_edits import apply_edits

    result = apply_edits(store, tracker, name)
    if result is None:
        say(f"{name}: no label was ever added or removed")
    else:
        say(f"{name}: the champion is version {result.version}{'' if result.moved else ', as before'}: "
            f"version {result.base} with {plural(result.added, 'label')} added and {result.removed:,} removed")


def _opened(model: str, home: Path, mlflow: str) -> tuple[Any, Any, str]:
    from tasks.core.store import Store
    from tasks.registry.resolve import model_name

    require_home(home)
    store = Store(home, create=False)
    tracker = open_tracker(home, mlflow)
    return store, tracker, model_name(tracker, model or None)
