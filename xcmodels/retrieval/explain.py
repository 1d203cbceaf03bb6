"""Explanations of a prediction: the parts of a score, and similar training texts.

A retriever keeps a few training texts of each label for that, with their tokens, which the query encoder embeds on
request.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Near:
    """A training text of a label: its cosine with the explained text by the query encoder, and its labels' texts."""

    text: str
    similarity: float
    labels: list[str]


@dataclass(frozen=True)
class Explained:
    """The parts that a label's score is the sum of, its number of training texts, and the most similar of those.

    parts: those that the retriever has of "encoder" (the label's own text), "classifier", "similar texts" (the centroid
    of the label's training texts), "words" (shared with them), "trees" (what the fusion adds to the others).
    """

    parts: dict[str, float]
    frequency: int
    nearest: list[Near]


