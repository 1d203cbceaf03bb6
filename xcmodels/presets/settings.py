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

# On WordNet's validation split ten small trees reach P@1 40.6 at weight 1 and 41.3 at 3, the paper's one 40.4; PSP@1
# 34.2, 33.8 and 33.9. Two is between.
BOOSTED = FusionConfig(depth=5, trees=10, rate=0.3, weight=2.0)


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
