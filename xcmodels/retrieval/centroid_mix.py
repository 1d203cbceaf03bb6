"""SiameseXML's score: a mix of classifiers, label embeddings and label centroids."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import mapped
from xcmodels.retrieval.ann import Index
from xcmodels.retrieval.inner_products import pair_scores, put
from xcmodels.retrieval.lexicon import ReadTexts
from xcmodels.retrieval.scorers import NewLabels, Scorer
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER, SIMILAR


@dataclass(frozen=True)
class CentroidMix(Scorer):
    """SiameseXML's score: alpha w^T x + (1 - alpha) (z + share v)^T x' (section 4, log-time prediction; share = 1).

    A query vector is its intermediate embedding, then its final embedding x for each of `partitions` parts of the
    labels; label l is scored by part l mod partitions. x' is x in the paper; with `intermediate` it is the intermediate
    embedding, the one that z is trained with and v is a mean of.
    """

    classifiers: np.ndarray    # (L, d), w
    embeddings: np.ndarray     # (L, d), the embedding of the label's text with its share of the centroid, z + share v
    centroids: np.ndarray      # (L, d), v
    partitions: int
    alpha: float
    share: float
    intermediate: bool = False
    kind = "centroid mix"

    def scores(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
               labels: np.ndarray) -> np.ndarray:
        """Return the mix, for which the share of the centroid need not be known."""
        classified, embedded = (self._products(matrix, queries, rows, labels)
                                for matrix in (self.classifiers, self.embeddings))
        return self.alpha * classified + (1 - self.alpha) * embedded

    def parts(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the shares of w, of z and of v."""
        classified, embedded, similar = (self._products(matrix, queries, rows, labels)
                                         for matrix in (self.classifiers, self.embeddings, self.centroids))
        similar *= self.share
        return {ENCODER: (1 - self.alpha) * (embedded - similar), CLASSIFIER: self.alpha * classified,
                SIMILAR: (1 - self.alpha) * similar}

    def _products(self, matrix: np.ndarray, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the inner products (p,) of pairs with one of the three matrices."""
        if self.intermediate and matrix is not self.classifiers:
            return pair_scores(queries[:, :matrix.shape[1]], matrix, rows, labels)
        views, view_rows = self._views(queries, rows, labels)
        return pair_scores(views, matrix, view_rows, labels)

    def _views(self, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the query vectors for each part of the labels, and the row in them of each (query row, label)."""
        views = queries[:, self.classifiers.shape[1]:].reshape(len(queries) * self.partitions, -1)
        return views, rows * self.partitions + labels % self.partitions

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[CentroidMix, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text read as a query for classifier and centroid."""
        views, view_rows = self._views(new.queries, np.arange(len(new.rows)), new.rows)
        similar = new.queries[:, :self.classifiers.shape[1]]
        return replace(
            self, classifiers=put(self.classifiers, new.rows, views[view_rows]),
            embeddings=put(self.embeddings, new.rows, new.embeddings + self.share * similar),
            centroids=put(self.centroids, new.rows, similar)), {"texts": new.embeddings, "centroids": similar}

    def save(self, folder: Path) -> None:
        """Write classifiers, embeddings and the weights of the mix; the centroids are in their index."""
        np.save(folder / "classifiers.npy", self.classifiers)
        np.save(folder / "embeddings.npy", self.embeddings)
        (folder / "mix.json").write_text(json.dumps(
            {name: getattr(self, name) for name in ("partitions", "alpha", "share", "intermediate")}))

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "CentroidMix":
        facts = json.loads((folder / "mix.json").read_text())
        return cls(mapped(folder / "classifiers.npy"), mapped(folder / "embeddings.npy"),
                   indexes["centroids"].vectors, **facts)
