"""A method's name, preset and changed settings, from which another process rebuilds it."""

from collections.abc import Mapping
from dataclasses import dataclass

from data_contracts.errors import UsageError
from xcmodels.method import Method
from xcmodels.methods.presets import Settings, resolve
from xcmodels.methods.registry import METHODS


@dataclass(frozen=True)
class Recipe:
    """A method, one of its presets, and the changed settings, as `resolve` takes them."""

    method: str
    preset: str
    changed: Mapping[str, str]

    def settings(self) -> Settings:
        """Return all settings. Raises UsageError for an unknown method, preset or setting."""
        try:
            return resolve(self.method, self.preset, self.changed)
        except ValueError as error:
            raise UsageError(str(error), hint="xc presets") from error

    def make(self) -> Method:
        """Return the method; raises UsageError as `settings` does."""
        settings = self.settings()    # refuses an unknown method
        return METHODS[self.method].make(settings.method)
