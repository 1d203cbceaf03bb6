"""The script by which a shell completes commands, options, methods and presets."""

from typing import Annotated, Literal

from cyclopts import App, Parameter

from flows.cli.options import Subject


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the completion of `app` for a shell; the names of methods and presets are written into it.

    At the tab key they would cost the seconds that importing them takes.
    """
    from xcmodels.methods.presets import PRESETS

    known = {"method": tuple(PRESETS), "preset": tuple(dict.fromkeys(name for of in PRESETS.values() for name in of))}
    before = dict(Subject.__annotations__)
    try:
        for name, choices in known.items():
            Subject.__annotations__[name] = Annotated[before[name], Parameter(choices=choices)]
        return app.generate_completion(prog_name="xc", shell=shell)
    finally:
        Subject.__annotations__.update(before)
