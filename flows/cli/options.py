"""Options that several commands share, and helpers to set up a run and to print."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.config_file import FILE, GIVEN
from flows.cli.model_names import HOME, versions

Home = Annotated[Path, Parameter(env_var="XC_HOME", help="Folder for all state.")]
Mlflow = Annotated[str, Parameter(env_var="XC_MLFLOW", help="URI of an MLflow server; sqlite in the home by default.")]
Json = Annotated[bool, Parameter(name="--json", help="End with one line of JSON on stdout.")]
Spec = Annotated[str, Parameter(env_var="XC_MODEL", completer=versions,
                                help="NAME@alias, NAME/version or NAME; the only model by default.")]


@Parameter(name="*")
@dataclass
class Subject:
    """Which method on which data."""

    data: Annotated[Path, Parameter(env_var="XC_DATA", help="Folder of the raw data set.")]
    method: Annotated[str, Parameter(env_var="XC_METHOD", help="Method to train.")] = "ngame"
    preset: Annotated[str, Parameter(env_var="XC_PRESET", help="Named settings; see: xc presets.")] = "cpu"
    settings: Annotated[list[str], Parameter(name="--set", help="A setting to change in the preset, KEY=VALUE; "
                                                                 "repeatable.")] = field(default_factory=list)


@Parameter(name="*")
@dataclass
class Job(Subject):
    """What to do on which data: the options that every step of a run has."""

    home: Home = HOME
    dask: Annotated[str, Parameter(env_var="XC_DASK", help="Address of a Dask scheduler; embedded workers by "
                                                           "default.")] = ""
    workers: Annotated[int, Parameter(help="Embedded Dask workers.")] = 2
    overlap: Annotated[Literal["auto", "always", "never"], Parameter(
        help="Refresh by a Dask worker while training goes on; auto is where a GPU trains. A method gains that mines "
             "with an older model: astra.")] = "auto"
    processes: Annotated[int, Parameter(
        help="Processes that train together, each with a share of the label vectors; one a GPU by default.")] = 0


@Parameter(name="*")
@dataclass
class Tracked:
    """Where a run is tracked, and as what."""

    mlflow: Mlflow = ""
    name: Annotated[str, Parameter(help="Name of the registered model; the data set's name by default.")] = ""


TRACKED = Tracked()


def require_home(home: Path) -> None:
    """Raise UsageError where HOME does not exist, so there is no model."""
    if not home.exists():
        raise UsageError(f"there is no {home} here, so no model", hint="xc run --data DIR, or name its folder: --home")


def utf8(path: Path) -> None:
    """Raise UsageError for a path that is not UTF-8, which neither a database nor a JSON file can store."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{str(path.absolute())!r} is not UTF-8, so it cannot be written down",
                         hint="rename that folder, or work on a link to it: ln -s") from error


def environment(home: Path) -> None:
    """Set the environment variables of a run in HOME; imported here to keep other commands fast."""
    utf8(home)
    from flows.services.environment import set_up

    set_up(home)


def open_tracker(home: Path, mlflow: str) -> Any:
    """Return a tracker on the MLflow server that is named or that the home runs, else on the home's database."""
    environment(home)
    from flows.services.catalogue import mlflow_of
    from tasks.tracking.tracker import Tracker

    return Tracker(home, mlflow_of(home, mlflow) or None)


def say(line: str) -> None:
    """Print a message for a person, on stderr."""
    print(line, file=sys.stderr, flush=True)


def json_line(value: Any) -> str:
    """Return JSON on one line with non-ASCII letters as they are and unprintable characters escaped."""
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else "".join(
        char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def columns(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def pairs(option: str, words: Sequence[str], example: str) -> dict[str, str]:
    """Return the values of an option that takes KEY=VALUE, by key; raise UsageError for another form."""
    out = {}
    for pair in words:
        key, mark, value = pair.partition("=")
        if not mark:
            raise UsageError(f"{option} takes KEY=VALUE, got {pair!r}", hint=f"{option} {example}")
        out[key] = value
    return out


def resolved_settings(job: Subject) -> dict[str, str]:
    """Return the settings that differ from the preset's; raise UsageError where they or the data are invalid."""
    from tasks.plan import resolve_run

    settings = pairs("--set", job.settings, "m1.epochs=5")
    utf8(job.data)
    utf8(getattr(job, "home", HOME))
    try:
        resolve_run(job.data, job.method, job.preset, settings)
    except UsageError as error:
        ours = [f"no {name} {getattr(job, name)!r}" for name in ("method", "preset") if GIVEN.sources.get(name) == FILE]
        for key in (key for key, source in GIVEN.settings.items() if source == FILE):
            ours += [f"no setting {key!r}", f"{key} ", f"{key}:"]
        raise UsageError(error.what, where=FILE if error.what.startswith(tuple(ours)) else error.where,
                         hint=error.hint) from error
    return settings


def filled(form: Any, values: dict[str, Any]) -> Any:
    """Return a form filled in; raise UsageError naming the first invalid value."""
    from pydantic import ValidationError

    try:
        return form.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where, why = ".".join(map(str, first["loc"])) or "the form", first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(f"{where}: {why}, got {first['input']!r}"[:300]) from error


def home_flag(home: Path) -> str:
    """Return the --home option of a command to paste, "" for the default home."""
    return "" if home == HOME else f" --home {shlex.quote(str(home))}"
