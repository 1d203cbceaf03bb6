"""Fits a fusion of scores on the validation queries: its trees, and the weights of its scores."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.data.sorted_ids import isin_sorted, unique
from xcmodels.retrieval.boosted_trees import RegressionTrees, fit_trees
from xcmodels.retrieval.calibration import ScoredPairs
from xcmodels.retrieval.centroids import label_centroids
from xcmodels.retrieval.fusion import InnerProductTerm, TreeFusion, on_same_words
from xcmodels.retrieval.lexical import Lexical
from xcmodels.retrieval.score_weights import fit_weights
from xcmodels.retrieval.serving_config import FREQUENT, NAME, SIMILAR, TREES, FusionConfig

FOLDS = 2    # of the validation queries, each scored by trees that are fitted on the others
NO_TREES = RegressionTrees(np.zeros((0, 0), int), np.zeros((0, 0), np.float32), np.zeros((0, 1), np.float32))


class FittedFusion(NamedTuple):
    """A fusion, measurements of its fit by name, and its pairs scored as those of later queries would be."""

    fusion: TreeFusion
    measured: dict[str, float]
    pairs: ScoredPairs


class FoldTrees:
    """The trees of each fold of the validation queries, fitted on the pairs of the other folds.

    fit: fits trees on chosen pairs. rows: the query of each pair.
    """

    def __init__(self, fit: Callable[[np.ndarray], RegressionTrees], rows: np.ndarray) -> None:
        self.folds = [rows % FOLDS == fold for fold in range(FOLDS)]
        self.trees = [NO_TREES if own.all() else fit(~own) for own in self.folds]

    def summands(self, features: np.ndarray) -> np.ndarray:
        """Return the scores among the features of all pairs, and what trees that have not seen them add, (p, n + 1)."""
        out = np.append(features[:, :-1], np.zeros((len(features), 1), np.float32), axis=1)
        for own, trees in zip(self.folds, self.trees, strict=True):
            out[own, -1] = trees.predict(features[own])
        return out


def fit_fusion(corpus: Corpus, queries: np.ndarray, ids: np.ndarray, *, terms: Mapping[str, InnerProductTerm],
               indexed: tuple[str, ...], embedded: Callable[[], np.ndarray], lexical: Lexical,
               config: FusionConfig) -> FittedFusion:
    """Fit the trees and the weights of scores on the shortlists of the validation queries, less their filter pairs.

    queries: the vectors (n, width) of the validation queries. ids: their shortlists (n, S).
    embedded: returns the vectors (N, d) of the training side, for the term of label centroids, which meets a query's
    first d dimensions. In the returned pairs words weigh as later queries' would; each is scored by trees that were
    fitted on the other fold.

    Once fitted, frequencies, centroids and words include the validation queries: nothing is validated on them any more,
    and a label that only they have has no other queries.
    """
    words, vectors = lexical.words, embedded() if config.centroids else None

    def fusion(trees: RegressionTrees, weights: Mapping[str, float], with_validation: bool) -> TreeFusion:
        frequencies = corpus.frequencies(None if with_validation else corpus.training_rows()).astype(np.float32)
        similar = {} if vectors is None else {
            SIMILAR: InnerProductTerm(label_centroids(corpus, vectors, with_validation))}
        shared = words.label_words(with_validation) if words and config.words else None
        return TreeFusion(trees, {**terms, **similar}, frequencies, indexed, shared,
                          on_same_words(shared, lexical.sparse), lexical.frequent, lexical.names, weights)

    unfitted = fusion(NO_TREES, {}, with_validation=False)
    rows, labels, relevant = fitted_pairs(corpus, ids, unfitted.frequencies)
    tokens = corpus.sides["train"].tokens(corpus.validation)
    features = unfitted.features(queries, tokens, rows, labels)
    later = features.copy()
    if words:
        reading = unfitted.reading(words.lexicon_of_training())
        first, read = len(unfitted.terms), reading.lexical_scores(tokens, rows, labels)
        later[:, first:first + len(read)] = np.stack(read, axis=1)

    def trees_of(chosen: np.ndarray) -> RegressionTrees:
        return fit_trees(features[chosen], relevant[chosen].astype(np.float32), trees=config.trees, rate=config.rate,
                         depth=config.depth, min_leaf=config.min_leaf)

    with ThreadPoolExecutor(1) as pool:    # side by side: all pairs take as long as the folds together
        of_all = pool.submit(trees_of, np.ones(len(rows), dtype=bool))
        fold_trees = FoldTrees(trees_of, rows)
        trees = of_all.result()
    scored = [*unfitted.terms, *unfitted.lexical]
    # what is known of frequent labels alone is for the trees, unless the fit finds that the sum wants it
    before = {NAME: config.name, FREQUENT: 0.0}
    weights = np.array([*(before.get(name, 1.0) for name in scored), config.weight])
    measured = {"pairs": float(len(relevant)), "relevant": float(relevant.sum())}
    if config.fit_weights:
        gains = np.sqrt(inverse_propensity(corpus))    # between those of P and of PSP
        weights = fit_weights(fold_trees.summands(features), rows, relevant, gains[labels], weights)
        measured |= {f"weight/{name}": weight for name, weight in zip((*scored, TREES), weights.tolist(), strict=True)}
    scores = (fold_trees.summands(later) * np.float32(weights)).sum(axis=1)
    trees = replace(trees, value=np.float32(weights[-1]) * trees.value)
    by_name = dict(zip(scored, weights.tolist(), strict=False))
    return FittedFusion(fusion(trees, by_name, with_validation=True), measured, ScoredPairs(rows, labels, scores))


def fitted_pairs(corpus: Corpus, ids: np.ndarray, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of shortlists (n, S) of the validation queries that a fusion is fitted on, in ascending order.

    As the query and the label of each, and whether it is a positive, (p,) each. frequencies (L,): of the training
    queries. Filter pairs are left out, and so is a label without a training query: only the validation query has it,
    and later queries cannot rely on that. The paper adds the positives that the shortlist missed. Those would be the
    only pairs of low scores, all of them relevant, and the tree would learn that a low score is a good sign; here it is
    fitted on pairs like those that it will score.
    """
    row, slot = np.nonzero(ids >= 0)
    pairs = unique(row * corpus.n_labels + ids[row, slot])
    filters, truth = (of["train"].subset(corpus.validation).keys(corpus.n_labels)
                      for of in (corpus.filters, corpus.positives))
    pairs = pairs[~isin_sorted(pairs, unique(filters))]
    pairs = pairs[frequencies[pairs % corpus.n_labels] > 0]
    return *np.divmod(pairs, corpus.n_labels), isin_sorted(pairs, unique(truth))
