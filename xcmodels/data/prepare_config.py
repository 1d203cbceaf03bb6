"""The settings of preparation: how raw texts become a corpus."""

from dataclasses import dataclass

from xcmodels import checks
from xcmodels.data.tokens import MINILM


@dataclass(frozen=True)
class PrepareConfig:
    """How raw texts are split, cut to tokens, walked and checked."""

    tokenizer: str = MINILM       # minilm | learned | a folder | a hub id
    vocabulary: int = 32_000      # tokens to learn, where tokenizer = learned
    max_title: int = 32           # tokens of a title that are kept
    max_content: int = 64         # tokens of a content that are kept
    augment: bool = False         # add each label's text as a training query of that label, flagged
    validation: float = 0.05      # share of the training queries held out to fit the fusion and to tune on
    validation_max: int = 10_000  # queries held out so, at most
    weight_power: float = 1.0     # a positive weighs its relevance to this power in training; 0 = all weigh the same
    walks: bool = True            # walk the anchor graphs, where the data set has any
    walk_hops: int = 400          # of the walk from a node (RAMEN, Appendix A, as the next)
    walk_restart: float = 0.8     # chance that a hop starts from the node again
    walk_top: int = 10            # anchors of a node that are kept, those visited most
    walk_degree: int = 500        # edges of a node or anchor, at most: those with more are left out of walks
    leak_share: float = 0.01      # share of test queries whose text may stand in train too
    drift_fail: float = 0.25      # stability index of label frequencies, against the last run, that stops a run
    feedback_held_out: float = 0.2    # share of the texts with feedback that only measure what it changed
    feedback_most: float = 0.5    # share of the training queries that may come from feedback

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "vocabulary", "max_title", "validation_max", "walk_hops", "walk_top", "walk_degree")
        checks.at_least(self, 0, "max_content", "drift_fail", "weight_power")
        checks.share(self, "leak_share", "walk_restart", "feedback_held_out", "feedback_most")
        checks.share(self, "validation", whole=False)
        if not self.validation:
            raise ValueError(f"validation must be above 0, got {self.validation}: confidences are fitted on that part")
