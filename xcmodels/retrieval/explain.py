"""Why a label fits a text: what its score is made of, and which of its training texts are like the text.

A retriever keeps a few training texts of each label for that: as they are shown, and their tokens, which the query
encoder embeds when somebody asks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Near:
    """A training text of a label: its cosine with the text asked about, by the query encoder, and its labels' texts."""

    text: str
    similarity: float
    labels: list[str]


@dataclass(frozen=True)
class Explained:
    """What a label's score is the sum of, how many training texts have the label, and those most like the text.

    parts: "encoder" (the label's own text), "classifier", "similar texts" (where the label's training texts lie),
    "words" (shared with them), "trees" (what the fusion makes of the others); those that the retriever has.
    """

    parts: dict[str, float]
    frequency: int
    nearest: list[Near]


