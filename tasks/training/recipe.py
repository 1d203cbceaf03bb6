"""What a run's method is made from, by names and texts, so that another process makes the same of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from xcmodels.method import Method


@dataclass(frozen=True)
class Recipe:
    """A method, one of its presets, and the settings changed, as `resolve` takes them."""

    method: str
    preset: str
    changed: Mapping[str, str]

    def make(self) -> Method:
        """Return the method; raises ValueError as `resolve` does."""
        from xcmodels.methods.presets import resolve
        from xcmodels.methods.registry import METHODS

        settings = resolve(self.method, self.preset, self.changed)    # refuses a method that is none
        return METHODS[self.method].make(settings.method)
