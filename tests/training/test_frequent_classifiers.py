"""Classifiers of frequent labels: which labels, the loss that they minimise, and their scores, against loops."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from tests.support.toy import weighted
from xcmodels.data.corpus import Ragged
from xcmodels.retrieval import frequent_classifiers, frequent_training
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.frequent_classifiers import SLOPE, FrequentClassifiers
from xcmodels.retrieval.frequent_training import train_frequent

LEAST = 12


@pytest.fixture(scope="module")
def words(corpus) -> CorpusWords:
    return CorpusWords(corpus)


@pytest.fixture(scope="module")
def made(words) -> FrequentClassifiers:
    return train_frequent(words, LEAST, 0)


def counts_of(corpus):
    """Return how many texts that are trained on have each label, filter pairs not counted."""
    return np.bincount(corpus.train_positives.take(corpus.training_rows())[0], minlength=corpus.n_labels)


def gradient_of(corpus, texts, label, w, b):
    """Return the gradient of (||w||^2 + b^2) / 2 + the sum of squared hinges, LIBLINEAR's loss; texts (N, words)."""
    slope, of_bias = w.copy(), b
    for row in corpus.training_rows():
        if label not in corpus.filters["train"][int(row)]:
            own = np.flatnonzero(corpus.train_positives[int(row)] == label)
            weight = 1.0 if not len(own) or corpus.train_weights is None else corpus.train_weights[int(row)][own[0]]
            target = 1 if len(own) else -1
            pushed = -2 * weight * target * max(0.0, 1 - target * (texts[row] @ w + b))
            slope += pushed * texts[row]
            of_bias += pushed
    return np.append(slope, of_bias)


def test_labels_are_those_of_enough_texts_and_no_more_than_the_most_frequent(corpus, words, made, monkeypatch):
    counts = counts_of(corpus)
    assert made.labels.tolist() == np.flatnonzero(counts >= LEAST).tolist() and 3 < len(made.labels) < 60
    monkeypatch.setattr(frequent_training, "MAX_LABELS", 3)
    monkeypatch.setattr(frequent_training, "MAX_OF_SHORT_TEXTS", 3)
    best = sorted(sorted(range(60), key=lambda label: (-counts[label], label))[:3])
    fewer = train_frequent(words, LEAST, 0)
    assert fewer.labels.tolist() == best
    assert np.array_equal(fewer.bias, made.bias[np.isin(made.labels, best)])


def test_of_short_texts_more_labels_are_trained(corpus, words, made, monkeypatch):
    read = words.queries[corpus.training_rows()].nnz
    monkeypatch.setattr(frequent_training, "MAX_LABELS", 2)
    for most, passes, wanted in ((99, 1, 2), (99, 4, 4), (3, 4, 3), (99, 99, len(made.labels))):
        monkeypatch.setattr(frequent_training, "MAX_OF_SHORT_TEXTS", most)
        monkeypatch.setattr(frequent_training, "MAX_READ", passes * read)
        assert len(train_frequent(words, LEAST, 0).labels) == wanted


def test_as_many_labels_are_proposed_as_positives_are_frequent_and_those_of_highest_margin(corpus, words, made,
                                                                                           monkeypatch):
    counts = counts_of(corpus)
    share = counts[made.labels].sum() / counts.sum()
    assert made.proposed == round(50 * share) > 0
    for chunk in (1000, 7):
        monkeypatch.setattr(frequent_classifiers, "CHUNK", chunk)
        for proposed, gone in ((3, []), (3, made.labels[::2]), (99, made.labels[:1]), (0, []), (99, made.labels)):
            few = replace(made, proposed=proposed)
            texts, gone = corpus.sides["test"].tokens(np.arange(30)), np.array(gone, np.int64)
            margins = (words.lexicon(texts) @ made.weights).toarray() + made.bias
            found = few.propose(texts, gone)
            assert found.shape == (30, min(proposed, len(made.labels)))
            for row in range(30):
                best = [label for label in made.labels[np.argsort(-margins[row])] if label not in gone][:proposed]
                assert sorted(found[row][found[row] >= 0]) == sorted(best)
                alone = few.propose(texts.part(slice(row, row + 1)), gone)[0]
                assert sorted(alone) == sorted(found[row])


