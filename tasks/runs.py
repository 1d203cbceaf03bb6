"""The runs of a home by MLflow's index and the home's lock: how each ended, at which step, and what resumes it."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil

from tasks.core.files import locked
from tasks.registry.ownership import RUN_HOME
from tasks.registry.tags import BASE, CHAMPION, version_at
from tasks.tracking.identity import identity
from tasks.tracking.mlflow_run import safe_name
from tasks.tracking.tracker import Tracker

COMMAND, HOME, PROCESS = "xc.command", RUN_HOME, "xc.process"    # tags: how, where and by whom it was last done
CHANGED = "xc.changed"    # tag: the settings that differ from the preset's, as JSON; params are all of them
State = Literal["registered", "finished", "trained", "failed", "interrupted", "running"]
WANTED = "tags.`mlflow.source.name` = 'xc'"
NOTE = "mlflow.note.content"


@dataclass(frozen=True)
class Past:
    """A run; times in ISO 8601, versions as "NAME/3", step: where it failed, was interrupted or is now."""

    state: State
    began: str
    ended: str | None = None
    name: str = ""            # MLflow's
    method: str = ""
    data: str = ""
    preset: str = ""
    changed: dict[str, str] = field(default_factory=dict)    # settings that differ from the preset's
    step: str = ""
    why: str = ""             # of a failure
    versions: list[str] = field(default_factory=list)
    champion: bool = False    # one of the versions is the champion
    command: str = ""         # the one that resumes it, or does it again
    run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def process_name(pid: int) -> str:
    """Return what tells a process from a later one that has its pid; "" where it has ended."""
    try:
        return f"{pid} {psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def holder(home: Path) -> int | None:
    """Return the process that runs in HOME now; None where none does."""
    try:
        with locked(home / "lock", fcntl.LOCK_SH, 0.0) as free:
            return None if free else int((home / "lock").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):    # ValueError: it has just come, and has no name yet
        return None


def past_runs(tracker: Tracker, *, shared: bool = False) -> list[Past]:
    """Return the runs of a home, the latest first; one that is still at its data is known by its process alone.

    shared: MLflow is one of several homes, so that their runs are left out. Raises ServerError where MLflow fails.
    """
    at_work = holder(tracker.home)
    found = [] if tracker.embedded and not (tracker.home / "mlflow.db").exists() else list(_tracked(
        tracker, process_name(at_work) if at_work else "", shared))
    if at_work and not any(each.state == "running" for each in found):
        found.append(Past("running", _iso(1000 * (tracker.home / "lock").stat().st_mtime), step="its data",
                          why=f"process {at_work}"))
    return sorted(found, key=lambda each: each.began, reverse=True)


def _tracked(tracker: Tracker, at_work: str, shared: bool) -> Iterator[Past]:
    with tracker.required() as client:
        made: dict[str, list[tuple[str, bool]]] = {}
        champions: dict[str, str] = {}
        for each in _all(client.search_model_versions):
            if each.name not in champions:
                champion = version_at(client, each.name, CHAMPION)
                champions[each.name] = champion.tags.get(BASE, str(champion.version)) if champion else ""
            if BASE not in each.tags:    # the labels of a version were edited, no run made that
                reigns = champions[each.name] == str(each.version)
                made.setdefault(each.run_id, []).append((f"{each.name}/{each.version}", reigns))
        places = identity(tracker.home).places if shared else ()
        experiments = [each.experiment_id for each in _all(client.search_experiments)]
        for run in _all(client.search_runs, experiment_ids=experiments, filter_string=WANTED) if experiments else ():
            if not shared or run.data.tags.get(HOME) in places:
                yield _past(run, at_work, sorted(made.get(run.info.run_id, [])))


def _past(run: Any, at_work: str, versions: list[tuple[str, bool]]) -> Past:
    tags, params = run.data.tags, dict(run.data.params)
    method, preset = params.pop("method", ""), params.pop("preset", "")
    told, _, command = tags.get(NOTE, "").rpartition("\n\n    ")
    running = bool(at_work) and tags.get(PROCESS) == at_work
    state: State = "running" if running else "registered" if versions else _STATES.get(run.info.status, "interrupted")
    # Earlier versions sent what had changed alone. Where a champion was only scored again, nothing was set.
    earlier = {key: value for key, value in params.items() if method and (key != "seed" or value != "0")}
    changed = json.loads(tags[CHANGED]) if CHANGED in tags else earlier
    return Past(
        state, _iso(run.info.start_time), _iso(run.info.end_time) if run.info.end_time and not running else None,
        run.info.run_name or "", method, tags.get("xc.data", ""), preset, changed,
        why=told if state == "failed" else "",
        step="" if state in ("registered", "finished") else _next(method, preset, changed, tags),
        versions=[name for name, _ in versions], champion=any(reigns for _, reigns in versions),
        command=tags.get(COMMAND, command), run_id=run.info.run_id)


_STATES: Mapping[str, State] = {"FINISHED": "finished", "SCHEDULED": "trained", "FAILED": "failed"}


def _next(method: str, preset: str, changed: Mapping[str, str], tags: Mapping[str, str]) -> str:
    """Return the first step of a run that MLflow was told nothing of; "" where its settings are not known."""
    from tasks.training.recipe import Recipe
    from tasks.training.steps import steps

    try:
        names = [step.name for step in steps(Recipe(method, preset, changed))]
    except ValueError:
        return ""
    return next((name for name in (*names, "evaluate") if f"xc.logged.{safe_name(name)}" not in tags), "register")


def _all(search: Any, **asked: Any) -> Iterator[Any]:
    """Yield what a search of MLflow's client finds, page by page."""
    token = None
    while True:
        page = search(**asked, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _iso(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().isoformat("T", "seconds")
