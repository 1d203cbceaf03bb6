"""The script by which a shell completes commands, options, methods and presets."""

from typing import Annotated, Literal

from cyclopts import App, Parameter

from flows.config import RunOptions


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the completion script of `app` for a shell, with the names of methods and presets written into it.

    Looking them up while the user types would take seconds, for imports.
    """
    from flows.forms import PRESET_NAMES, PRESETS

    annotations = dict(RunOptions.__annotations__)
    try:
        for name, choices in (("method", list(PRESETS)), ("preset", PRESET_NAMES)):
            RunOptions.__annotations__[name] = Annotated[annotations[name], Parameter(choices=choices)]
        return app.generate_completion(prog_name="xc", shell=shell)
    finally:
        RunOptions.__annotations__.update(annotations)