def test_margins_of_the_same_words_are_computed_once(corpus, words, made, monkeypatch):
    read, computed = made.lexicon.weigh(corpus.sides["test"].tokens(np.arange(9))), list[int]()
    margins = FrequentClassifiers._margins
    monkeypatch.setattr(FrequentClassifiers, "_margins", lambda self, texts: (
        computed.append(len(self.labels)), margins(self, texts))[1])
    rows = np.arange(9)
    few = made.without(made.labels[:2])
    for each in (made, few, made):
        each.propose(read)
        wanted = each.scores(corpus.sides["test"].tokens(rows), rows, np.full(9, made.labels[-1]))
        assert np.array_equal(each.scores(read, rows, np.full(9, made.labels[-1])), wanted)
    h = len(made.labels)
    assert computed == [h, h, h - 2, h - 2, h], "once for the words, and once for the tokens, which keep none"


def test_a_label_is_frequent_by_its_share_where_there_are_many_texts(corpus, words, monkeypatch):
    counts, n = counts_of(corpus), len(corpus.training_rows())
    monkeypatch.setattr(frequent_training, "COUNTED_AMONG", n // 2)
    made = train_frequent(words, LEAST, 0)
    assert made.labels.tolist() == np.flatnonzero(counts >= LEAST * n / (n // 2)).tolist() and len(made.labels)
    assert len(made.labels) < (counts >= LEAST).sum()


@pytest.mark.parametrize("heavy", [False, True])
def test_it_minimises_the_squared_hinge_of_all_texts(corpus, monkeypatch, heavy):
    """By weights on words that two texts have; filter pairs do not count."""
    monkeypatch.setattr(frequent_training, "LEAST_WEIGHT", 0.0)
    of = weighted(corpus, np.where(corpus.positives["train"].values % 2, 3.0, 0.5)) if heavy else corpus
    words, rows = CorpusWords(of), of.training_rows()
    made = train_frequent(words, LEAST, 0)
    shared = np.flatnonzero(np.bincount(words.queries[rows].indices, minlength=words.queries.shape[1]) > 1)
    texts = words.queries[:, shared].toarray().astype(float)
    assert set(np.flatnonzero(np.diff(made.weights.indptr))) <= set(shared)
    filtered = [label for label in made.labels if any(label in of.filters["train"][int(row)] for row in rows)]
    assert filtered
    for label in (filtered[0], made.labels[-1]):
        place = made.labels.tolist().index(label)
        w = made.weights[shared][:, [place]].toarray().ravel().astype(float)
        found = gradient_of(of, texts, label, w, float(made.bias[place]))
        start = gradient_of(of, texts, label, np.zeros(len(shared)), 0.0)
        assert np.linalg.norm(found) < 1e-3 * np.linalg.norm(start)


def test_words_of_little_weight_are_left_out(words, made, monkeypatch):
    monkeypatch.setattr(frequent_training, "LEAST_WEIGHT", 0.0)
    every = train_frequent(words, LEAST, 0).weights
    assert made.weights.nnz == (np.abs(every.data) >= 0.05).sum() < every.nnz
    every.data[np.abs(every.data) < 0.05] = 0
    assert (made.weights != every).nnz == 0


def test_a_text_that_rejected_a_label_is_its_negative_though_it_has_no_other(corpus):
    """Of a text without positives nothing else is trained on."""
    of = copy(corpus)
    (empty, *_) = set(range(corpus.n_queries)) - set(corpus.validation) - set(corpus.training_rows()) or {None}
    if empty is None:
        empty = int(corpus.training_rows()[0])
        vars(of)["train_positives"] = Ragged.of_pairs(
            *np.array([(row, label) for row in range(len(corpus.train_positives)) if row != empty
                       for label in corpus.train_positives[row]]).T, len(corpus.train_positives))
    label = int(np.argmax(counts_of(corpus)))
    of.rejected = Ragged.of_pairs(np.array([empty]), np.array([label]), len(corpus.sides["train"]))
    without = copy(of)
    without.rejected = corpus.rejected
    tokens = corpus.sides["train"].tokens(np.array([empty]))
    after, before = (train_frequent(CorpusWords(each), LEAST, 0).scores(tokens, np.array([0]), np.array([label]))[0]
                     for each in (of, without))
    assert after < before


def test_a_text_that_rejected_a_label_says_nothing_of_the_others(corpus):
    """A label that no reviewer named was not judged."""
    of, without = copy(corpus), copy(corpus)
    label, other = np.argsort(-counts_of(corpus))[:2].tolist()
    texts = np.array([row for row in corpus.training_rows() if other in corpus.train_positives[int(row)]
                      and label not in corpus.train_positives[int(row)]][:8])
    pairs = [(row, each) for row in range(len(corpus.train_positives)) if row not in texts
             for each in corpus.train_positives[row]]
    for made in (of, without):
        vars(made)["train_positives"] = Ragged.of_pairs(*np.array(pairs).T, len(corpus.train_positives))
    of.rejected = Ragged.of_pairs(texts, np.full(len(texts), label), len(corpus.sides["train"]))
    rows, tokens = np.arange(len(texts)), corpus.sides["train"].tokens(texts)
    after, before = (train_frequent(CorpusWords(each), LEAST, 0) for each in (of, without))
    scores = {each: [made.scores(tokens, rows, np.full(len(rows), each)) for made in (after, before)]
              for each in before.labels.tolist()}
    assert (scores[label][0] < scores[label][1]).all()
    for each in set(scores) - {label}:
        assert scores[each][0] == pytest.approx(scores[each][1], abs=0.1), "the texts add words that two texts have"


@pytest.mark.parametrize("chunk", [7, 1000])
def test_scores_are_sigmoids_of_margins_and_none_without_a_classifier(corpus, words, made, monkeypatch, chunk):
    monkeypatch.setattr(frequent_classifiers, "CHUNK", chunk)
    tokens = corpus.sides["test"].tokens(np.arange(30))
    margins = (words.lexicon(tokens) @ made.weights).toarray() + made.bias
    wanted = np.zeros((30, 60))
    wanted[:, made.labels] = 1 / (1 + np.exp(-SLOPE * margins))
    rows, labels = np.repeat(np.arange(30), 60), np.tile(np.arange(60)[::-1], 30)
    found = made.scores(tokens, rows, labels)
    assert found == pytest.approx(wanted[rows, labels], abs=1e-5)
    some = np.random.default_rng(0).random(len(rows)) < 0.2
    assert np.array_equal(made.scores(tokens, rows[some], labels[some]), found[some])


def test_training_is_the_same_by_any_number_of_threads(words, made):
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        again = train_frequent(words, LEAST, 0)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(again.bias, made.bias) and np.array_equal(again.weights.data, made.weights.data)


def test_of_many_texts_a_sample_stands_for_all_but_a_labels_own(corpus, words, monkeypatch):
    """A label of 30 texts among half a million has two in a sample of 32,768, and learns from all 30."""
    seen, size = list[tuple[np.ndarray, np.ndarray]](), 200

    class RecordedSVC(LinearSVC):
        def fit(self, texts, relevant, sample_weight):
            assert texts.shape[0] == len(relevant) == len(sample_weight)
            seen.append((relevant, sample_weight))
            return super().fit(texts, relevant, sample_weight=sample_weight)

    monkeypatch.setattr(frequent_training, "MAX_TEXTS", size)
    monkeypatch.setattr("sklearn.svm.LinearSVC", RecordedSVC)
    first, second, other = (train_frequent(words, LEAST, seed) for seed in (0, 0, 1))
    counts, n = counts_of(corpus), len(corpus.training_rows())
    assert first.labels.tolist() == np.flatnonzero(counts >= LEAST).tolist()
    assert np.array_equal(first.weights.data, second.weights.data)
    assert not np.array_equal(first.weights.data, other.weights.data)
    assert sorted(int(relevant.sum()) for relevant, _ in seen) == sorted(3 * counts[first.labels].tolist())
    for relevant, weights in seen:
        assert set(weights[relevant].tolist()) == {1.0} and set(weights[~relevant].tolist()) <= {0.0, n / size}
        assert size <= len(relevant) < size + relevant.sum()


def test_what_is_written_is_read(corpus, words, made, tmp_path):
    made.save(tmp_path)
    read = FrequentClassifiers.load(tmp_path, words.lexicon, made.proposed)
    asked = corpus.sides["test"].tokens(np.arange(7)), np.repeat(np.arange(7), 60), np.tile(np.arange(60), 7)
    assert np.array_equal(read.scores(*asked), made.scores(*asked))
    (tmp_path / "none").mkdir()
    assert read.proposed == made.proposed and np.array_equal(read.propose(asked[0]), made.propose(asked[0]))
    assert FrequentClassifiers.load(tmp_path / "none", words.lexicon, 0) is None


def test_a_label_that_gets_other_texts_loses_its_classifier(corpus, made):
    gone = np.array([99, int(made.labels[2]), int(made.labels[0])])
    asked = corpus.sides["test"].tokens(np.arange(7)), np.repeat(np.arange(7), 60), np.tile(np.arange(60), 7)
    left, whole = made.without(gone).scores(*asked), made.scores(*asked)
    assert np.array_equal(left, np.where(np.isin(asked[2], gone), 0, whole))


def test_there_may_be_none(corpus, words):
    none = train_frequent(words, 10_000, 0)
    asked = corpus.sides["test"].tokens(np.arange(2)), np.array([0, 1]), np.array([5, 7])
    assert len(none.labels) == 0 and none.scores(*asked).tolist() == [0, 0]


def test_a_label_of_every_text_has_none(corpus):
    """There is nothing to tell it from."""
    of = copy(corpus)
    rows = np.arange(len(corpus.train_positives))
    every = np.stack([rows, np.full(len(rows), 7)])
    some = np.stack([rows[::2], np.full(len(rows[::2]), 9)])
    vars(of)["train_positives"] = Ragged.of_pairs(*np.concatenate([every, some], axis=1), len(rows))
    assert train_frequent(CorpusWords(of), LEAST, 0).labels.tolist() == [9]


def test_a_label_of_every_text_of_the_sample_has_none(corpus, monkeypatch):
    """LIBLINEAR refuses texts of one kind."""
    of, last = copy(corpus), int(corpus.training_rows()[-1])
    of.filters = {**corpus.filters, "train": corpus.filters["train"].less(np.array([0]))}
    pairs = {(row, label) for row in range(len(corpus.train_positives)) for label in corpus.train_positives[row]}
    pairs = pairs - {(last, 0)} | {(row, 0) for row in range(len(corpus.train_positives)) if row != last} | {(last, 1)}
    vars(of)["train_positives"] = Ragged.of_pairs(*np.array(sorted(pairs)).T, len(corpus.train_positives))
    words = CorpusWords(of)
    assert 0 in train_frequent(words, LEAST, 0).labels
    monkeypatch.setattr(frequent_training, "MAX_TEXTS", 20)
    assert 0 not in (made := train_frequent(words, LEAST, 0)).labels and len(made.labels)


def test_texts_that_share_no_word_have_none(words, monkeypatch):
    monkeypatch.setattr(words, "queries", 0 * words.queries)
    words.queries.eliminate_zeros()
    assert len(train_frequent(words, 1, 0).labels) == 0
