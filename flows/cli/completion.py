"""What a shell completes: commands, options, methods, presets, and the names of registered models."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from flows.config import HOME, CommonOptions

VERSIONS = """
    SELECT name || '@' || alias FROM registered_model_aliases
    UNION ALL SELECT name || '/' || version FROM model_versions WHERE current_stage != 'Deleted_Internal'
    ORDER BY 1"""


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the completion script of `app` for a shell, with the names of methods and presets written into it.

    Looking them up while the user types would take seconds, for imports.
    """
    from flows.forms import PRESET_NAMES, PRESETS

    annotations = dict(CommonOptions.__annotations__)
    try:
        for name, choices in (("method", list(PRESETS)), ("preset", PRESET_NAMES)):
            CommonOptions.__annotations__[name] = Annotated[annotations[name], Parameter(choices=choices)]
        return app.generate_completion(prog_name="xc", shell=shell)
    finally:
        CommonOptions.__annotations__.update(annotations)


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
