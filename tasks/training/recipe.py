"""A method's name, preset and changed settings, from which another process rebuilds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import UsageError
from tasks.core.code_digest import code_digests
from xcmodels.method import Method
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import Settings, resolve


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
            known = f" --method {self.method}" if self.method in METHODS else ""
            raise UsageError(str(error), hint=f"xc presets{known}") from error

    def make(self) -> Method:
        """Return the method; raises UsageError as `settings` does."""
        settings = self.settings()    # refuses an unknown method
        return METHODS[self.method].make(settings.method)

    def code(self, name: str) -> dict[str, str]:
        """Return the digests of the modules that train the round called `name`."""
        method = self.make()
        return code_digests("tasks.training.train_round", *modules_of(method.stage(method.round(name).stage)))


def modules_of(part: Any) -> tuple[str, ...]:
    """Return the modules with the code of a stage or a builder: its own, and those of the parts that it holds."""
    inner = [value for value in vars(part).values() if type(value).__module__.startswith("xcmodels.methods.")]
    modules = [modules_of(value) for value in inner if hasattr(value, "settings")]
    return tuple(sorted({type(part).__module__, *(name for names in modules for name in names)}))
