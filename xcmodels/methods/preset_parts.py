"""The types of settings, presets and method entries, and shared settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.tokens import LEARNED
from xcmodels.method import Method
from xcmodels.methods.ngame_m1 import EncoderModuleConfig
from xcmodels.retrieval.serving_config import FusionConfig, SparseConfig

# The fusion of the CPU presets: ten boosted trees beside the sum of the scores, in NGAME's and UniDEC's at the paper's
# weight of 1, in the others' at twice that. On validation splits a weight of 1 gains NGAME .1 of P@1 and .7 of PSP@1, a
# mean over seven data sets, and costs SiameseXML .8 and .3, over three (docs/methods.md, "The sparse view").
BOOSTED = FusionConfig(depth=5, trees=10, rate=0.3, fit_weights=True, centroids=True, words=True, frequent=30,
                       name=0.25, shortlist=100, sparse=SparseConfig(steps=40))
BOOSTED_WEIGHT_2 = replace(BOOSTED, weight=2.0)

# Steps of an epoch in the CPU presets, at least: an epoch on few texts is several passes over them, since one pass has
# MIN_STEPS_PER_PASS (20) steps. NGAME's M1 by 40 in place of 20 gains 2.0 of P@1 on man pages (docs/methods.md, "Few
# texts").
MIN_STEPS_PER_EPOCH = 40

# Steps of an epoch in the presets `cpu-minilm`, at most, so that their time is bounded whatever the number of texts: of
# 164,000 texts and more an epoch is a part of a pass.
MAX_STEPS_PER_EPOCH = 160

# NGAME's module M1, which ASTRA and Renee start from as well: a HOME that has trained one has trained it for all.
M1 = EncoderModuleConfig(epochs=8, batch_size=1024, lr=5e-3, table_lr=2e-3, warmup=50, refresh_from=3, refresh_every=3,
                  least_steps=MIN_STEPS_PER_EPOCH, double_every=3, cluster_size=8, cluster_max=32, negatives=50)

# More tokens cost a bag only a longer sum: NGAME on Debian's packages 52.6 / 26.9 / 33.0 / 33.5 by 64 tokens of a
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


def fine_tuned(base: Settings, *encoding: str) -> Settings:
    """Return `base` with the packaged MiniLM beside the bag, its two top layers trained at a tenth of the rate.

    encoding: the groups of settings of stages that encode texts, whose epochs are bounded; "": the method's own.
    """
    method = base.method
    for group in encoding:
        bounded = replace(getattr(method, group) if group else method, most_steps=MAX_STEPS_PER_EPOCH)
        method = replace(method, **{group: bounded}) if group else bounded
    encoder = replace(base.method.encoder, kind="both", trained_layers=2, cache_frozen=True, lr_share=0.1,
                      max_tokens=48, batch=1024, drops=False)
    return replace(base, method=replace(method, encoder=encoder))


def boosted(base: Settings) -> Settings:
    """Return `base` fused as the CPU presets are, with the sparse view."""
    return replace(base, method=replace(base.method, fusion=BOOSTED))


def learned(base: Settings, rate: str = "") -> Settings:
    """Return `base` from scratch: a bag of tokens on a vocabulary learned from the data, whatever its language.

    Idf weighs tokens until training learns to: NGAME on Debian's tags, P@5 / PSP@5 42.9 / 58.3 with it,
    41.7 / 54.8 without (P@1 85.8 and 87.7). Tokens that start at random have further to go, at three times the rate:
    NGAME on a held-out part of man pages 59.7 / 29.2 / 46.2 / 57.9 by .002, 60.1 / 30.5 / 46.4 / 60.8 by .006.
    rate: the setting that is the rate of tokens, such as "m1.table_lr"; without one their rate stays.
    """
    method = replace(base.method, encoder=replace(base.method.encoder, source="random", idf_power=1.0))
    if rate:
        group, _, name = rate.rpartition(".")
        rates = getattr(method, group) if group else method
        faster = replace(rates, **{name: 3 * getattr(rates, name)})
        method = replace(method, **{group: faster}) if group else faster
    return Settings(replace(base.prepare, tokenizer=LEARNED), method)
