"""NGAME's settings."""

from dataclasses import dataclass, field

from xcmodels import checks
from xcmodels.mining import schedule
from xcmodels.nn.backbones import EncoderConfig
from xcmodels.retrieval.serving_config import FUSED, ServingConfig


@dataclass(frozen=True, kw_only=True)
class ModuleConfig(schedule.ClusterSchedule):
    """The settings of one module: schedule, rates, triplet loss."""

    batch_size: int            # rows of a batch, at most; fewer where there are few texts
    lr: float                  # learning rate of dense parameters
    table_lr: float            # of token embeddings (M1), of classifiers (M2)
    warmup: int                # steps over which the learning rates rise from 0
    margin: float = 0.3        # by which a positive is to score above a negative (triplet loss)
    positives: int = 1         # positives of a row that are drawn (M1) or kept, hardest first (M2)
    negatives: int = 10        # hardest in-batch negatives of a row
    temperature: float = 0.1   # weighs the negatives kept by softmax(score / temperature); 0 = alike
    dropout: float = 0.0       # on the query vectors (M2)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "batch_size", "cluster_size", "cluster_max", "positives", "negatives")
        checks.at_least(self, 0, "lr", "table_lr", "warmup", "margin", "temperature")
        checks.share(self, "dropout", whole=False)


@dataclass(frozen=True, kw_only=True)
class NgameConfig(ServingConfig):
    """All settings of an NGAME model."""

    m1: ModuleConfig
    m2: ModuleConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    serve: str = FUSED         # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    seed: int = 0              # every random draw is keyed by it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m1.refresh_from < 1:
            raise ValueError("m1.refresh_from must be at least 1, got 0: clusters come from a trained encoder")
