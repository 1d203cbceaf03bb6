"""ASTRA's settings."""

from dataclasses import dataclass, field

from xcmodels import checks
from xcmodels.method import Round
from xcmodels.methods.ngame_m1 import EncoderModuleConfig
from xcmodels.methods.table_config import TableConfig
from xcmodels.mining import schedule
from xcmodels.nn.encoder_config import LABEL, QUERY, EncoderConfig
from xcmodels.retrieval.serving_config import CLASSIFIER, ServingConfig

STAGE = "joint"


@dataclass(frozen=True, kw_only=True)
class AstraConfig(ServingConfig, schedule.Schedule, TableConfig):
    """All settings of a model (Algorithm 1, Appendix B.2)."""

    batch_size: int              # rows of a batch, at most; fewer where there are few texts
    lr: float                    # learning rate of dense parameters (Adam)
    token_lr: float              # of token embeddings (bag; Adam)
    label_lr: float              # learning rate of classifiers (SGD)
    momentum: float = 0.9        # of the classifiers' SGD
    summed: bool = False         # the loss is a sum over a batch, not a mean: label_lr is of the sum (SGD)
    weight_decay: float = 1e-4   # share of classifiers that a step at rate 1 takes
    warmup: int                  # steps over which the learning rates rise from 0
    decay: str = "cosine"        # linear | cosine: of the rates, from the first step on
    positives: int               # k_p: of a query in its loss
    hard: int                    # k_h: mined negatives of a query
    uniform: int                 # k_r: labels drawn uniformly, one draw a batch
    negatives: str = "both"      # both | random | hard | curriculum: random alone first, hard alone at the end
    source: str = "classifier"   # classifier | encoder: what hard negatives are mined over
    every_label: bool = False    # every label is a negative of every query, nothing is mined (Renee)
    unbiased: bool = True        # a uniform negative weighs L / k_r, not 1
    ahead: int = 2               # epochs by which the model that mines is older than the round it mines for
    start: str = "label"         # of classifiers: label | random | encoder: label texts, about zero, label texts by M1
    scale: float = 20.0          # a logit is scale * <x, w> + bias, both learned from here (`prior_bias`)
    dim: int = 0                 # of the bottleneck; 0 = as the backbone
    dropout: float = 0.0         # on the query vectors
    m1: EncoderModuleConfig | None = None  # NGAME's module M1, whose encoder this training starts from (start=encoder)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    serve: str = CLASSIFIER      # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    seed: int = 0                # every random draw is keyed by it

    def __post_init__(self) -> None:
        ServingConfig.__post_init__(self)
        schedule.Schedule.__post_init__(self)
        TableConfig.__post_init__(self)
        checks.at_least(self, 1, "batch_size", "positives")
        checks.at_least(self, 0, "lr", "token_lr", "label_lr", "warmup", "hard", "uniform", "ahead", "dim")
        checks.share(self, "dropout", "momentum", "weight_decay", whole=False)
        checks.one_of(self, decay=("linear", "cosine"), negatives=("both", "random", "hard", "curriculum"),
                      source=("classifier", "encoder"), start=("label", "random", "encoder"))
        if self.pretrained and self.dim:
            raise ValueError(f"dim must be 0 where start is encoder, got {self.dim}: module M1 has no bottleneck")
        if self.pretrained and self.m1 is None:
            raise ValueError("start must be label or random in this preset, got 'encoder': it has no module M1")
        if self.hard + self.uniform < 1:
            raise ValueError("hard + uniform must be at least 1, got 0: there is nothing to push a query from")
        if self.label_lr * self.weight_decay >= 1:
            raise ValueError(f"label_lr * weight_decay must be below 1, got {self.label_lr * self.weight_decay:g}")

    @property
    def pretrained(self) -> bool:
        """Whether module M1 trains the encoder first."""
        return self.start == "encoder"

    @property
    def label_view(self) -> str:
        """The view of a label's text: its own head by module M1, otherwise the text is read as a query's."""
        return LABEL if self.pretrained else QUERY

    @property
    def mined(self) -> int:
        """The number of hard negatives mined for each query."""
        if self.every_label or self.negatives == "random":
            return 0
        return self.hard + (0 if self.negatives == "both" else self.uniform)

    def counts(self, round_: Round) -> tuple[int, int]:
        """Return k_h and k_r of a round; their sum is always the same (Algorithm 1, steps 8 and 15; Table 5)."""
        total = self.hard + self.uniform
        if not round_.n_negatives:
            return 0, total
        done = (round_.stop - self.refresh_from) / (self.epochs - self.refresh_from)
        hard = {"both": self.hard, "hard": total, "curriculum": round(total * done)}[self.negatives]
        return hard, total - hard
