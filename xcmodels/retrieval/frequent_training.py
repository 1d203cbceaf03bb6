"""Trains the linear classifiers of frequent labels, each on its own texts against all others."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from threadpoolctl import threadpool_limits

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.sorted_ids import isin_sorted, locate
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.frequent_classifiers import FrequentClassifiers

MAX_LABELS = 256        # the most frequent ones, so that time does not grow with the number of labels
MAX_OF_SHORT_TEXTS = 2048    # as many instead, while a pass over the texts for each label reads no more words than
MAX_READ = 1 << 28      # this
MAX_TEXTS = 1 << 14     # beside a label's own: of more a sample, drawn uniformly, so that time grows no further
COUNTED_AMONG = 1 << 15    # texts of which a frequent label has `least`; in proportion more where there are more texts
LEAST_WEIGHT = 0.05     # a word of less is left out: of half of the words, on Debian's packages
PROPOSED = 50           # labels that are proposed for a text, times the frequent labels' share of all positives


class _Texts(NamedTuple):
    """The texts that the classifiers are trained on, as rows of the training side.

    rows: all of them. sample: those that every classifier meets. unlabelled: those without a positive, of which only
    the rejected labels are known. positives, filtered, rejected: the labels of `rows`, (len(rows), L), by columns;
    those of positives with their weights.
    """

    rows: np.ndarray
    sample: np.ndarray
    unlabelled: np.ndarray
    positives: sp.csc_array
    filtered: sp.csc_array
    rejected: sp.csc_array

    @classmethod
    def of(cls, corpus: Corpus, seed: int) -> "_Texts":
        labelled = corpus.training_rows()
        rows = sample = np.union1d(labelled, corpus.rejected_rows())
        if len(rows) > MAX_TEXTS:
            sample = np.sort(seeds.generator(seed, "frequent labels").permutation(rows)[:MAX_TEXTS])
        weights = None if corpus.train_weights is None else corpus.train_weights.take(rows)[0]
        return cls(rows, sample, np.setdiff1d(rows, labelled), _by_label(corpus, corpus.train_positives, rows, weights),
                   *(_by_label(corpus, pairs, rows) for pairs in (corpus.filters["train"], corpus.rejected)))

    def frequent_labels(self, corpus: Corpus, least: int, most: int) -> np.ndarray:
        """Return the labels to train, ascending: frequent ones with a positive, and with a negative in the sample.

        They are no more than `most`, those with the most positives.
        """
        positives = np.diff(self.positives.indptr)
        unlabelled = np.intersect1d(self.sample, self.unlabelled)
        labelled = np.setdiff1d(self.sample, unlabelled)
        not_negative = sum(np.diff(_by_label(corpus, pairs, labelled).indptr) for pairs in (
            corpus.train_positives, corpus.filters["train"]))
        negatives = len(labelled) - not_negative + np.diff(_by_label(corpus, corpus.rejected, unlabelled).indptr)
        least_positives = max(1, least * max(1, len(self.rows) / COUNTED_AMONG))
        labels = np.flatnonzero((positives >= least_positives) & (negatives > 0))
        return np.sort(labels[np.argsort(-positives[labels], kind="stable")[:most]])

    def examples(self, label: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows (n,), the sample first, then the label's other texts; whether each has it; what each weighs."""
        (relevant, weights), (filtered, _), (rejected, _) = (
            self._of_label(pairs, label) for pairs in (self.positives, self.filtered, self.rejected))
        rows = np.concatenate([self.sample, relevant[~isin_sorted(relevant, self.sample)]])
        place, has_label = locate(rows, relevant)
        weight = np.where(has_label, 1.0, len(self.rows) / len(self.sample))    # a drawn negative stands for others
        weight[has_label] = weights[place[has_label]]
        weight[isin_sorted(rows, filtered)] = 0
        weight[isin_sorted(rows, np.setdiff1d(self.unlabelled, rejected))] = 0
        return rows, has_label, weight

    def _of_label(self, pairs: sp.csc_array, label: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that are paired with a label, and the pairs' weights."""
        part = slice(*pairs.indptr[label:label + 2])
        return self.rows[pairs.indices[part]], pairs.data[part]


def train_frequent(words: CorpusWords, least: int, seed: int) -> FrequentClassifiers:
    """Return classifiers of the labels with at least `least` of COUNTED_AMONG training queries; MAX_LABELS bounds them.

    Each is a linear support vector machine with squared hinge loss (LIBLINEAR), as the nodes of sparse linear trees are
    (Parabel, Prabhu et al., 2018). Its negatives are all texts of which its label is neither a positive nor a filter
    pair; of many texts a sample, which weighs as much as all. A text without a positive is a negative of the labels
    that were rejected for it, and of no other. A label without a negative gets no classifier. Words are those that two
    texts have.
    """
    from sklearn.svm import LinearSVC  # brings pandas and scipy.stats, a second of each command that trains nothing

    texts = _Texts.of(words.corpus, seed)
    sample = words.queries[texts.sample]
    shared = np.flatnonzero(np.bincount(sample.indices, minlength=sample.shape[1]) > 1)
    most = max(MAX_LABELS, min(MAX_OF_SHORT_TEXTS, MAX_READ // max(sample.nnz, 1)))
    labels = texts.frequent_labels(words.corpus, least, most) if len(shared) else np.zeros(0, np.int64)
    features = sp.csr_matrix(sample[:, shared].astype(np.float64))

    def train(label: int) -> tuple[np.ndarray, np.ndarray, float]:
        rows, has_label, weight = texts.examples(label)
        more = rows[len(texts.sample):]
        matrix = features if not len(more) else sp.csr_matrix(
            sp.vstack([features, words.queries[more][:, shared].astype(np.float64)], format="csr"))
        machine = LinearSVC(dual=False).fit(matrix, has_label, sample_weight=weight)
        of_words = machine.coef_[0]
        kept = np.flatnonzero(np.abs(of_words) >= LEAST_WEIGHT)
        return shared[kept], of_words[kept], float(machine.intercept_[0])

    # sums that a BLAS splits by threads depend on their number in the last digits
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        trained = list(pool.map(train, labels.tolist()))
    ids, values, bias = zip(*trained, strict=True) if trained else ((), (), ())
    by_label = sp.csr_array((np.concatenate([np.zeros(0), *values]).astype(np.float32),
                             np.concatenate([np.zeros(0, np.int64), *ids]), np.cumsum([0, *map(len, ids)])),
                            shape=(len(labels), sample.shape[1]))
    by_word = by_label.T.tocsr()
    by_word.indices, by_word.indptr = by_word.indices.astype(np.int32), by_word.indptr.astype(np.int32)
    positives = np.diff(texts.positives.indptr)
    proposed = round(PROPOSED * positives[labels].sum() / max(positives.sum(), 1))
    return FrequentClassifiers(words.lexicon, labels, by_word, np.array(bias, np.float32), proposed)


def _by_label(corpus: Corpus, pairs: Ragged, rows: np.ndarray, weights: np.ndarray | None = None) -> sp.csc_array:
    """Return the labels of some rows of the training side, (len(rows), L), each with its weight or 1."""
    labels, lengths = pairs.take(rows)
    given = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    shape = len(rows), corpus.n_labels
    return sp.csr_array((given, labels, np.append(0, np.cumsum(lengths))), shape=shape).tocsc()
