"""How a retriever makes of what it knows of a (query, label) pair the score that ranks it.

A scorer scores shortlisted labels: (queries (n, d), ids (n, S), -1 = none) -> scores (n, S), -inf for none. It is
given the queries' tokens as well, and needs them only where it reads words. A score is a sum of parts, each named for
who asks why a label was predicted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.ann import Index
from xcmodels.retrieval.inner_products import pair_scores, put
from xcmodels.retrieval.serving import ENCODER


@dataclass(frozen=True)
class NewLabels:
    """Labels that no training query has. Each one's own text stands in for the query that is missing.

    rows (m,): the ids that they take. embeddings (m, d): their texts as the encoder sees labels. queries (m, width):
    the same texts, read as queries. score_scale: for some dimensions of a query vector and the classifiers (L, .) that
    read them, by what a text's own vector in a classifier's place is to be multiplied, to score no higher than trained.
    """

    rows: np.ndarray
    embeddings: np.ndarray
    queries: np.ndarray
    tokens: Tokens
    score_scale: Callable[[slice, np.ndarray], float]


class Scorer(Protocol):
    """Scores of shortlisted labels, saved beside the indexes whose vectors it reads."""

    kind: str

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the scores of (query row, label) pairs are the sum of, (p,) float32 each; `rows` ascend."""

    def with_labels(self, new: "NewLabels", indexes: Mapping[str, Index]) -> "tuple[Scorer, dict[str, np.ndarray]]":
        """Return this with further labels, and for each index over labels, by name, their vectors in it."""

    def save(self, folder: Path) -> None:
        """Write what the indexes do not hold to `folder`."""


@dataclass(frozen=True)
class InnerProduct:
    """The inner product with each label's one vector.

    spans: what its dimensions are of, in order, and how many; by default all are the encoder's.
    """

    vectors: np.ndarray    # (L, d)
    spans: Mapping[str, int] | None = None
    kind = "inner"

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        return spread(ids.shape, rows, slots, total(self.parts(queries, tokens, rows, ids[rows, slots])))

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inner products over each span."""
        out, start = {}, 0
        for name, width in self._spans().items():
            span = slice(start, start + width)
            out[name] = pair_scores(queries[:, span], self.vectors[:, span], rows, labels)
            start += width
        return out

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[InnerProduct, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text read as a query for a classifier.

        Nothing tempers a classifier here, and one that was never pushed away from a query is near to too many: it is
        made as loud as the rarest labels are.
        """
        (name,) = indexes
        parts, start = [], 0
        for part, width in self._spans().items():
            span = slice(start, start + width)
            parts.append(new.embeddings if part == ENCODER else
                         new.queries[:, span] * new.score_scale(span, self.vectors[:, span]))
            start += width
        vectors = np.concatenate(parts, axis=1)
        return replace(self, vectors=put(self.vectors, new.rows, vectors)), {name: vectors}

    def save(self, folder: Path) -> None:
        """Write the spans; the index holds the vectors."""
        (folder / "spans.json").write_text(json.dumps(list(self._spans().items())))

    def _spans(self) -> Mapping[str, int]:
        return self.spans or {ENCODER: self.vectors.shape[1]}

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "InnerProduct":
        """Take the vectors of the only index."""
        (index,) = indexes.values()
        return cls(index.vectors, dict(json.loads((folder / "spans.json").read_text())))


def total(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    first, *others = parts.values()
    return sum(others, first)


def spread(shape: tuple[int, ...], rows: np.ndarray, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full(shape, -np.inf, dtype=np.float32)
    out[rows, slots] = values
    return out
