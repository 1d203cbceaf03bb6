"""The script by which a shell completes commands, options, methods and presets."""

from typing import Annotated, Literal

from cyclopts import App, Parameter

from flows.cli.options import Subject


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the completion script of `app` for a shell, with the names of methods and presets written into it.

    Looking them up while the user types would take seconds, for imports.
    """
    from xcmodels.methods.presets import PRESETS

    preset_names = tuple(dict.fromkeys(name for presets in PRESETS.values() for name in presets))
    annotations = dict(Subject.__annotations__)
    try:
        for name, choices in (("method", tuple(PRESETS)), ("preset", preset_names)):
            Subject.__annotations__[name] = Annotated[annotations[name], Parameter(choices=choices)]
        return app.generate_completion(prog_name="xc", shell=shell)
    finally:
        Subject.__annotations__.update(annotations)
