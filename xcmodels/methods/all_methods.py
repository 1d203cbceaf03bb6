"""All methods by name, from `METHODS` in the presets.py of each method's folder.

METHODS["ngame"].make(config) returns the method for a configuration.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from xcmodels.methods.preset_parts import MethodEntry

METHODS: Mapping[str, MethodEntry] = {
    name: entry for folder in pkgutil.iter_modules([str(Path(__file__).parent)]) if folder.ispkg
    for name, entry in import_module(f"xcmodels.methods.{folder.name}.presets").METHODS.items()}
