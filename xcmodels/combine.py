"""How a retriever combines what it knows of a (query, label) pair into the score that ranks it.

A combination scores shortlisted labels: (queries (n, d), ids (n, S), -1 = none) -> scores (n, S), -inf for none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from xcmodels.ann import Index
from xcmodels.fusion import RegressionTree


class Combine(Protocol):
    """Scores of shortlisted labels, saved beside the indexes whose vectors it reads."""

    kind: str

    def __call__(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""

    def save(self, folder: Path) -> None:
        """Write what the indexes do not hold to `folder`."""


@dataclass(frozen=True)
class InnerProduct:
    """The inner product with each label's one vector."""

    vectors: np.ndarray    # (L, d)
    kind = "inner"

    def __call__(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        return _spread(ids.shape, rows, slots, pair_scores(queries, self.vectors, rows, ids[rows, slots]))

    def save(self, folder: Path) -> None:
        """Write nothing: the index holds the vectors."""

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "InnerProduct":
        """Take the vectors of the only index."""
        (index,) = indexes.values()
        return cls(index.vectors)


@dataclass(frozen=True)
class TreeFusion:
    """NGAME's fused score: T(z^T x, w^T x, f) + z^T x + w^T x (Appendix C)."""

    tree: RegressionTree
    embeddings: np.ndarray     # (L, d), z
    classifiers: np.ndarray    # (L, d), w
    frequencies: np.ndarray    # (L,) float32, f
    kind = "tree"

    def __call__(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        labels = ids[rows, slots]
        similar = pair_scores(queries, self.embeddings, rows, labels)
        classified = pair_scores(queries, self.classifiers, rows, labels)
        fused = self.tree.predict(np.stack([similar, classified, self.frequencies[labels]], axis=1))
        return _spread(ids.shape, rows, slots, fused + similar + classified)

    def save(self, folder: Path) -> None:
        """Write the tree, the embeddings and the frequencies; the classifiers are the index's."""
        self.tree.save(folder / "fusion.npz")
        np.save(folder / "embeddings.npy", self.embeddings)
        np.save(folder / "frequencies.npy", self.frequencies)

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "TreeFusion":
        """Map what `save` wrote."""
        return cls(RegressionTree.load(folder / "fusion.npz"), np.load(folder / "embeddings.npy", mmap_mode="r"),
                   indexes["classifier"].vectors, np.load(folder / "frequencies.npy", mmap_mode="r"))


@dataclass(frozen=True)
class CentroidMix:
    """SiameseXML's score: alpha w^T x + (1 - alpha) (z + v)^T x (section 4, log-time prediction).

    A query vector is its intermediate embedding, then its embedding for each of `partitions` parts of the labels;
    label l is scored by part l mod partitions.
    """

    classifiers: np.ndarray    # (L, d), w
    centroids: np.ndarray      # (L, d), the embedding of the label's text and its centroid, z + v
    partitions: int
    alpha: float
    kind = "centroid mix"

    def __call__(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        labels = ids[rows, slots]
        parts = queries[:, self.classifiers.shape[1]:].reshape(len(queries) * self.partitions, -1)
        rows_of = rows * self.partitions + labels % self.partitions
        classified = pair_scores(parts, self.classifiers, rows_of, labels)
        similar = pair_scores(parts, self.centroids, rows_of, labels)
        return _spread(ids.shape, rows, slots, self.alpha * classified + (1 - self.alpha) * similar)

    def save(self, folder: Path) -> None:
        """Write both matrices and how they mix."""
        np.save(folder / "classifiers.npy", self.classifiers)
        np.save(folder / "centroids.npy", self.centroids)
        (folder / "mix.json").write_text(json.dumps({"partitions": self.partitions, "alpha": self.alpha}))

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "CentroidMix":
        """Map what `save` wrote."""
        facts = json.loads((folder / "mix.json").read_text())
        return cls(np.load(folder / "classifiers.npy", mmap_mode="r"), np.load(folder / "centroids.npy", mmap_mode="r"),
                   facts["partitions"], facts["alpha"])


KINDS: Mapping[str, type[InnerProduct] | type[TreeFusion] | type[CentroidMix]] = {
    each.kind: each for each in (InnerProduct, TreeFusion, CentroidMix)}


def pair_scores(queries: np.ndarray, matrix: np.ndarray, rows: np.ndarray, labels: np.ndarray,
                chunk: int = 1 << 16) -> np.ndarray:
    """Return queries[rows] . matrix[labels], (p,) float32, gathering `chunk` pairs at a time."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        out[part] = np.einsum("pd,pd->p", queries[rows[part]], matrix[labels[part]])
    return out


def _spread(shape: tuple[int, ...], rows: np.ndarray, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full(shape, -np.inf, dtype=np.float32)
    out[rows, slots] = values
    return out
