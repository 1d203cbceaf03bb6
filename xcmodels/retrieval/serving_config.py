"""The settings of serving and the names of served scores; training ignores both."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from xcmodels import checks
from xcmodels.retrieval import ann

# Scores: inner products with the label's embedding, its classifier and its centroid; the words that it and a text
# share; its linear classifier over words, and a frequent label's over all words; the share of its name; and what
# boosted trees over all of these add.
ENCODER, CLASSIFIER, SIMILAR, WORDS, SPARSE, FREQUENT, NAME, TREES = (
    "encoder", "classifier", "similar texts", "words", "sparse", "frequent", "name", "trees")
SUM, FUSED = "sum", "fused"
SERVED = (ENCODER, CLASSIFIER, SUM, FUSED)
MAX_DEPTH = 20    # of a tree of the fusion
MAX_WEIGHT = 1000.0    # of the trees or of names: above it the scores beside them are rounded away


@dataclass(frozen=True)
class SparseConfig:
    """The settings of the sparse view: linear classifiers over words, trained once a model is."""

    steps: int = 0        # of Adagrad over all pairs of query and label; 0 = no sparse view
    hard: int = 30        # nearest labels of a query that are its negatives, unless they are positives
    uniform: int = 20     # labels drawn uniformly as negatives of a query
    pull: float = 0.03    # L2 penalty towards the label's tf-idf centroid, where its classifier starts
    proposed: int = 50    # labels that the classifiers propose beside those of the index

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "hard")
        checks.at_least(self, 0, "steps", "uniform", "pull", "proposed")


@dataclass(frozen=True)
class FusionConfig:
    """The settings of the score fusion, fitted on the validation split."""

    depth: int = 7             # levels of splits in a tree, at most
    trees: int = 1             # how many trees, each fitted on what those before it leave
    rate: float = 1.0          # shrinkage of boosting: a tree's values are multiplied by it
    weight: float = 1.0        # factor on what the trees add to the sum; a fit begins there
    fit_weights: bool = False  # the weights of scores and trees are fitted, too, near those set
    centroids: bool = False    # the similarity to the mean of a label's training queries is a further score
    words: bool = False        # the words shared with a label's text and its training queries are a further score
    frequent: int = 0          # training queries of a label that has a linear classifier over all words; 0 = none has
    name: float = 0.0          # weight of a further score, the share of a label's name that a text has; 0 = none
    shortlist: int = 200       # labels of a query whose scores are fused
    min_leaf: int = 50         # pairs of query and label in a leaf of a tree, at least
    sparse: SparseConfig = field(default_factory=SparseConfig)

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "depth", "trees", "shortlist", "min_leaf")
        checks.at_least(self, 0, "weight", "name", "frequent")
        checks.share(self, "rate")
        for setting, weight in (("weight", self.weight), ("name", self.name)):
            if weight > MAX_WEIGHT:
                raise ValueError(f"{setting} must be at most {MAX_WEIGHT:g}, got {weight}")
        if self.depth > MAX_DEPTH:
            raise ValueError(f"depth must be at most {MAX_DEPTH}, got {self.depth}: a tree has room for 2^depth leaves")


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """How what a method has trained is served; served: the values of `serve` that a method allows."""

    served: ClassVar[tuple[str, ...]] = SERVED

    serve: str = ENCODER       # encoder | classifier | sum | fused: the scores that rank labels; fused adds trees
    fusion: FusionConfig = field(default_factory=FusionConfig)
    index: str = "auto"        # auto | exact | quantised | hnsw | grouped (auto that always mines by groups of queries)

    def __post_init__(self) -> None:
        checks.one_of(self, serve=self.served, index=ann.CHOICES)

    @property
    def training(self) -> dict[str, object]:
        """All settings that training depends on, by name: all but `serve` and `fusion`; mining uses `index`."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self)
                if setting.name not in ("serve", "fusion")}

    @property
    def serving(self) -> dict[str, object]:
        """All settings that a trained model's retriever depends on, by name."""
        return {"serve": self.serve, "fusion": self.fusion, "index": self.index}
