"""A home that was moved, copied or restored elsewhere: its MLflow database names files by the folder that it is in now.

MLflow knows files by absolute paths alone. Those of an earlier folder are renamed in one transaction before anything
else uses the database, so that nothing is read from or written to what is there now, be it gone, closed or a home.
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
          ("tags", "value"))    # of tags: the home of a run, and the command that does it again


def relocate(home: Path) -> bool:
    """Have HOME/mlflow.db name every file by the home's present folder; -> whether it named an earlier one.

    A database that can only be read stays as it is: nothing is written by it either. Raises sqlite3.Error where it
    cannot be used.
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
    """Return what renames the files of earlier folders in a text, and those folders where they are a word of it.

    Only what is below mlartifacts counts as a file: the present folder may itself be below an earlier one.
    """
    places = "|".join(map(re.escape, sorted(earlier, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{places})(?=/mlartifacts(?:/|$)|/?(?:[\s'\"]|$))")
    return lambda text: text if text is None else pattern.sub(lambda _: home, text)
