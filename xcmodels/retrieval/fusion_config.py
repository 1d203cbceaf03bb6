"""The settings of the score fusion."""

from dataclasses import dataclass

from xcmodels import checks


@dataclass(frozen=True)
class FusionConfig:
    """The settings of the score fusion, fitted on the validation split."""

    depth: int = 7             # how often a tree asks, at most
    trees: int = 1             # how many trees, each fitted on what those before it leave
    rate: float = 1.0          # share of what a tree finds that is added
    weight: float = 1.0        # of the trees beside the scores
    centroids: bool = False    # the similarity to the mean of a label's training queries is a third score
    words: bool = False        # the words shared with a label's text and its training queries are a further score
    shortlist: int = 200       # labels of a query whose scores are fused
    min_leaf: int = 50         # pairs of query and label in a leaf of a tree, at least

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "depth", "trees", "shortlist", "min_leaf")
        checks.at_least(self, 0, "weight")
        checks.share(self, "rate")
