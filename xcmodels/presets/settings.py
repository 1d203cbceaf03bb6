"""What a preset holds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from xcmodels.corpus import PrepareConfig
from xcmodels.methods.ngame import NgameConfig
from xcmodels.methods.unidec import UnidecConfig


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, beside the data."""

    prepare: PrepareConfig
    method: NgameConfig | UnidecConfig

    @property
    def seed(self) -> int:
        """The seed that every draw of the run is keyed by."""
        return self.method.seed


@dataclass(frozen=True)
class Preset:
    """A named set of settings and what it is for."""

    about: str
    settings: Callable[[], Settings] = field(repr=False)
