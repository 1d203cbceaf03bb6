"""SiameseXML's settings."""

from dataclasses import dataclass, field
from typing import ClassVar

from xcmodels import checks
from xcmodels.methods.table_config import TableConfig
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.retrieval.serving_config import ENCODER, SERVED, ServingConfig

MIXED = "mixed"    # classifiers and embeddings, weighed on validation queries


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig(TableConfig):
    """A module's rates and its likelihood p(+1, v) = c exp(d (v - 1)) of a pair of cosine v (equation 5)."""

    epochs: int                # passes over the labels (I), over the queries (IV)
    batch_size: int            # labels (I) or queries (IV) of a batch, at most
    lr: float                  # learning rate of dense parameters
    table_lr: float            # of token embeddings (I), of classifiers (IV)
    warmup: int                # steps over which the learning rates rise from 0
    c: float                   # of p(+1, v): the likelihood that a pair of cosine 1 is relevant
    d: float                   # of p(+1, v): how fast it falls with the cosine
    negatives: int             # kappa: hardest of a label in its batch (I), of a query for each of its positives (IV)
    least_steps: int = 0       # of an epoch: of fewer labels (I) or texts (IV), one is several passes over them
    most_steps: int = 0        # of an epoch, whatever else is set: of more, one is a part of a pass; 0 = any number

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "epochs", "batch_size", "d", "negatives")
        checks.at_least(self, 0, "lr", "table_lr", "warmup", "least_steps", "most_steps")
        if not 0 < self.c < 1:
            raise ValueError(f"c must be above 0 and below 1, got {self.c}")


@dataclass(frozen=True, kw_only=True)
class SiamesexmlConfig(ServingConfig):
    """All settings of a model (section 4)."""

    served: ClassVar[tuple[str, ...]] = (MIXED, *SERVED)

    siamese: LikelihoodConfig
    extreme: LikelihoodConfig
    power: float = 0.45          # of a label's frequency in its chance to be drawn
    centroid: float = 0.3        # 1 - beta: share of the loss on label centroids
    scored_centroid: float = 1.0    # share of a label's centroid in its score, beside its text's embedding
    scored_query: str = "final"     # of a query, scored against label texts and centroids: intermediate | final
    correlation: bool = True     # label embeddings are smoothed over labels that share queries
    shortlist: int = 500         # labels of a query from each of the three indexes, to mine and to predict
    mined: int = 50              # the best of them, of which batches take the hardest
    positives: int = 20          # of a query in a batch of module IV
    partitions: int = 1          # of labels, each with a residual layer of its own
    joint: bool = False          # SiameseXML++: module IV trains the encoder's backbone, too
    token_lr: float = 0.0        # of token embeddings in module IV (++)
    dropout: float = 0.5         # after the residual layers of module IV
    head: str = "residual"       # residual | gelu (the paper's) | unit: of the intermediate embedding
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    serve: str = MIXED           # mixed (the paper's) | encoder | classifier | sum | fused: the scores that rank labels
    seed: int = 0                # every random draw is keyed by it

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, head=("residual", "gelu", "unit"), scored_query=("intermediate", "final"))
        checks.at_least(self, 1, "shortlist", "mined", "positives", "partitions")
        checks.at_least(self, 0, "power", "token_lr")
        checks.share(self, "centroid", "scored_centroid")
        checks.share(self, "dropout", whole=False)
        if self.partitions > 1 and self.serve not in (MIXED, ENCODER):
            raise ValueError(f"serve must be {MIXED} or {ENCODER} where there are {self.partitions} partitions, got "
                             f"{self.serve!r}: no single vector of a label scores every query")
