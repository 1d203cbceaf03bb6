"""How a retriever combines what it knows of a (query, label) pair into the score that ranks it.

A combination scores shortlisted labels: (queries (n, d), ids (n, S), -1 = none) -> scores (n, S), -inf for none. It is
given the queries' tokens as well, and needs them only where it reads words. A score is a sum of parts, each named for
who asks why a label was predicted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from xcmodels import limits
from xcmodels.ann import Index, pair_scores, put
from xcmodels.centroids import label_centroids
from xcmodels.corpus import Corpus
from xcmodels.fusion import RegressionTrees, fit_trees
from xcmodels.mapped import mapped
from xcmodels.sets import among, distinct
from xcmodels.tokens import Tokens
from xcmodels.words import CorpusWords, LabelWords

ENCODER, CLASSIFIER, SIMILAR, WORDS, TREES = "encoder", "classifier", "similar texts", "words", "trees"


@dataclass(frozen=True)
class NewLabels:
    """Labels that no training query has. Each one's own text stands in for the query that is missing.

    rows (m,): the ids that they take. embeddings (m, d): their texts as the encoder sees labels. queries (m, width):
    the same texts, read as queries. loudness: for some dimensions of a query vector and the classifiers (L, .) that
    read them, by what a text's own vector in a classifier's place is to be multiplied, to score no higher than trained.
    """

    rows: np.ndarray
    embeddings: np.ndarray
    queries: np.ndarray
    tokens: Tokens
    loudness: Callable[[slice, np.ndarray], float]


class Combine(Protocol):
    """Scores of shortlisted labels, saved beside the indexes whose vectors it reads."""

    kind: str

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the scores of (query row, label) pairs are the sum of, (p,) float32 each; `rows` ascend."""

    def with_labels(self, new: "NewLabels", indexes: Mapping[str, Index]) -> "tuple[Combine, dict[str, np.ndarray]]":
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
        return _spread(ids.shape, rows, slots, _total(self.parts(queries, tokens, rows, ids[rows, slots])))

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
                         new.queries[:, span] * new.loudness(span, self.vectors[:, span]))
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
        return _spread(ids.shape, rows, slots, _total(self.parts(queries, tokens, rows, ids[rows, slots])))

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


@dataclass(frozen=True)
class FusionConfig:
    """The settings of the score fusion, fitted on the validation split."""

    depth: int = 7             # how often a tree asks, at most
    trees: int = 1             # how many trees, each fitted on what those before it leave
    rate: float = 1.0          # share of what a tree finds that is added
    weight: float = 1.0        # of the trees beside the scores
    centroids: bool = False    # the similarity to the mean of a label's training queries is a third score
    words: bool = False        # the words shared with a label's text and its training queries are a further score
    shortlist: int = 200       # labels of a query whose scores are fused
    min_leaf: int = 50         # pairs of query and label in a leaf of a tree, at least

    def __post_init__(self) -> None:
        limits.at_least(self, 1, "depth", "trees", "shortlist", "min_leaf")
        limits.at_least(self, 0, "weight")
        limits.share(self, "rate")


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


@dataclass(frozen=True)
class CentroidMix:
    """SiameseXML's score: alpha w^T x + (1 - alpha) (z + share v)^T x (section 4, log-time prediction; share = 1).

    A query vector is its intermediate embedding, then its embedding for each of `partitions` parts of the labels;
    label l is scored by part l mod partitions.
    """

    classifiers: np.ndarray    # (L, d), w
    embeddings: np.ndarray     # (L, d), the embedding of the label's text with its share of the centroid, z + share v
    centroids: np.ndarray      # (L, d), v
    partitions: int
    alpha: float
    share: float
    kind = "centroid mix"

    def __call__(self, queries: np.ndarray, ids: np.ndarray, tokens: Tokens | None = None) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        labels = ids[rows, slots]
        seen, of = self._seen(queries, rows, labels)
        classified, embedded = (pair_scores(seen, each, of, labels) for each in (self.classifiers, self.embeddings))
        return _spread(ids.shape, rows, slots, self.alpha * classified + (1 - self.alpha) * embedded)

    def parts(self, queries: np.ndarray, tokens: Tokens | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the shares of w, of z and of v."""
        seen, of = self._seen(queries, rows, labels)
        classified, embedded, similar = (pair_scores(seen, each, of, labels)
                                         for each in (self.classifiers, self.embeddings, self.centroids))
        similar *= self.share
        return {ENCODER: (1 - self.alpha) * (embedded - similar), CLASSIFIER: self.alpha * classified,
                SIMILAR: (1 - self.alpha) * similar}

    def _seen(self, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries as each part of the labels sees them, and the row of that for each (query row, label)."""
        seen = queries[:, self.classifiers.shape[1]:].reshape(len(queries) * self.partitions, -1)
        return seen, rows * self.partitions + labels % self.partitions

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[CentroidMix, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text read as a query for classifier and centroid."""
        seen, of = self._seen(new.queries, np.arange(len(new.rows)), new.rows)
        similar = new.queries[:, :self.classifiers.shape[1]]
        return replace(
            self, classifiers=put(self.classifiers, new.rows, seen[of]),
            embeddings=put(self.embeddings, new.rows, new.embeddings + self.share * similar),
            centroids=put(self.centroids, new.rows, similar)), {"texts": new.embeddings, "centroids": similar}

    def save(self, folder: Path) -> None:
        """Write both matrices and how they mix; the index of centroids holds them alone."""
        np.save(folder / "classifiers.npy", self.classifiers)
        np.save(folder / "embeddings.npy", self.embeddings)
        (folder / "mix.json").write_text(json.dumps(
            {"partitions": self.partitions, "alpha": self.alpha, "share": self.share}))

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "CentroidMix":
        """Map what `save` wrote."""
        facts = json.loads((folder / "mix.json").read_text())
        return cls(mapped(folder / "classifiers.npy"), mapped(folder / "embeddings.npy"),
                   indexes["centroids"].vectors, **facts)


KINDS: Mapping[str, type[InnerProduct] | type[TreeFusion] | type[CentroidMix]] = {
    each.kind: each for each in (InnerProduct, TreeFusion, CentroidMix)}


def _total(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    first, *others = parts.values()
    return sum(others, first)


def _spread(shape: tuple[int, ...], rows: np.ndarray, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full(shape, -np.inf, dtype=np.float32)
    out[rows, slots] = values
    return out
