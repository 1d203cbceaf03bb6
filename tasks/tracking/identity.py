"""The identity of a HOME, its id and all folders that it has been in; MLflow's paths are updated after a move.

MLflow stores absolute paths only. Those of a former folder are replaced in one transaction before anything else uses
the database, so that nothing is read from or written to that folder, whatever it is now.
"""

import json
import os
import re
import shlex
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from data_contracts.errors import DamagedArtifact
from tasks.core.files import link, put_file

FILE = "identity.json"
WAIT_SECONDS = 30.0     # for another process that writes to the database
_PATHS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
          ("model_versions", "source"), ("model_versions", "storage_location"), ("trace_tags", "value"),
          ("tags", "value"))    # of tags: the home of a run, and the command that repeats it


@dataclass(frozen=True)
class Identity:
    """A home's id, which its copies share, and the absolute paths of its folders, in order of first use."""

    id: str
    places: Sequence[str]


def identity(home: Path) -> Identity:
    """Return a home's identity, with its current folder added; the first call creates it.

    A read-only home is not written to. Raises DamagedArtifact where the file is invalid.
    """
    home = home.absolute()
    if (known := _read(home)) is None:
        new = Identity(uuid.uuid4().hex, [str(home)])
        with suppress(OSError):
            _write(home, new, new=True)
        return _read(home) or new    # another process may have been faster
    if str(home) not in known.places:
        known = Identity(known.id, [*known.places, str(home)])
        with suppress(OSError):
            _write(home, known)
    return known


def earlier_places(home: Path) -> list[str]:
    """Return the former folders of a home, without those that still lead to it by a link."""
    home = home.absolute()
    return [place for place in identity(home).places if place != str(home) and not same_folder(Path(place), home)]


def same_folder(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one folder; False where one is missing or not accessible."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _read(home: Path) -> Identity | None:
    path = home / FILE
    try:
        content = json.loads(path.read_bytes())
        return Identity(str(content["id"]), [str(place) for place in content["places"]])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedArtifact(f"{path} does not say which home this is",
                              hint="restore it from a backup, or remove it: it is made again") from error


def _write(home: Path, known: Identity, *, new: bool = False) -> None:
    """Write the file atomically; a `new` one does not replace an existing one."""
    part = home / "tmp" / uuid.uuid4().hex
    part.parent.mkdir(mode=0o700, exist_ok=True)
    put_file((json.dumps(asdict(known), indent=1) + "\n").encode(), home / FILE, link if new else os.replace, part)


def relocate(home: Path) -> bool:
    """Make all paths in HOME/mlflow.db those of the home's current folder; return whether any changed.

    A read-only database stays as it is. Raises sqlite3.Error where it cannot be used.
    """
    home = home.absolute()
    if not (earlier := earlier_places(home)) or not (home / "mlflow.db").exists():
        return False
    with closing(sqlite3.connect(home / "mlflow.db", timeout=WAIT_SECONDS, isolation_level=None)) as base:
        base.create_function("renamed", 1, _renaming(earlier, str(home)), deterministic=True)
        if not base.execute("SELECT 1 FROM experiments WHERE renamed(artifact_location) != artifact_location"
                            ).fetchone():
            return False
        try:
            base.execute("BEGIN IMMEDIATE")
            for table, column in _PATHS:
                base.execute(f"UPDATE {table} SET {column} = renamed({column}) WHERE renamed({column}) != {column}")
            base.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            return False
        return True


def _renaming(earlier: Sequence[str], home: str) -> Callable[[str | None], str | None]:
    """Return a function that replaces earlier folders in a text, alone, in paths of files, or as words of a command.

    Only paths below mlartifacts count as files: the current folder may itself be below an earlier one.
    """
    paths, words = ("|".join(map(re.escape, sorted(each, key=len, reverse=True)))
                    for each in (earlier, {*earlier, *map(shlex.quote, earlier)}))
    pattern = re.compile(rf"(?<![\w.-])(?:(?:{paths})(?=/mlartifacts(?:/|$)|/?['\"])|\A(?:{paths})(?=/?\Z)"
                         rf"|(?P<word>{words})(?=/?(?:\s|$)))")    # a word may have to be quoted for a shell
    return lambda text: text if text is None else pattern.sub(
        lambda found: shlex.quote(home) if found["word"] else home, text)
