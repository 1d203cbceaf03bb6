"""`xc presets`: the presets of each method, and what each setting is."""

import json
from typing import Annotated

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.config_file import GIVEN
from flows.cli.options import Json, aligned


def presets(*, method: Annotated[str, Parameter(help="Method whose settings are explained.")] = "",
            preset: Annotated[str, Parameter(help="Preset whose values are shown with them.")] = "cpu",
            as_json: Json = False) -> None:
    """List the presets of each method; with --method, its settings and what each is; with --json, all of that."""
    if GIVEN.sources.get("preset") and not method:
        raise UsageError("--preset is one of a method, and no --method is given",
                         hint=f"--method NAME --preset {preset}")
    from tasks.training.recipe import Recipe
    from xcmodels.methods.presets import PRESETS, explained, flat

    shown = Recipe(method, preset, {}).settings() if method else None
    listed = {method: PRESETS[method]} if method else PRESETS
    if as_json:
        print(json.dumps({method_name: {name: {"about": entry.about, "settings": flat(entry.settings()),
                                               "explained": explained(entry.settings())}
                                        for name, entry in entries.items()}
                          for method_name, entries in listed.items()}, indent=1))
        return
    print("\n".join(aligned([(method_name, name, entry.about) for method_name, entries in listed.items()
                             for name, entry in entries.items()])))
    if shown is not None:
        texts = explained(shown)
        print("\n".join(["", *aligned([(key, value, texts[key]) for key, value in flat(shown).items()])]))
