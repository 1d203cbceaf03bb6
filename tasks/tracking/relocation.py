"""Update of the absolute paths in MLflow's database after a HOME was moved or copied.

MLflow stores absolute paths only. Those of a former folder are replaced in one transaction before anything else uses
the database, so that nothing is read from or written to that folder, whatever it is now.
"""

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tasks.tracking.identity import earlier_places

WAIT_SECONDS = 30.0     # for another process that writes to the database
_PATHS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
          ("model_versions", "source"), ("model_versions", "storage_location"), ("trace_tags", "value"),
          ("tags", "value"))    # of tags: the home of a run, and the command that repeats it


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
    """Return a function that replaces earlier folders in a text, alone or in paths of files.

    Only paths below mlartifacts count as files: the current folder may itself be below an earlier one.
    """
    places = "|".join(map(re.escape, sorted(earlier, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{places})(?=/mlartifacts(?:/|$)|/?(?:[\s'\"]|$))")
    return lambda text: text if text is None else pattern.sub(lambda _: home, text)
