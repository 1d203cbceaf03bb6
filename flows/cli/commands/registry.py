"""`xc models`, `xc promote`, `xc rollback`, `xc fetch`: versions of registered models."""

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.completion import versions
from flows.cli.options import HOME, DryRun, Home, Json, Mlflow, Model, home_flag, open_tracker, say
from tasks.core.wording import one_line

REASON = 1000    # characters of a reason in a list: those of gates name each that fails
Reason = Annotated[str, Parameter(help="Why: it is kept with the move, and has to be given.")]


def models(*, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """List the versions of every model: alias, metrics, since when and why it is the champion, or which gate refused.

    Metrics that are not to be compared with the champion's are marked.
    """
    from tasks.registry.champions import listing
    from xcmodels.metrics import HEADLINE, line_of

    rows = listing(open_tracker(home, mlflow))
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        say(f"there is no model yet; next: xc run --data DIR{home_flag(home)}")
    tests = {row["name"]: row["test"] for row in rows if "champion" in row["aliases"]}
    for row in rows:
        name, aliases = one_line(row["name"]), one_line(", ".join(row["aliases"]))
        metrics = line_of(row["metrics"], HEADLINE).replace(", ", "  ")
        print(f"{name}/{row['version']:<4} {aliases:<11} {metrics}{_marks(row, tests)}{_why(row)}")


def _marks(row: Mapping[str, Any], tests: Mapping[str, str]) -> str:
    """Return why a version's metrics do not compare with the champion's; tests: model -> the champion's test set."""
    marks = [*([f"of version {one_line(row['base'], 40)}, before its labels were edited"] if row["base"] else []),
             *(["on another test set than the champion's"] if tests.get(row["name"], row["test"]) != row["test"]
               else [])]
    return f" ({'; '.join(marks)})" if marks else ""


def _why(row: Mapping[str, Any]) -> str:
    """Return when, in local time, and why a version last became the champion, or why the gates refused it."""
    if row["moves"]:
        when = datetime.fromisoformat(row["moves"][-1]["when"]).astimezone()
        return f"  {when:%Y-%m-%dT%H:%M} {one_line(row['moves'][-1]['why'], REASON)}"
    return "" if row["gates"].get("promoted", True) else f"  refused: {one_line(row['gates']['reason'], REASON)}"


def fetch(model: Annotated[str, Parameter(completer=versions)], folder: Path, /, *, home: Home = HOME,
          mlflow: Mlflow = "") -> None:
    """Write MODEL as an MLflow model to the new FOLDER, every file verified, code too; nothing of it is run."""
    from tasks.registry.fetch import fetch as fetched

    version = fetched(open_tracker(home, mlflow), model, folder)
    say(f"{version.name}/{version.version}: every file is as it was registered")
    say(f"next       mlflow models serve -m {shlex.quote(str(folder))} --env-manager local")
    print(folder)


def promote(model: Annotated[str, Parameter(completer=versions)], /, *, reason: Reason = "",
            force: Annotated[bool, Parameter(help="Overrule the gates.")] = False, dry_run: DryRun = False,
            home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Make MODEL, NAME/VERSION or NAME@challenger, the champion where the gates hold."""
    why = _reason(reason, f"promote {shlex.quote(model)}", dry_run=dry_run)
    if not {"/", "@"} & set(model.removeprefix("models:/")):
        challenger = shlex.quote(f"{model}@challenger")
        raise UsageError(f"{model!r} names no version", hint=f"xc promote {challenger} --reason '...'")
    tracker = open_tracker(home, mlflow)
    from tasks.core.store import Store
    from tasks.registry.comparison import comparison_on_newest
    from tasks.registry.label_edits import locked_edits
    from tasks.registry.promotion import promote as promoted
    from tasks.registry.resolve import resolve_usable

    store, named = Store(home), resolve_usable(tracker, model)
    with store.no_collection():
        decision = promoted(
            tracker, named.name, named.version, why, compare=None if force else comparison_on_newest(store, named, say),
            edits=partial(locked_edits, store, tracker, named.name), force=force, dry_run=dry_run)
    for gate in decision.gates:
        say(f"{'holds' if gate.holds else 'FAILS':>5}  {gate}")
    became = named.version if decision.became is None else decision.became
    note = "" if became == named.version else f" (version {named.version} with the labels that were added and removed)"
    say(f"{named.name}/{became}{note} {'would become' if dry_run else 'is'} the champion: {decision}")


def rollback(name: Model = "", /, *, reason: Reason = "", dry_run: DryRun = False, home: Home = HOME,
             mlflow: Mlflow = "") -> None:
    """Make the champion before the present one the champion again."""
    why = _reason(reason, f"rollback {shlex.quote(name)}" if name else "rollback", dry_run=dry_run)
    from tasks.registry.champions import rollback as rolled_back
    from tasks.registry.resolve import model_name, resolve_usable

    tracker = open_tracker(home, mlflow)
    name = model_name(tracker, name or None)    # its champion's files may be what is wrong
    before, after = rolled_back(tracker, name, why, dry_run=True)
    resolve_usable(tracker, f"{name}/{after}")    # else nothing would answer
    if not dry_run:
        rolled_back(tracker, name, why, expected=(before, after))    # to verify the files takes seconds
    say(f"{name}@champion {'would go' if dry_run else 'went'} from version {before} to version {after}")


def _reason(reason: str, words: str, *, dry_run: bool) -> str:
    """Return the reason that is given; raise UsageError where there is none and something is to be moved."""
    if not reason.strip() and not dry_run:
        raise UsageError("say why: no reason is given", hint=f"xc {words} --reason 'clicks fell on Monday'")
    return reason.strip() or "by this command"
