"""RAMEN's settings."""

from dataclasses import dataclass, field
from typing import Any

from xcmodels import checks

SIDES = {"queries": "train", "labels": "label"}     # of a batch -> of a graph


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """How graphs regularise the base method."""

    sides: str = "both"          # both | queries | labels | none: whose edges pull
    strength: float = 0.1        # lambda of every graph and side, or where a bandit begins
    adapt: bool = False          # the strengths are arms of a bandit that learns them
    rate: float = 0.01           # learning rate of the bandit
    prune: bool = True           # edges whose ends are not similar are dropped at every refresh
    similar: float = 0.0         # cosine above which the ends of an edge are similar
    augment: bool = False        # labels that share an anchor with a query become its positives (AugGT)
    most: int = 10               # labels that augment adds to a query by each graph, at most
    margin: float = 0.3          # by which an edge is to score above an anchor of the batch (triplet loss)
    negatives: int = 10          # hardest anchors of the batch that a node is pushed from

    def __post_init__(self) -> None:
        checks.one_of(self, sides=("both", "queries", "labels", "none"))
        checks.at_least(self, 0, "strength", "rate", "margin")
        checks.at_least(self, 1, "negatives", "most")
        checks.at_least(self, -1, "similar")

    @property
    def regularised_sides(self) -> list[str]:
        return list(SIDES) if self.sides == "both" else [side for side in SIDES if side == self.sides]


@dataclass(frozen=True)
class RamenConfig:
    """The configuration of the base method, and the graphs' settings."""

    base: Any
    graph: GraphConfig = field(default_factory=GraphConfig)
    seed: int = 0                # every random draw is keyed by it, the base's as well

    def __post_init__(self) -> None:
        if self.base.seed:
            raise ValueError(f"seed is the one of both; base.seed must be 0, got {self.base.seed}")
        if self.graph.prune and self.graph.regularised_sides and not self.base.mines:
            raise ValueError("graph.prune must be false where the base mines neither clusters nor negatives, got true: "
                             "edges are pruned at its refreshes, and it has none")
        if self.graph.augment and not self.base.end_to_end:
            raise ValueError("graph.augment must be false over a base that trains its classifiers in a stage of their "
                             "own, got true: that stage would push queries from the labels that are added")
