"""A method's name, preset and changed settings, from which another process rebuilds it."""

from collections.abc import Mapping
from dataclasses import dataclass

from xcmodels.method import Method


@dataclass(frozen=True)
class Recipe:
    """A method, one of its presets, and the changed settings, as `resolve` takes them."""

    method: str
    preset: str
    changed: Mapping[str, str]

    def make(self) -> Method:
        """Return the method; raises ValueError as `resolve` does."""
        from xcmodels.methods.presets import resolve
        from xcmodels.methods.registry import METHODS

        settings = resolve(self.method, self.preset, self.changed)    # refuses an unknown method
        return METHODS[self.method].make(settings.method)
