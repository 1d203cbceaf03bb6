"""Trains the linear classifiers of frequent labels, each on its own texts against all others."""

from concurrent.futures import ThreadPoolExecutor

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
MAX_TEXTS = 1 << 14     # beside a label's own: of more a sample, drawn uniformly, so that time grows no further
COUNTED_AMONG = 1 << 15    # texts of which a frequent label has `least`; in proportion more where there are more texts
LEAST_WEIGHT = 0.05     # a word of less is left out: of half of the words, on Debian's packages


def train_frequent(words: CorpusWords, least: int, seed: int) -> FrequentClassifiers:
    """Return classifiers of the labels with at least `least` of COUNTED_AMONG training queries, of MAX_LABELS at most.

    Each is a linear support vector machine with squared hinge loss (LIBLINEAR), as the nodes of sparse linear trees are
    (Parabel, Prabhu et al., 2018): its negatives are all texts of which it is no positive and no filter pair, of many
    texts a sample, weighed as all of them; a text without positives is one of its rejected labels alone. A label
    without a negative there has none. Words are those that two texts have.
    """
    from sklearn.svm import LinearSVC  # brings pandas and scipy.stats, a second of each command that trains nothing

    corpus, labelled = words.corpus, words.corpus.training_rows()
    rows = np.union1d(labelled, corpus.rejected_rows())
    sample, bare = rows, np.setdiff1d(rows, labelled)    # bare: of these texts only the rejected labels are known
    if len(rows) > MAX_TEXTS:
        sample = np.sort(seeds.generator(seed, "frequent labels").permutation(rows)[:MAX_TEXTS])
    weights = None if corpus.train_weights is None else corpus.train_weights.take(rows)[0]
    positives = _by_label(corpus, corpus.train_positives, rows, weights)
    filtered, rejected = (_by_label(corpus, pairs, rows) for pairs in (corpus.filters["train"], corpus.rejected))
    texts = words.queries[sample]
    shared = np.flatnonzero(np.bincount(texts.indices, minlength=texts.shape[1]) > 1)
    counts = np.diff(positives.indptr)
    drawn_labelled, drawn_bare = np.intersect1d(sample, labelled), np.intersect1d(sample, bare)
    known = sum(np.diff(_by_label(corpus, pairs, drawn_labelled).indptr) for pairs in (
        corpus.train_positives, corpus.filters["train"]))
    negatives = len(drawn_labelled) - known + np.diff(_by_label(corpus, corpus.rejected, drawn_bare).indptr)
    has_both = (counts > 0) & (negatives > 0)
    labels = np.flatnonzero(has_both & (counts >= least * max(1, len(rows) / COUNTED_AMONG)) & (len(shared) > 0))
    labels = np.sort(labels[np.argsort(-counts[labels], kind="stable")[:MAX_LABELS]])
    features = sp.csr_matrix(texts[:, shared].astype(np.float64))

    def train(label: int) -> tuple[np.ndarray, np.ndarray, float]:
        own, out, wrong = (slice(*of.indptr[label:label + 2]) for of in (positives, filtered, rejected))
        relevant_rows = rows[positives.indices[own]]
        more = relevant_rows[~isin_sorted(relevant_rows, sample)]
        drawn = np.concatenate([sample, more])
        place, relevant = locate(drawn, relevant_rows)
        weight = np.where(relevant, 1.0, len(rows) / len(sample))    # a drawn negative stands for others
        weight[relevant] = positives.data[own][place[relevant]]
        weight[isin_sorted(drawn, rows[filtered.indices[out]])] = 0
        weight[isin_sorted(drawn, np.setdiff1d(bare, rows[rejected.indices[wrong]]))] = 0
        matrix = features if not len(more) else sp.csr_matrix(
            sp.vstack([features, words.queries[more][:, shared].astype(np.float64)], format="csr"))
        machine = LinearSVC(dual=False).fit(matrix, relevant, sample_weight=weight)
        found = machine.coef_[0]
        kept = np.flatnonzero(np.abs(found) >= LEAST_WEIGHT)
        return shared[kept], found[kept], float(machine.intercept_[0])

    # sums that a BLAS splits by threads depend on their number in the last digits
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        trained = list(pool.map(train, labels.tolist()))
    ids, values, bias = zip(*trained, strict=True) if trained else ((), (), ())
    by_label = sp.csr_array((np.concatenate([np.zeros(0), *values]).astype(np.float32),
                             np.concatenate([np.zeros(0, np.int64), *ids]), np.cumsum([0, *map(len, ids)])),
                            shape=(len(labels), texts.shape[1]))
    by_word = by_label.T.tocsr()
    by_word.indices, by_word.indptr = by_word.indices.astype(np.int32), by_word.indptr.astype(np.int32)
    return FrequentClassifiers(words.lexicon, labels, by_word, np.array(bias, np.float32))


def _by_label(corpus: Corpus, pairs: Ragged, rows: np.ndarray, weights: np.ndarray | None = None) -> sp.csc_array:
    """Return the labels of some rows of the training side, (len(rows), L), each with its weight or 1."""
    labels, lengths = pairs.take(rows)
    given = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    shape = len(rows), corpus.n_labels
    return sp.csr_array((given, labels, np.append(0, np.cumsum(lengths))), shape=shape).tocsc()
