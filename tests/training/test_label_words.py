"""The words of queries and labels, against dictionaries counted token by token."""

import math
from collections import Counter
from itertools import pairwise
from mmap import mmap

import numpy as np
import pytest
import torch

from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Corpus, Side
from xcmodels.data.sparse_rows import heaviest, normalise_rows
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval import corpus_words, label_words
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.label_words import LabelWords
from xcmodels.retrieval.lexicon import BIGRAM_BUCKETS, make_lexicon, words_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


def counted(side: Side, row: int, vocabulary: int) -> Counter:
    """Tokens and the pairs of neighbours in the title, and in the content."""
    tokens = side.ragged[row].tolist()
    found = Counter(tokens)
    for field in (tokens[:side.titles[row]], tokens[side.titles[row]:]):
        found.update(vocabulary + (a * 0x9E3779B1 + b) % BIGRAM_BUCKETS for a, b in pairwise(field))
    return found


def unit(weights: dict[int, float]) -> dict[int, float]:
    length = math.sqrt(sum(value**2 for value in weights.values()))
    return {word: value / length for word, value in weights.items() if value} if length else {}


class Oracle:
    """The words of queries and labels as dictionaries."""

    def __init__(self, corpus: Corpus, known: list[int], most: int) -> None:
        self.corpus, self.vocabulary = corpus, len(corpus.idf) // 2
        texts = [counted(corpus.sides["train"], row, self.vocabulary) for row in range(len(corpus.sides["train"]))]
        having = Counter(word for text in texts for word in text)
        self.idf = {word: math.log((len(texts) + 1) / (n + 1)) for word, n in having.items()}
        self.labels = []
        for label in range(corpus.n_labels):
            total = Counter(self.text("label", label))
            for row in known:
                if label in corpus.positives["train"][row]:
                    total.update(self.text("train", row))
            kept = sorted(total.items(), key=lambda pair: (-round(pair[1], 5), pair[0]))[:most]
            self.labels.append(unit(dict(kept)))

    def text(self, side: str, row: int) -> dict[int, float]:
        found = counted(self.corpus.sides[side], row, self.vocabulary)
        return unit({word: (1 + math.log(n)) * self.idf.get(word, 0) for word, n in found.items()})


@pytest.mark.parametrize(("with_validation", "most", "marks"), [(False, 128, 1 << 13), (True, 128, 4), (True, 3, 1)])
def test_scores_are_cosines_of_weighed_words(corpus, monkeypatch, with_validation, most, marks):
    monkeypatch.setattr(label_words, "MARKS", marks)    # few enough for different words to share one
    monkeypatch.setattr(corpus_words, "MAX_WORDS", most)
    monkeypatch.setattr(corpus_words, "CHUNK", 64)    # several chunks
    made = CorpusWords(corpus).label_words(with_validation)
    oracle = Oracle(corpus, list(range(600)) if with_validation else corpus.training_rows().tolist(), most)
    rows = np.repeat(np.arange(40), 60)
    found = made.scores(corpus.sides["test"].tokens(np.arange(40)), rows, np.tile(np.arange(60), 40)).reshape(40, 60)
    for row in range(40):
        text = oracle.text("test", row)
        wanted = [sum(value * label.get(word, 0) for word, value in text.items()) for label in oracle.labels]
        assert found[row] == pytest.approx(wanted, abs=1e-5)
    assert found.max() > 0.3
    assert made.ids.shape[1] <= most


def test_a_row_may_have_no_pair_and_a_text_no_word(corpus):
    made = CorpusWords(corpus).label_words(with_validation=True)
    ids, offsets, titles = (torch.zeros(n, dtype=torch.int64) for n in (0, 4, 3))
    none = Tokens(ids, offsets, titles)
    assert made.scores(none, np.array([0, 2, 2]), np.array([5, 5, 6])).tolist() == [0, 0, 0]
    assert made.scores(none, np.array([], int), np.array([], int)).tolist() == []


