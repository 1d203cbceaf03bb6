"""Scorers of shortlisted labels: the protocol, and the inner product.

A scorer maps queries (n, d) and label ids (n, S), -1 = none, to scores (n, S), -inf for none. Its argument `tokens` is
needed only by lexical scores. A score is a sum of named parts, which explain why a label was predicted.
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
    """Labels without training queries, whose own texts take the place of queries.

    rows (m,): their new ids. embeddings (m, d): their texts encoded as labels. queries (m, width): the same texts
    encoded as queries. score_scale: for a slice of the query dimensions and the classifiers (L, .) that use it, the
    factor by which a text vector in a classifier's place scores no higher than trained classifiers.
    """

    rows: np.ndarray
    embeddings: np.ndarray
    queries: np.ndarray
    tokens: Tokens
    score_scale: Callable[[slice, np.ndarray], float]


class Scorer(Protocol):
    """Scores shortlisted labels; saved in the folder of the indexes whose vectors it reads."""

    kind: str

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts whose sum is the score of each (query row, label) pair, (p,) float32 each; `rows` ascend."""

    def with_labels(self, new: "NewLabels", indexes: Mapping[str, Index]) -> "tuple[Scorer, dict[str, np.ndarray]]":
        """Return this with new labels, and their vectors for each index over labels, by name."""

    def save(self, folder: Path) -> None:
        """Write to `folder` what the indexes do not hold."""


@dataclass(frozen=True)
class InnerProduct:
    """The inner product with one vector per label.

    spans: the named parts that a vector is concatenated of, and their dimensions; by default the encoder's alone.
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
        """Give each label its embedding, and its text encoded as a query for a classifier.

        A classifier that was never trained on negatives scores too many queries high, and no fusion corrects it here:
        it is scaled to score like those of the rarest labels.
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
