"""What a preset holds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from xcmodels.combine import FusionConfig
from xcmodels.corpus import PrepareConfig
from xcmodels.methods.astra import AstraConfig
from xcmodels.methods.ngame import NgameConfig
from xcmodels.methods.ramen import RamenConfig
from xcmodels.methods.siamesexml import SiamesexmlConfig
from xcmodels.methods.unidec import UnidecConfig
from xcmodels.tokens import LEARNED

# UniDEC on WordNet's validation split, each half judged by what was fitted on the other, P@1 / P@5 / PSP@1 / PSP@5: two
# scores alone 35.9 / 14.9 / 33.1 / 57.1; ten small trees at weight 2 42.1 / 15.6 / 34.1 / 58.3, with centroids
# 43.2 / 15.9 / 35.6 / 59.2; at weight 3 43.6 / 16.0 / 35.6 / 59.4, at 4 43.6 / 16.0 / 35.3 / 59.4.
BOOSTED = FusionConfig(depth=5, trees=10, rate=0.3, weight=3.0, centroids=True)


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, beside the data."""

    prepare: PrepareConfig
    method: AstraConfig | NgameConfig | RamenConfig | SiamesexmlConfig | UnidecConfig

    @property
    def seed(self) -> int:
        """The seed that every draw of the run is keyed by."""
        return self.method.seed


@dataclass(frozen=True)
class Preset:
    """A named set of settings and what it is for."""

    about: str
    settings: Callable[[], Settings] = field(repr=False)


def learned(base: Settings) -> Settings:
    """Return `base` from scratch: a bag of tokens on a vocabulary learned from the data, whatever its language."""
    method: Any = base.method
    encoder = replace(method.encoder, source="random")
    return Settings(replace(base.prepare, tokenizer=LEARNED), replace(method, encoder=encoder))
