"""The identity of a HOME: its id, and all folders that it has been in."""

import json
import os
import re
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from data_contracts.errors import DamagedArtifact
from tasks.core.files import fsync, remove, write_file
from tasks.tracking.mlflow_run import safe_name

FILE = "identity.json"


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
    known = _read(home)
    if known is None:
        new = Identity(uuid.uuid4().hex, list(dict.fromkeys([*_places_by_mlflow(home), str(home)])))
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
    try:
        write_file(part, (json.dumps(asdict(known), indent=1) + "\n").encode())
        if new:
            os.link(part, home / FILE)
        else:
            os.replace(part, home / FILE)
        fsync(home)
    finally:
        remove(part)


def _places_by_mlflow(home: Path) -> list[str]:
    """Return the folders of a home of an earlier release, without identity.json, from its MLflow experiments.

    Every experiment of a home has its files in HOME/mlartifacts, in a folder named after it or its id.
    """
    database = f"{(home / 'mlflow.db').as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, uri=True)) as base:
        rows = base.execute("SELECT name, experiment_id, artifact_location FROM experiments").fetchall()
        matches = [re.fullmatch(r"(/.+)/mlartifacts/([^/]+)", place or "") for _, _, place in rows]
        return [match[1] for match, (name, number, _) in zip(matches, rows, strict=True)
                if match and match[2] in (safe_name(name), str(number))]
    return []
