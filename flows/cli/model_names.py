"""Names of registered models for shell completion, read straight from SQLite."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.config import HOME

VERSIONS = """
    SELECT name || '@' || alias FROM registered_model_aliases
    UNION ALL SELECT name || '/' || version FROM model_versions WHERE current_stage != 'Deleted_Internal'
    ORDER BY 1"""


def versions(context: Any) -> list[str]:
    """Return all NAME@alias and NAME/version in the home of the command being typed.

    Read from the database, as importing MLflow takes seconds; none where only a server has them.
    """
    home = context.get("--home")
    database = Path((home.raw if home else None) or HOME).absolute() / "mlflow.db"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection:
            return [name for name, in connection.execute(VERSIONS)]
    except sqlite3.Error:
        return []
