"""The runs of a HOME: how each ended, at which step, and the command that resumes it."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import UsageError
from tasks.core.files import locked
from tasks.core.processes import process_name
from tasks.registry.tags import BASE, RUN_HOME, champion_of, trained_version
from tasks.tracking.identity import identity
from tasks.tracking.mlflow_client import all_pages
from tasks.tracking.mlflow_run import safe_name
from tasks.tracking.tracker import Tracker

COMMAND, PROCESS = "xc.command", "xc.process"    # tags: how and by whom it was last run; RUN_HOME: where
CHANGED = "xc.changed"    # tag: settings that differ from the preset's, as JSON; params hold all settings
State = Literal["registered", "finished", "trained", "failed", "interrupted", "running"]
OURS = "tags.`mlflow.source.name` = 'xc'"
NOTE = "mlflow.note.content"


@dataclass(frozen=True)
class RunRecord:
    """A run; times in ISO 8601, versions as "NAME/3"; step: where it failed, was interrupted or is now."""

    state: State
    began: str
    ended: str | None = None
    name: str = ""            # MLflow's
    method: str = ""
    data: str = ""
    preset: str = ""
    changed: dict[str, str] = field(default_factory=dict)    # settings that differ from the preset's
    step: str = ""
    why: str = ""             # the reason of a failure
    versions: list[str] = field(default_factory=list)
    champion: bool = False    # one of the versions is the champion
    command: str = ""         # resumes or repeats the run
    run_id: str = ""


def holder(home: Path) -> int | None:
    """Return the pid of the process that runs in HOME now; None where there is none."""
    try:
        with locked(home / "lock", fcntl.LOCK_SH, 0.0) as free:
            return None if free else int((home / "lock").read_text().partition("\n")[0])
    except (FileNotFoundError, NotADirectoryError, ValueError):    # ValueError: its pid is not written yet
        return None


def past_runs(tracker: Tracker, *, shared: bool = False) -> list[RunRecord]:
    """Return the runs of a home, the latest first; one still preparing data is known by its process alone.

    shared: several homes use this MLflow, so runs of the others are left out. Raises ServerError where MLflow fails.
    """
    pid = holder(tracker.home)
    runs = [] if tracker.is_empty else list(_records(tracker, process_name(pid) if pid else "", shared))
    if pid and not any(run.state == "running" for run in runs):
        runs.append(RunRecord("running", _iso(1000 * (tracker.home / "lock").stat().st_mtime), step="its data",
                          why=f"process {pid}"))
    return sorted(runs, key=lambda run: run.began, reverse=True)


def _records(tracker: Tracker, running_process: str, shared: bool) -> Iterator[RunRecord]:
    with tracker.required() as client:
        versions: dict[str, list[tuple[str, bool]]] = {}    # run id -> its versions, and whether each is champion
        champions: dict[str, str] = {}
        for version in all_pages(client.search_model_versions):
            if version.name not in champions:
                champion = champion_of(client, version.name)
                champions[version.name] = trained_version(champion) if champion else ""
            if BASE not in version.tags:    # else made by a label edit, not by a run
                is_champion = champions[version.name] == str(version.version)
                versions.setdefault(version.run_id, []).append((f"{version.name}/{version.version}", is_champion))
        places = identity(tracker.home).places if shared else ()
        experiments = [experiment.experiment_id for experiment in all_pages(client.search_experiments)]
        runs = all_pages(client.search_runs, experiment_ids=experiments, filter_string=OURS) if experiments else ()
        for run in runs:
            if not shared or run.data.tags.get(RUN_HOME) in places:
                yield _record(run, running_process, sorted(versions.get(run.info.run_id, [])))


def _record(run: Any, running_process: str, versions: list[tuple[str, bool]]) -> RunRecord:
    tags, params = run.data.tags, dict(run.data.params)
    method, preset = params.pop("method", ""), params.pop("preset", "")
    description, _, command = tags.get(NOTE, "").rpartition("\n\n    ")
    running = bool(running_process) and tags.get(PROCESS) == running_process
    state: State = "running" if running else _STATES.get(run.info.status, "interrupted")
    if versions and state in ("finished", "trained"):    # else killed or failed between the version and its promotion
        state = "registered"
    changed = json.loads(tags.get(CHANGED, "{}"))    # a run that only scored a champion has none
    return RunRecord(
        state, _iso(run.info.start_time), _iso(run.info.end_time) if run.info.end_time and not running else None,
        run.info.run_name or "", method, tags.get("xc.data", ""), preset, changed,
        why=description if state == "failed" else "",
        step="" if state in ("registered", "finished") else _next_step(method, preset, changed, tags),
        versions=[name for name, _ in versions], champion=any(is_champion for _, is_champion in versions),
        command=tags.get(COMMAND, command), run_id=run.info.run_id)


_STATES: Mapping[str, State] = {"FINISHED": "finished", "SCHEDULED": "trained", "FAILED": "failed"}


def _next_step(method: str, preset: str, changed: Mapping[str, str], tags: Mapping[str, str]) -> str:
    """Return the first step of a run that MLflow has no result of; "" where the settings are not known."""
    from tasks.training.recipe import Recipe
    from tasks.training.step_list import steps

    try:
        names = [step.name for step in steps(Recipe(method, preset, changed))]
    except UsageError:
        return ""
    return next((name for name in (*names, "evaluate") if f"xc.logged.{safe_name(name)}" not in tags), "register")


def _iso(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().isoformat("T", "seconds")
