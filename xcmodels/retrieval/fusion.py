"""NGAME's fused score: boosted trees over what is known of a (query, label) pair, fitted on validation queries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xcmodels.data.centroids import label_centroids
from xcmodels.data.corpus import Corpus, mapped
from xcmodels.data.sorted_ids import among, distinct
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.ann import Index
from xcmodels.retrieval.boosted_trees import RegressionTrees, fit_trees
from xcmodels.retrieval.fusion_config import FusionConfig
from xcmodels.retrieval.inner_products import pair_scores, put
from xcmodels.retrieval.lexical import CorpusWords, LabelWords
from xcmodels.retrieval.scorers import CLASSIFIER, ENCODER, SIMILAR, TREES, WORDS, NewLabels, spread, total


@dataclass(frozen=True)
class TreeFusion:
    """NGAME's fused score: T(z^T x, w^T x, f) + z^T x + w^T x (Appendix C), T one tree or a sum of several.

    z reads the first dimensions of a query vector and w the last: where the two have vectors of their own, a query
    shows them end to end. With centroids, c^T x is a third score in both places, c as long as z and reading the same;
    with words, the weighed share of a label's words that the query has is a further one.
    """

    trees: RegressionTrees
    embeddings: np.ndarray     # (L, d), z
    classifiers: np.ndarray    # (L, d), w
    frequencies: np.ndarray    # (L,) float32, f: how many training queries have the label
    centroids: np.ndarray      # (L, d), c; no rows where there is no such score
    words: LabelWords | None = None
    kind = "tree"

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        return spread(ids.shape, rows, slots, total(self.parts(queries, tokens, rows, ids[rows, slots])))

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores that are fused, and what the trees add."""
        names = [ENCODER, CLASSIFIER, *([SIMILAR] if len(self.centroids) else []), *([WORDS] if self.words else [])]
        features = self.features(queries, tokens, rows, labels)
        return {**dict(zip(names, features.T, strict=False)), TREES: self.trees.predict(features)}

    def features(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return z^T x, w^T x, c^T x and words where they count, and f of (query row, label) pairs, (p, 3 to 5)."""
        embedded = queries[:, :self.embeddings.shape[1]]
        scores = [pair_scores(embedded, self.embeddings, rows, labels),
                  pair_scores(queries[:, -self.classifiers.shape[1]:], self.classifiers, rows, labels)]
        if len(self.centroids):
            scores.append(pair_scores(embedded, self.centroids, rows, labels))
        if self.words is not None:
            assert tokens is not None
            scores.append(self.words.scores(tokens, rows, labels))
        return np.stack([*scores, self.frequencies[labels]], axis=1)

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[TreeFusion, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text read as a query for classifier, centroid and words."""
        ((name, index),) = indexes.items()
        classified, similar = (new.queries[:, part] for part in (slice(-self.classifiers.shape[1], None),
                                                                 slice(self.embeddings.shape[1])))
        both = np.concatenate([new.embeddings, classified], axis=1)
        return replace(
            self, embeddings=put(self.embeddings, new.rows, new.embeddings),
            classifiers=put(self.classifiers, new.rows, classified),
            centroids=put(self.centroids, new.rows, similar) if len(self.centroids) else self.centroids,
            frequencies=put(self.frequencies, new.rows, np.zeros(len(new.rows), np.float32)),
            words=None if self.words is None else self.words.with_labels(new.rows, new.tokens),
        ), {name: both if index.dim == both.shape[1] else classified}

    def save(self, folder: Path) -> None:
        """Write all but the classifiers, which are the last dimensions of the index."""
        self.trees.save(folder / "fusion.npz")
        np.save(folder / "embeddings.npy", self.embeddings)
        np.save(folder / "frequencies.npy", self.frequencies)
        np.save(folder / "centroids.npy", self.centroids)
        if self.words is not None:
            self.words.save(folder)

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "TreeFusion":
        """Map what `save` wrote."""
        embeddings = mapped(folder / "embeddings.npy")
        (index,) = indexes.values()
        return cls(RegressionTrees.load(folder / "fusion.npz"), embeddings, index.vectors[:, -embeddings.shape[1]:],
                   mapped(folder / "frequencies.npy"), mapped(folder / "centroids.npy"),
                   LabelWords.load(folder))


def fit_fusion(corpus: Corpus, queries: np.ndarray, ids: np.ndarray, *, embeddings: np.ndarray,
               classifiers: np.ndarray, trained: Callable[[], np.ndarray],
               config: FusionConfig) -> tuple[TreeFusion, dict[str, float]]:
    """Fit the tree on the shortlists `ids` (n, S) of the validation queries (n, width), less their filter pairs.

    trained: makes the embeddings (N, d) of the training side, where there are centroids to be made of them.
    Returns the fusion, and how many pairs it was fitted on. A label is as frequent as in the queries trained on, and
    is left out where none of those has it: what is known of it is that the validation query does, and of no later
    query could that be known. The paper adds the positives that the shortlist has missed.
    Those are the only pairs of low scores then, all of them relevant, and the tree learns that a low score is a good
    sign; here it sees what it will be asked about.
    Once fitted, frequencies, centroids and words count the validation queries as well: nothing is judged by those any
    more, and for a label that only they have, it is all that is known of its queries.
    """
    row, slot = np.nonzero(ids >= 0)
    banned = corpus.filters["train"].subset(corpus.validation)
    kept = distinct(row * corpus.n_labels + ids[row, slot])
    kept = kept[~among(kept, distinct(banned.keys(corpus.n_labels)))]
    truth = corpus.positives["train"].subset(corpus.validation)
    vectors = trained() if config.centroids else None
    words = CorpusWords(corpus) if config.words else None

    def fusion(trees: RegressionTrees, held_out: bool) -> TreeFusion:
        frequencies = corpus.frequencies(None if held_out else corpus.training_rows()).astype(np.float32)
        return TreeFusion(trees, embeddings, classifiers, frequencies,
                          embeddings[:0] if vectors is None else label_centroids(corpus, vectors, held_out),
                          None if words is None else words.labels(held_out))

    nothing = RegressionTrees(np.zeros((0, 0), int), np.zeros((0, 0), np.float32), np.zeros((0, 1), np.float32))
    trained_on = fusion(nothing, held_out=False)
    kept = kept[trained_on.frequencies[kept % corpus.n_labels] > 0]
    relevant = among(kept, distinct(truth.keys(corpus.n_labels)))
    features = trained_on.features(queries, corpus.sides["train"].tokens(corpus.validation), kept // corpus.n_labels,
                                   kept % corpus.n_labels)
    trees = fit_trees(features, relevant.astype(np.float32), trees=config.trees, rate=config.rate, depth=config.depth,
                      min_leaf=config.min_leaf)
    trees = replace(trees, value=np.float32(config.weight) * trees.value)
    return fusion(trees, held_out=True), {"pairs": float(len(relevant)), "relevant": float(relevant.sum())}
