"""Scorers of shortlisted labels: the protocol, and the inner product.

A scorer maps queries (n, d) and label ids (n, S), -1 = none, to scores (n, S), -inf for none. Its argument `tokens` is
needed only by lexical scores, which also take the words that `read` found in the tokens. A score is a sum of named
parts, which explain why a label was predicted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np

from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.ann import NO_IDS, Index
from xcmodels.retrieval.inner_products import pair_scores, put
from xcmodels.retrieval.lexicon import ReadTexts
from xcmodels.retrieval.serving_config import ENCODER


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


class Scorer:
    """Scores shortlisted labels; saved in the folder of the indexes whose vectors it reads."""

    kind: ClassVar[str]

    def read(self, tokens: Tokens) -> ReadTexts:
        """Return what proposing and scoring read of texts, so that it is found once; by default their tokens."""
        return tokens

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: ReadTexts | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        out = np.full(ids.shape, -np.inf, dtype=np.float32)
        out[rows, slots] = self.scores(queries, tokens, rows, ids[rows, slots])
        return out

    def propose(self, tokens: ReadTexts, without: np.ndarray = NO_IDS) -> list[np.ndarray]:
        """Return labels to score beside those of the indexes, (n, .) int64 of n texts, -1 for none; by default none.

        without: the ids of labels that are not proposed, ascending.
        """
        return []

    def scores(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
               labels: np.ndarray) -> np.ndarray:
        """Return the score of each (query row, label) pair, (p,) float32; `rows` ascend."""
        first, *others = self.parts(queries, tokens, rows, labels).values()
        return sum(others, first)

    def parts(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the named parts whose sum is the score of each pair, (p,) float32 each."""
        raise NotImplementedError

    def contributions(self, tokens: Tokens, label: int) -> dict[tuple[int, ...], float]:
        """Return what each word of one text, as its token ids, adds for a label; by default nothing is known."""
        return {}

    def unfused(self) -> "Mapping[str, Scorer]":
        """Return a scorer for each value of `serve` that ranks by a part of this score, without the fusion.

        By default there is none.
        """
        return {}

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[Scorer, dict[str, np.ndarray]]":
        """Return this with new labels, and their vectors for each index over labels, by name."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write to `folder` what the indexes do not hold."""
        raise NotImplementedError


@dataclass(frozen=True)
class InnerProduct(Scorer):
    """The inner product with one vector per label.

    spans: the named parts that a vector is concatenated of, and their dimensions; by default the encoder's alone.
    """

    vectors: np.ndarray    # (L, d)
    spans: Mapping[str, int] | None = None
    kind = "inner"

    def parts(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inner products over each span."""
        return {name: pair_scores(queries[:, span], self.vectors[:, span], rows, labels)
                for name, span in self.slices().items()}

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[InnerProduct, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text encoded as a query for a classifier.

        A classifier that was never trained on negatives scores too many queries high, and no fusion corrects it here:
        it is scaled to score like those of the rarest labels.
        """
        (name,) = indexes
        vectors = np.concatenate([new.embeddings if part == ENCODER else
                                  new.queries[:, span] * new.score_scale(span, self.vectors[:, span])
                                  for part, span in self.slices().items()], axis=1)
        return replace(self, vectors=put(self.vectors, new.rows, vectors)), {name: vectors}

    def save(self, folder: Path) -> None:
        """Write the spans; the index holds the vectors."""
        (folder / "spans.json").write_text(json.dumps(
            [(name, span.stop - span.start) for name, span in self.slices().items()]))

    def slices(self) -> dict[str, slice]:
        """Return the dimensions of each named part, of a label's vector as of a query's."""
        spans = self.spans or {ENCODER: self.vectors.shape[1]}
        ends = accumulate(spans.values())
        return {name: slice(end - width, end) for (name, width), end in zip(spans.items(), ends, strict=True)}

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "InnerProduct":
        """Take the vectors of the only index."""
        (index,) = indexes.values()
        return cls(index.vectors, dict(json.loads((folder / "spans.json").read_text())))
