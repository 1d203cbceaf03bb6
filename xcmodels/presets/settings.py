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

# WordNet's validation split, each half judged by what was fitted on the other, P@1 / P@5 / PSP@1 / PSP@5 at weights 1,
# 2, 3: NGAME 43.6 / 15.7 / 37.2 / 59.6, 44.2 / 15.9 / 36.9 / 60.0, 44.1 / 16.0 / 36.3 / 60.0; UniDEC 46.2 / 16.4 / 38.3
# / 60.8, 46.2 / 16.4 / 37.8 / 60.8, 46.0 / 16.5 / 37.4 / 60.7. On 600 queries in place of 2,184: .4 less, or none. Of
# 100 candidates, or of 64, the best 5 are those of 200 (of 24,940 test queries, PSP@5 .01 apart).
BOOSTED = FusionConfig(depth=5, trees=10, rate=0.3, weight=2.0, centroids=True, words=True, shortlist=100)


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
    """Return `base` from scratch: a bag of tokens on a vocabulary learned from the data, whatever its language.

    Idf says there which tokens matter until training does: NGAME on Debian's tags, P@5 / PSP@5 42.9 / 58.3 with it,
    41.7 / 54.8 without (P@1 85.8 and 87.7).
    """
    method: Any = base.method
    encoder = replace(method.encoder, source="random", idf_power=1.0)
    return Settings(replace(base.prepare, tokenizer=LEARNED), replace(method, encoder=encoder))
