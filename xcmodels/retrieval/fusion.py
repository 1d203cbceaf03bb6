"""NGAME's score fusion: boosted trees over scores, and their weighted sum."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import mapped
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.ann import NO_IDS, Index
from xcmodels.retrieval.boosted_trees import RegressionTrees
from xcmodels.retrieval.frequent_classifiers import FrequentClassifiers
from xcmodels.retrieval.inner_products import pair_scores, put
from xcmodels.retrieval.label_names import LabelNames
from xcmodels.retrieval.label_words import LabelWords
from xcmodels.retrieval.lexicon import Lexicon, ReadTexts
from xcmodels.retrieval.scorers import NewLabels, Scorer
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER, FREQUENT, NAME, SPARSE, SUM, TREES, WORDS
from xcmodels.retrieval.sparse_classifiers import SparseClassifiers


@dataclass(frozen=True)
class InnerProductTerm:
    """A term of a fusion: inner products with label vectors, for a query vector's dimensions from `first` on."""

    matrix: np.ndarray    # (L, d)
    first: int = 0

    @property
    def span(self) -> slice:
        """The dimensions of a query vector that it uses."""
        return slice(self.first, self.first + self.matrix.shape[1])

    def scores(self, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the scores of (query row, label) pairs, (p,) float32."""
        return pair_scores(queries[:, self.span], self.matrix, rows, labels)


@dataclass(frozen=True)
class TermSum(Scorer):
    """The sum of inner-product scores, to rank the labels of a fusion without trees; it is never saved."""

    terms: Mapping[str, InnerProductTerm]

    def parts(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores that are summed."""
        return {name: term.scores(queries, rows, labels) for name, term in self.terms.items()}


@dataclass(frozen=True)
class TreeFusion(Scorer):
    """T(s_1, ..., s_n, f) + a_1 s_1 + ... + a_n s_n, T one tree or a sum of several (NGAME, Appendix C).

    In the paper all weights a are 1, and the scores s are z^T x and w^T x, of the label's embedding and its classifier;
    here also c^T x, of the centroid of its training queries, the tf-idf cosine of its words with the query's, the
    scores by its linear classifiers over words, and how much of its name the query has. f: the label's frequency.
    """

    trees: RegressionTrees
    terms: Mapping[str, InnerProductTerm]
    frequencies: np.ndarray      # (L,) float32, f: how many training queries have the label
    indexed: tuple[str, ...]     # the terms whose vectors, concatenated, the index holds
    words: LabelWords | None = None
    sparse: SparseClassifiers | None = None
    frequent: FrequentClassifiers | None = None
    names: LabelNames | None = None
    weights: Mapping[str, float] = field(default_factory=dict)    # a, by name, where they are not 1
    kind = "tree"

    @property
    def lexical(self) -> dict[str, LabelWords | SparseClassifiers | FrequentClassifiers | LabelNames]:
        """The scores that read a text's words, by name."""
        scores = {WORDS: self.words, SPARSE: self.sparse, FREQUENT: self.frequent, NAME: self.names}
        return {name: score for name, score in scores.items() if score is not None}

    @property
    def lexicon(self) -> Lexicon | None:
        """The lexicon that all of `lexical` share."""
        return next((score.lexicon for score in self.lexical.values()), None)

    def read(self, tokens: Tokens) -> ReadTexts:
        """Return the words of the texts, where a score reads them."""
        return tokens if self.lexicon is None else self.lexicon.weigh(tokens)

    def propose(self, tokens: ReadTexts, without: np.ndarray = NO_IDS) -> list[np.ndarray]:
        """Return the labels that the classifiers over words propose."""
        return proposed_by(self.sparse, self.frequent, tokens, without)

    def parts(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
              labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the weighted scores that are fused, and what the trees add."""
        features = self.features(queries, tokens, rows, labels)
        scores = {name: score * np.float32(self.weights.get(name, 1.0)) for name, score in
                  zip((*self.terms, *self.lexical), features.T, strict=False)}
        return {**scores, TREES: self.trees.predict(features)}

    def unfused(self) -> dict[str, Scorer]:
        """Return the scorers by embeddings, by classifiers and by the sum of both, those that there are."""
        names = [name for name in (ENCODER, CLASSIFIER) if name in self.terms]
        chosen = {**{name: (name,) for name in names}, **({SUM: tuple(names)} if len(names) > 1 else {})}
        return {serve: TermSum({name: self.terms[name] for name in parts}) for serve, parts in chosen.items()}

    def features(self, queries: np.ndarray, tokens: ReadTexts | None, rows: np.ndarray,
                 labels: np.ndarray) -> np.ndarray:
        """Return the scores of (query row, label) pairs and f, (p, n + 1)."""
        scores = [term.scores(queries, rows, labels) for term in self.terms.values()]
        if self.lexical:
            assert tokens is not None
            scores += self.lexical_scores(tokens, rows, labels)
        return np.stack([*scores, self.frequencies[labels]], axis=1)

    def lexical_scores(self, tokens: ReadTexts, rows: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
        """Return the scores of `lexical`, of which two share a label's words."""
        if self.words is None or self.sparse is None:
            return [score.scores(tokens, rows, labels) for score in self.lexical.values()]
        assert self.sparse.words.ids is self.words.ids, "a word's slot would be that of another"
        shared, products = self.words.scores_by([self.words.weights, self.sparse.words.weights], tokens, rows, labels)
        others = [score.scores(tokens, rows, labels) for score in (self.frequent, self.names) if score is not None]
        return [shared, self.sparse.probabilities(products, labels), *others]

    def reading(self, lexicon: Lexicon) -> "TreeFusion":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, words=self.words and self.words.reading(lexicon),
                       sparse=self.sparse and self.sparse.reading(lexicon),
                       frequent=self.frequent and self.frequent.reading(lexicon),
                       names=self.names and self.names.reading(lexicon))

    def contributions(self, tokens: Tokens, label: int) -> dict[tuple[int, ...], float]:
        """Return what each word of one text adds to the log-odds of the label's linear classifier."""
        return {} if self.sparse is None else self.sparse.contributions(tokens, label)

    def with_labels(self, new: NewLabels, indexes: Mapping[str, Index]) -> "tuple[TreeFusion, dict[str, np.ndarray]]":
        """Give each label its embedding, and its text encoded as a query for all other terms and for words."""
        (index,) = indexes
        vectors = {name: new.embeddings if name == ENCODER else new.queries[:, term.span]
                   for name, term in self.terms.items()}
        words = self.words and self.words.with_labels(new.rows, new.tokens)
        sparse = self.sparse and self.sparse.with_labels(new.rows, new.tokens)
        return replace(
            self, terms={name: replace(term, matrix=put(term.matrix, new.rows, vectors[name]))
                         for name, term in self.terms.items()},
            frequencies=put(self.frequencies, new.rows, np.zeros(len(new.rows), np.float32)),
            words=words, sparse=on_same_words(words, sparse),
            frequent=self.frequent and self.frequent.without(new.rows),
            names=self.names and self.names.with_labels(new.rows, new.tokens),
        ), {index: np.concatenate([vectors[name] for name in self.indexed], axis=1)}

    def save(self, folder: Path) -> None:
        """Write everything that cannot be read back from the index."""
        self.trees.save(folder / "fusion.npz")
        np.save(folder / "frequencies.npy", self.frequencies)
        spans = self._index_spans()
        (folder / "fusion.json").write_text(json.dumps({
            "indexed": self.indexed, "proposed": self.sparse.proposed if self.sparse else 0,
            "proposed_frequent": self.frequent.proposed if self.frequent else 0,
            "weights": dict(self.weights), "terms": {
                name: {"first": term.first, "place": spans.get(name)} for name, term in self.terms.items()}}))
        for name, term in self.terms.items():
            if name not in spans:
                np.save(_file(folder, name), term.matrix)
        if self.words is not None:
            self.words.save(folder, WORDS)
        if self.sparse is not None:
            self.sparse.save(folder, ids=self.words is None)
        for score in (self.frequent, self.names):
            if score is not None:
                score.save(folder)
        if self.lexicon is not None:
            self.lexicon.save(folder)

    def _index_spans(self) -> dict[str, tuple[int, int]]:
        """Return each term's dimensions in the index's vectors, where their length is a multiple of the term's."""
        widths = [self.terms[name].matrix.shape[1] for name in self.indexed]
        ends = np.cumsum(widths).tolist()
        return {name: (end - width, end) for name, width, end in zip(self.indexed, widths, ends, strict=True)
                if ends[-1] % width == 0}

    @classmethod
    def load(cls, folder: Path, indexes: Mapping[str, Index]) -> "TreeFusion":
        (index,) = indexes.values()
        facts = json.loads((folder / "fusion.json").read_text())
        terms = {name: InnerProductTerm(index.vectors[:, slice(*term["place"])] if term["place"] else
                            mapped(_file(folder, name)), term["first"]) for name, term in facts["terms"].items()}
        made = cls(RegressionTrees.load(folder / "fusion.npz"), terms, mapped(folder / "frequencies.npy"),
                   tuple(facts["indexed"]), weights=facts.get("weights", {}))
        if (lexicon := Lexicon.load(folder)) is None:
            return made
        words = LabelWords.load(folder, WORDS, lexicon)
        return replace(made, words=words, sparse=SparseClassifiers.load(folder, lexicon, facts["proposed"], words),
                       frequent=FrequentClassifiers.load(folder, lexicon, facts.get("proposed_frequent", 0)),
                       names=LabelNames.load(folder, lexicon))


def proposed_by(sparse: SparseClassifiers | None, frequent: FrequentClassifiers | None, tokens: ReadTexts,
                without: np.ndarray = NO_IDS) -> list[np.ndarray]:
    """Return the labels that classifiers over words propose beside those of an index, as `Scorer.propose` does."""
    return [view.propose(tokens, without) for view in (sparse, frequent) if view is not None and view.proposed]


def on_same_words(words: LabelWords | None, sparse: SparseClassifiers | None) -> SparseClassifiers | None:
    """Return the classifiers on the same words of labels, where there are both."""
    return sparse if words is None or sparse is None else sparse.on_words_of(words)


def _file(folder: Path, term: str) -> Path:
    return folder / f"term.{term.replace(' ', '-')}.npy"
