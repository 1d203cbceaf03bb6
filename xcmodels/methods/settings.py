"""The types of settings, presets and method entries, and shared settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xcmodels.data.corpus import PrepareConfig
from xcmodels.data.tokens import LEARNED
from xcmodels.method import Method
from xcmodels.methods.encoder_module import ModuleConfig
from xcmodels.retrieval.serving_config import FusionConfig, SparseConfig

# WordNet's validation split, each half scored by a fusion fitted on the other, P@1 / P@5 / PSP@1 / PSP@5 at weights 1,
# 2, 3: NGAME 43.6 / 15.7 / 37.2 / 59.6, 44.2 / 15.9 / 36.9 / 60.0, 44.1 / 16.0 / 36.3 / 60.0; UniDEC 46.2 / 16.4 / 38.3
# / 60.8, 46.2 / 16.4 / 37.8 / 60.8, 46.0 / 16.5 / 37.4 / 60.7. On 600 queries in place of 2,184: .4 less, or none. Of
# 100 candidates, or of 64, the best 5 are those of 200 (of 24,940 test queries, PSP@5 .01 apart).
BOOSTED = FusionConfig(depth=5, trees=10, rate=0.3, weight=2.0, centroids=True, words=True, shortlist=100,
                       sparse=SparseConfig(steps=40))

# Of an epoch on a CPU, where one pass over few texts makes 20. P@1 / P@5 / PSP@1 / PSP@5 on a part of train that is
# held out. Five seeds, NGAME's M1 by 40 in place of 20: man pages (3,285 texts) 2.0 / 1.0 / 1.9 / 1.8 more, Python's
# library (3,480) 0 / -.3 / .1 / -1.1, Debian's packages and what they depend on (9,433) -.8 / .3 / -1.9 / -.5; M2 by 40
# as well .4 / -.1 / .2 / -.3 more, -.1 / 0 / .2 / 0, -.4 / 0 / -.7 / -.3 (standard errors .1 to .5): it has no floor.
# One seed, DEPSL by 20, 40, 80: man pages 60.2 / 35.3 / 41.2 / 52.8, 62.2 / 36.6 / 43.2 / 54.2, 59.6 / 37.0 / 39.4 /
# 54.8; packages 51.1 / 25.6 / 31.2 / 30.6, 47.9 / 25.2 / 26.2 / 29.1, 43.9 / 23.6 / 21.7 / 25.6; ASTRA there 44.0 /
# 23.3 / 27.3 / 27.6, by 80 47.0 / 25.0 / 27.0 / 29.8. Leaving out 30% of the tokens makes up for little of that loss.
LEAST_STEPS = 40

# NGAME's module M1, which ASTRA and Renee start from as well: a HOME that has trained one has trained it for all.
M1 = ModuleConfig(epochs=8, batch_size=1024, lr=5e-3, table_lr=2e-3, warmup=50, refresh_from=3, refresh_every=3,
                  least_steps=LEAST_STEPS, double_every=3, cluster_size=8, cluster_max=32, negatives=50)

# More tokens cost a bag only a longer sum: NGAME on those packages 52.6 / 26.9 / 33.0 / 33.5 by 64 tokens of a
# content, 53.5 / 27.4 / 32.0 / 33.7 by 192; on man pages 57.2 / 35.8 / 37.6 / 52.2 and 57.8 / 36.4 / 37.2 / 52.1.
BAG = PrepareConfig(max_content=192)


@dataclass(frozen=True)
class Settings:
    """All settings that a run depends on; method: the dataclass of those that a model of one method depends on."""

    prepare: PrepareConfig
    method: Any

    @property
    def seed(self) -> int:
        return self.method.seed


@dataclass(frozen=True)
class Preset:
    """A named set of settings and its purpose."""

    about: str
    settings: Callable[[], Settings] = field(repr=False)


@dataclass(frozen=True)
class MethodEntry:
    """A method's factory, from its configuration, and its presets by name."""

    make: Callable[[Any], Method]
    presets: Mapping[str, Preset]


def fine_tuned(base: Settings) -> Settings:
    """Return `base` with the packaged MiniLM beside the bag, its two top layers trained at a tenth of the rate."""
    encoder = replace(base.method.encoder, kind="both", trained_layers=2, lr_share=0.1, max_tokens=48, batch=1024,
                      drops=False)
    return replace(base, method=replace(base.method, encoder=encoder))


def learned(base: Settings) -> Settings:
    """Return `base` from scratch: a bag of tokens on a vocabulary learned from the data, whatever its language.

    Idf weighs tokens until training learns to: NGAME on Debian's tags, P@5 / PSP@5 42.9 / 58.3 with it,
    41.7 / 54.8 without (P@1 85.8 and 87.7).
    """
    encoder = replace(base.method.encoder, source="random", idf_power=1.0)
    return Settings(replace(base.prepare, tokenizer=LEARNED), replace(base.method, encoder=encoder))
