"""Trains the sparse view's classifiers, each on its positives, on hard and on uniform negatives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import expit

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import isin_sorted, unique
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.label_words import LabelWords
from xcmodels.retrieval.serving_config import SparseConfig
from xcmodels.retrieval.sparse_classifiers import START_BIAS, START_SCALE, SparseClassifiers

BLOCK = 1 << 17      # pairs of label and query whose labels are trained at once
RATE = 0.3           # of Adagrad


@dataclass(frozen=True)
class TrainingPairs:
    """Pairs of label and training row, ordered by both, (p,) each."""

    labels: np.ndarray
    rows: np.ndarray
    relevant: np.ndarray    # whether it is a positive
    weights: np.ndarray     # in the loss, float32

    def blocks(self, n_labels: int) -> Iterator[tuple[slice, slice]]:
        """Yield the labels and the pairs of each block: whole labels, of about BLOCK pairs."""
        bounds = np.searchsorted(self.labels, np.arange(n_labels + 1))
        first = 0
        while first < n_labels:
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + BLOCK, side="right")) - 1)
            yield slice(first, last), slice(int(bounds[first]), int(bounds[last]))
            first = last


def training_pairs(corpus: Corpus, nearest: np.ndarray, uniform: int, seed: int) -> TrainingPairs:
    """Return the positives, and as negatives the nearest labels of each training row and `uniform` drawn ones.

    No more are drawn than there are labels. Labels that were rejected for a row are its negatives, too, even where it
    has no positive. nearest (training rows, k): label ids, -1 for none. A filter pair is neither.
    """
    rows, n, n_labels = corpus.training_rows(), len(corpus.sides["train"]), corpus.n_labels
    drawn = seeds.generator(seed, "sparse negatives").integers(0, n_labels, (len(rows), min(uniform, n_labels)))
    labels = np.concatenate([nearest, drawn], axis=1)
    judged = corpus.rejected_rows()
    wrong, counts = corpus.rejected.take(judged)
    negatives = unique(np.concatenate([(labels * n + rows[:, None])[labels >= 0],
                                       wrong * n + np.repeat(judged, counts)]))
    known = corpus.positives["train"].keys(n_labels)
    known = np.concatenate([known, corpus.filters["train"].keys(n_labels)])
    known = np.sort(known % n_labels * n + known // n_labels)
    positives, lengths = corpus.train_positives.take(rows)
    relevant = positives.astype(np.int64) * n + np.repeat(rows, lengths)
    pairs = np.concatenate([relevant, negatives[~isin_sorted(negatives, known)]])
    weights, given = np.ones(len(pairs), np.float32), corpus.train_weights
    if given is not None:
        weights[:len(relevant)] = given.take(rows)[0]
    order = np.argsort(pairs, kind="stable")
    return TrainingPairs(*np.divmod(pairs[order], n), order < len(relevant), weights[order])


def train_sparse(words: CorpusWords, nearest: np.ndarray, config: SparseConfig, seed: int) -> SparseClassifiers:
    """Return classifiers trained by logistic loss on the pairs of `training_pairs`, each pulled to its start.

    Each starts at its label's tf-idf centroid, and has weights for the centroid's words alone. The loss of a label is
    the weighted sum over its pairs + pull / 2 ||w - start||^2; `steps` steps of Adagrad over all of them minimise it.
    """
    start = words.centroids(with_validation=False) * np.float32(START_SCALE)
    pairs = training_pairs(words.corpus, nearest, config.uniform, seed)
    weights, bias = start.copy(), np.full(start.shape[0], START_BIAS, np.float32)

    def train(block: tuple[slice, slice]) -> None:
        labels, part = block
        own = TrainingPairs(pairs.labels[part] - labels.start, pairs.rows[part], pairs.relevant[part],
                            pairs.weights[part])
        shared = _shared_words(words.queries[own.rows], start[labels], own.labels)
        entries = slice(start.indptr[labels.start], start.indptr[labels.stop])
        _descend(weights.data[entries], bias[labels], shared, own, config)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(train, pairs.blocks(start.shape[0])))
    return SparseClassifiers.of(LabelWords.of(words.lexicon, weights), bias, config.proposed)


def _shared_words(texts: sp.csr_array, classifiers: sp.csr_array, labels: np.ndarray) -> sp.csr_array:
    """Return the words of the texts (p, words) that are in their labels' classifiers (l, words), (p, entries).

    labels (p,), ascending. A column is an entry of the classifiers, in their order.
    """
    place, column = np.full(texts.shape[1], -1, np.int32), np.empty(texts.nnz, np.int32)
    bounds = texts.indptr[np.searchsorted(labels, np.arange(classifiers.shape[0] + 1))]
    for label, (first, last) in enumerate(zip(classifiers.indptr, classifiers.indptr[1:], strict=False)):
        own, entries = classifiers.indices[first:last], slice(bounds[label], bounds[label + 1])
        place[own] = np.arange(first, last)
        column[entries] = place[texts.indices[entries]]
        place[own] = -1
    kept = column >= 0
    return sp.csr_array((texts.data[kept], column[kept], np.append(0, np.cumsum(kept))[texts.indptr]),
                        shape=(texts.shape[0], classifiers.nnz))


def _descend(weights: np.ndarray, bias: np.ndarray, texts: sp.csr_array, pairs: TrainingPairs,
             config: SparseConfig) -> None:
    """Train weights (entries,) and biases (l,) in place on pairs and their texts' words (p, entries)."""
    start, transposed, targets = weights.copy(), texts.T, pairs.relevant.astype(np.float32)
    squares, bias_squares = np.full(weights.shape, 1e-8, np.float32), np.full(bias.shape, 1e-8, np.float32)
    for _ in range(config.steps):
        error = pairs.weights * (expit(texts @ weights + bias[pairs.labels]) - targets)
        slope = transposed @ error + np.float32(config.pull) * (weights - start)
        bias_slope = np.bincount(pairs.labels, error, minlength=len(bias)).astype(np.float32)
        squares += slope * slope
        bias_squares += bias_slope * bias_slope
        weights -= np.float32(RATE) * slope / np.sqrt(squares)
        bias -= np.float32(RATE) * bias_slope / np.sqrt(bias_squares)
