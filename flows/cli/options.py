"""Options that several commands share, and helpers to set up a run and to print."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.completion import versions
from flows.cli.config_file import FILE, GIVEN
from flows.config import HOME, CommonOptions, Home, Mlflow, NameOptions, RunConfig, TrainingOptions, shared
from tasks.core.remote import checked_address, local_path

Json = Annotated[bool, Parameter(name="--json", help="End with one line of JSON on stdout.")]
Budget = Annotated[str, Parameter(help="Time for the whole job, such as 10m: the most accurate method that fits it, "
                                       "in place of --method and --preset.")]
DryRun = Annotated[bool, Parameter(name="--dry-run", help="Say what would be done, and do nothing.")]
Model = Annotated[str, shared("model", "The model; the only one by default.", variable=False)]
Spec = Annotated[str, shared("model", "NAME@alias, NAME/version or NAME; the only one by default.", completer=versions)]


def apply_budget(options: CommonOptions, budget: str) -> None:
    """Set the most accurate method and preset that a time budget allows, and say why; "" leaves the options alone."""
    if not budget:
        return
    for name in ("method", "preset"):
        if source := GIVEN.sources.get(name):
            raise UsageError(f"--budget chooses the method and its preset, but --{name} is given"
                             f"{'' if source == 'flag' else f' by {source}'}", hint="leave one of them out")
    from flows.time_budget import choose

    choice = choose(local_data(options), budget, options.home)
    options.method, options.preset = choice.method, choice.preset
    GIVEN.sources |= dict.fromkeys(("method", "preset"), "--budget")
    say(f"{'budget':<10} {choice.about}")


def local_data(options: CommonOptions) -> Path:
    """Return the folder of the data set; one at an address is fetched into the home, which is made for it."""
    from tasks.data.fetch import fetched

    if local_path(options.data) is None:
        from tasks.core.store import Store

        Store(options.home)
    return fetched(options.data, options.home.absolute(), say)


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
    """Set the environment variables of a run in HOME; raise UsageError for a path that cannot be a home.

    Imported here to keep other commands fast.
    """
    utf8(home)
    from flows.services.environment import set_up
    from tasks.core.home import require_folder

    require_folder(home)
    set_up(home)


def open_tracker(home: Home, mlflow: Mlflow) -> Any:
    """Return a tracker on the MLflow server that is named or that the home runs, else on the home's database.

    Raises UsageError where it would be on the database of a folder that is no home.
    """
    require_home(home)
    environment(home)
    from flows.services.definitions import mlflow_of
    from tasks.core.home import no_home
    from tasks.tracking.tracker import Tracker

    tracker = Tracker(home, mlflow_of(home, mlflow) or None)
    if tracker.is_empty and not (home / "FORMAT").exists() and any(home.iterdir()):
        raise no_home(home)
    return tracker


def say(line: str) -> None:
    """Print a message for a person, on stderr."""
    print(line, file=sys.stderr, flush=True)


def json_line(value: Any) -> str:
    """Return JSON on one line with non-ASCII letters as they are and unprintable characters escaped."""
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else "".join(
        char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def resolved_settings(options: CommonOptions) -> dict[str, str]:
    """Return the settings that differ from the preset's; raise UsageError where an option or the data is invalid."""
    from tasks.data.fetch import outline
    from tasks.data.sources import describe

    settings = options.settings
    if options.store:
        checked_address(options.store)
    if options.dask and not re.fullmatch(r"(\w+://)?[^\s/]+:\d+", options.dask):
        raise UsageError(f"{options.dask!r} is not the address of a Dask scheduler", hint="--dask tcp://HOST:8786")
    utf8(Path(options.data))
    utf8(options.home)
    try:
        with outline(options.data) as folder:
            describe(folder)    # a slip in --data is told before torch is imported, which takes seconds
            from tasks.plan import resolve_run

            raw, resolved = resolve_run(folder, options.method, options.preset, settings)
    except UsageError as error:
        ours = [f"no {name} {getattr(options, name)!r}" for name in ("method", "preset")
                if GIVEN.sources.get(name) == FILE]
        for key in (key for key, source in GIVEN.settings.items() if source == FILE):
            ours += [f"no setting {key!r}", f"{key} ", f"{key}:"]
        raise UsageError(error.what, where=FILE if error.what.startswith(tuple(ours)) else error.where,
                         hint=error.hint) from error
    from tasks.registry.tags import require_name
    from xcmodels.methods.presets import ends_before_mining, flat

    if isinstance(options, NameOptions):
        require_name(options.name or raw.name)
    for key in ends_before_mining(options.method, options.preset, settings):
        say(f"warning: neither clusters nor negatives are mined: the first refresh is after {key}="
            f"{flat(resolved)[key]} epochs, and there are no more")
    return settings


def checked_config(options: TrainingOptions, budget: str, command: str) -> RunConfig:
    """Return what a run is to do; raise UsageError for what it would refuse, before anything is started.

    command: the one that resumes it.
    """
    apply_budget(options, budget)
    resolved_settings(options)
    return filled(RunConfig, {**vars(options), "command": command})


def filled(form: Any, values: dict[str, Any]) -> Any:
    """Return a form filled in with what it has fields for; raise UsageError naming the first invalid value."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(form).validate_python(values, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + "-".join(map(str, first["loc"])).replace("_", "-")
        why = {"greater_than_equal": "be at least {ge:g}", "greater_than": "be above {gt:g}",
               "less_than": "be below {lt:g}", "less_than_equal": "be at most {le:g}"}.get(first["type"], "")
        why = why.format(**first.get("ctx", {}))
        said = f"{option} must {why}" if why else f"{option}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise UsageError(f"{said}, got {first['input']!r}"[:300]) from error


def home_flag(home: Path) -> str:
    """Return the --home option of a command to paste, "" for the default home."""
    return "" if home == HOME else f" --home {shlex.quote(str(home))}"
