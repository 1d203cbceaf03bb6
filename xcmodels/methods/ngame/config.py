"""NGAME's settings."""

from dataclasses import dataclass, field
from typing import ClassVar

from xcmodels import checks
from xcmodels.methods.ngame_m1 import EncoderModuleConfig, ModuleConfig
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.retrieval.serving_config import FUSED, ServingConfig


@dataclass(frozen=True, kw_only=True)
class ClassifierModuleConfig(ModuleConfig):
    """The settings of module M2."""

    dropout: float = 0.0       # on the query vectors
    unit: bool = False         # classifiers are of unit length, as in Appendix C

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.share(self, "dropout", whole=False)


@dataclass(frozen=True, kw_only=True)
class NgameConfig(ServingConfig):
    """All settings of an NGAME model."""

    m1: EncoderModuleConfig
    m2: ClassifierModuleConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    serve: str = FUSED         # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    seed: int = 0              # every random draw is keyed by it
    end_to_end: ClassVar[bool] = False    # M2 trains the classifiers alone

    @property
    def mines(self) -> bool:
        """Whether a refresh of the encoder's stage has anything to mine."""
        return self.m1.mines
