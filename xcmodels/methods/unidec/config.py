"""The settings of UniDEC, DEPSL, DPR, TAS, ANCE and DEXML."""

from dataclasses import dataclass, field
from typing import ClassVar

from xcmodels import checks
from xcmodels.methods.table_config import TableConfig
from xcmodels.mining import schedule
from xcmodels.nn import losses
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER, FUSED, SUM, ServingConfig

LOSSES = {"decoupled": losses.decoupled_softmax, "supcon": losses.supcon}


@dataclass(frozen=True, kw_only=True)
class UnidecConfig(ServingConfig, schedule.ClusterSchedule, TableConfig):
    """All settings of a model; the defaults are UniDEC's (section 4, Algorithm 1)."""

    batch_size: int              # rows of a batch, at most; fewer where there are few texts
    lr: float                    # learning rate of dense parameters
    token_lr: float              # of token embeddings (bag)
    label_lr: float              # learning rate of classifiers
    warmup: int                  # steps over which the learning rates rise from 0
    decay: str = "cosine"        # linear | cosine: of the rates, from the first step on
    refresh_every: int = 5       # tau: epochs between two refreshes
    positives: int = 3           # beta: positives of a query that enter the pool
    pooled: bool = True          # positives picked for other queries count, too (pick-some-labels); false: are ignored
    negatives: int = 6           # eta: mined negatives of a query that enter the pool in an epoch; 0 = none
    every_label: bool = False    # every label is in every pool (DEXML)
    loss: str = "decoupled"      # decoupled | supcon
    temperature: float = 0.05    # of the softmax, the paper's other tau
    balance: float = 0.5         # lambda: share of the dual encoder's loss; 1 = no classifier (DEPSL)
    symmetric: float = 0.5       # share of the label-to-query loss (1 - lambda_D, 1 - lambda_C); the other has the rest
    softmax: float = 1.0         # weight of the classifier's softmax; 0 = binary cross-entropy alone (Table 3)
    bce: float = 0.0             # weight of the classifier's binary cross-entropy, beside its softmax
    head: str = "residual"       # residual | tanh (the paper's g1) | unit: of the dual encoder
    dim: int = 0                 # of the projections (tanh heads, classifier); 0 = as the backbone
    dropout: float = 0.1         # on the projections (tanh heads, classifier), in training
    serve: str = SUM             # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    unit: bool = True            # classifiers are served at unit length (section 3.4), or at the length they learned
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    seed: int = 0                # every random draw is keyed by it
    end_to_end: ClassVar[bool] = True    # one stage trains all that is served

    def __post_init__(self) -> None:
        ServingConfig.__post_init__(self)
        schedule.ClusterSchedule.__post_init__(self)
        TableConfig.__post_init__(self)
        checks.at_least(self, 1, "batch_size", "positives")
        checks.at_least(self, 0, "lr", "token_lr", "label_lr", "warmup", "negatives", "softmax", "bce",
                        "dim")
        checks.share(self, "balance", "symmetric")
        checks.share(self, "dropout", whole=False)
        checks.one_of(self, decay=("linear", "cosine"), loss=tuple(LOSSES), head=("residual", "tanh", "unit"))
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.every_label and not self.pooled:
            raise ValueError("pooled must be true with every_label, got false: every label is picked then")
        if self.dim and self.head != "tanh":
            raise ValueError(f"dim must be 0 unless head is tanh, got {self.dim}: no other head projects")
        if self.classifies and not self.softmax + self.bce:
            raise ValueError("softmax + bce must be above 0 where there are classifiers, got 0: they have no loss")
        trained = {0.0: CLASSIFIER, 1.0: ENCODER}.get(self.balance)
        if trained and self.serve not in (trained, FUSED):
            raise ValueError(f"serve must be {trained} or {FUSED} where balance is {self.balance:g}, got "
                             f"{self.serve!r}: nothing else is trained")

    @property
    def mines(self) -> bool:
        return super().mines or (self.negatives > 0 and not self.every_label)

    @property
    def classifies(self) -> bool:
        return self.balance < 1