def test_each_text_is_scored_as_if_alone(corpus):
    made, side = CorpusWords(corpus).label_words(with_validation=True), corpus.sides["test"]
    labels = np.arange(60)
    together = made.scores(side.tokens(np.arange(5)), np.repeat(np.arange(5), 60), np.tile(labels, 5)).reshape(5, 60)
    alone = [made.scores(side.tokens(np.array([row])), np.zeros(60, int), labels) for row in range(5)]
    assert np.array_equal(together, alone)


def test_words_that_were_found_score_as_their_tokens_do(corpus):
    made, tokens = CorpusWords(corpus).label_words(with_validation=True), corpus.sides["test"].tokens(np.arange(5))
    rows, labels = np.repeat(np.arange(5), 60), np.tile(np.arange(60), 5)
    found, scores = made.lexicon.weigh(tokens), made.scores(tokens, rows, labels)
    assert np.array_equal(made.scores(found, rows, labels), scores)
    assert np.array_equal(made.scores(found.part(slice(2, 4)), rows[120:240] - 2, labels[120:240]), scores[120:240])


def test_on_the_words_of_others_a_label_keeps_the_weights_of_those_it_shares(corpus, monkeypatch):
    words = CorpusWords(corpus)
    fewer, all_queries = (words.label_words(with_validation) for with_validation in (False, True))
    monkeypatch.setattr(label_words, "CHUNK", 7)    # several chunks
    for own, other in ((fewer, all_queries), (all_queries, fewer), (fewer, fewer)):
        made, known = own.on_words_of(other), other.matrix()
        known.data[:] = 1
        assert made.ids is other.ids
        assert np.array_equal(made.matrix().toarray(), (own.matrix() * known).toarray())
    assert not np.array_equal(fewer.ids, all_queries.ids)


def test_several_weights_of_the_same_words_score_as_each_alone(corpus):
    made = CorpusWords(corpus).label_words(with_validation=True)
    asked = corpus.sides["test"].tokens(np.arange(7)), np.repeat(np.arange(7), 60), np.tile(np.arange(60), 7)
    squared = LabelWords(made.lexicon, made.ids, made.weights**2)
    both = made.scores_by([made.weights, squared.weights], *asked)
    assert np.array_equal(both, [made.scores(*asked), squared.scores(*asked)])
    assert not np.array_equal(*both)


def test_pairs_do_not_reach_across_texts_or_fields():
    tokens = Tokens(torch.tensor([1, 2, 3, 1, 2]), torch.tensor([0, 3, 5]), torch.tensor([2, 0]))
    row, word = words_of(tokens, 10)
    pair = word.max()
    assert pair >= 10 and [sorted(word[row == text]) for text in range(2)] == [[1, 2, 3, pair], [1, 2, pair]]


def test_a_word_that_no_training_query_has_weighs_nothing(corpus):
    lexicon = make_lexicon(corpus.sides["train"], len(corpus.idf) // 2)
    seen = np.unique(corpus.sides["train"].ragged.values)
    assert (lexicon.idf[np.setdiff1d(np.arange(len(corpus.idf) // 2), seen)] == 0).all()
    assert (lexicon.idf >= 0).all()


def test_what_is_written_is_read(corpus, tmp_path):
    made = CorpusWords(corpus).label_words(with_validation=True)
    made.save(tmp_path, "words")
    read = LabelWords.load(tmp_path, "words", made.lexicon)
    held = read.weights
    while isinstance(held, np.ndarray):
        held = held.base
    assert isinstance(held, mmap)    # not read into memory
    asked = corpus.sides["test"].tokens(np.arange(7)), np.repeat(np.arange(7), 60), np.tile(np.arange(60), 7)
    assert np.array_equal(read.scores(*asked), made.scores(*asked))
    (tmp_path / "none").mkdir()
    assert LabelWords.load(tmp_path / "none", "words", made.lexicon) is None


def test_heaviest_keeps_the_first_of_equal_ones():
    import scipy.sparse as sp

    rows = sp.csr_array(np.array([[1, 3, 1, 2], [0, 0, 0, 0], [0, 5, 0, 0]], np.float32))
    assert heaviest(rows, 3).toarray().tolist() == [[1, 3, 0, 2], [0, 0, 0, 0], [0, 5, 0, 0]]
    assert normalise_rows(heaviest(rows, 1)).toarray().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
