"""NGAME's settings."""

from dataclasses import dataclass, field

from xcmodels.methods.ngame_m1 import ModuleConfig
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.retrieval.serving_config import FUSED, ServingConfig


@dataclass(frozen=True, kw_only=True)
class NgameConfig(ServingConfig):
    """All settings of an NGAME model."""

    m1: ModuleConfig
    m2: ModuleConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    serve: str = FUSED         # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    seed: int = 0              # every random draw is keyed by it
