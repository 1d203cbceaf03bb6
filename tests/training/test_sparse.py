"""The sparse view: its pairs, its training and what it proposes, against sets and dictionaries."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.support.toy import toy_config, toy_corpus, trained, weighted
from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import unique
from xcmodels.methods.ngame.method import ngame
from xcmodels.retrieval import sparse_classifiers, sparse_training
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.ranker import Ranker, predict
from xcmodels.retrieval.serving_config import FUSED, FusionConfig, SparseConfig
from xcmodels.retrieval.sparse_classifiers import START_BIAS, START_SCALE, SparseClassifiers
from xcmodels.retrieval.sparse_training import train_sparse, training_pairs

CONFIG = SparseConfig(steps=25, uniform=4, pull=0.05, proposed=7)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def words(corpus) -> CorpusWords:
    return CorpusWords(corpus)


@pytest.fixture(scope="module")
def nearest(corpus) -> np.ndarray:
    """Labels for each training row, some of them none."""
    return np.random.default_rng(1).integers(-1, 60, (len(corpus.training_rows()), 6))


@pytest.fixture(scope="module")
def made(words, nearest) -> SparseClassifiers:
    return train_sparse(words, nearest, CONFIG, 0)


def test_pairs_are_positives_and_negatives_that_are_neither_positives_nor_filtered(corpus, nearest):
    pairs = training_pairs(corpus, nearest, 0, 0)
    positives, filters = corpus.positives["train"], corpus.filters["train"]
    wanted = []
    for row, near in zip(corpus.training_rows().tolist(), nearest.tolist(), strict=True):
        own, filtered = set(positives[row].tolist()), set(filters[row].tolist())
        wanted += [(label, row, True) for label in own - filtered]
        wanted += [(label, row, False) for label in set(near) - {-1} - own - filtered]
    found = list(zip(pairs.labels.tolist(), pairs.rows.tolist(), pairs.relevant.tolist(), strict=True))
    assert found == sorted(wanted)


def test_the_data_weighs_positives(corpus, words, nearest):
    """A label whose positives weigh ten times as much scores them higher than by weights that are all 1."""
    made = weighted(corpus, np.where(corpus.positives["train"].values == 7, 10.0, 1.0))
    pairs = training_pairs(made, nearest, 2, 0)
    assert (pairs.weights == np.where(pairs.relevant & (pairs.labels == 7), 10.0, 1.0)).all()
    heavy, alike = (train_sparse(CorpusWords(of), nearest, CONFIG, 0) for of in (made, corpus))
    own = pairs.rows[pairs.relevant & (pairs.labels == 7)]
    tokens = corpus.sides["train"].tokens(own)
    gain = {label: np.subtract(*(of.scores(tokens, np.arange(len(own)), np.full(len(own), label))
                                 for of in (heavy, alike))) for label in (7, 8)}
    assert gain[7].mean() > 0.01 and (gain[8] == 0).all()


def test_uniform_negatives_are_drawn_from_all_labels_and_the_same_by_the_same_seed(corpus, nearest):
    none = np.full((len(nearest), 1), -1)
    first, second, other = (training_pairs(corpus, none, 10, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.labels, second.labels) and np.array_equal(first.rows, second.rows)
    assert not np.array_equal(first.labels, other.labels)
    counts = np.bincount(first.labels[~first.relevant], minlength=60)
    expected = len(nearest) * (1 - (59 / 60) ** 10)    # a label drawn twice for a row is one pair
    assert (counts > 0.6 * expected).all() and (counts < 1.2 * expected).all()


def test_it_minimises_the_logistic_loss_with_a_pull_to_the_centroid(corpus, words, nearest, made):
    """By Adagrad, a label at a time, over dictionaries."""
    pairs, centroids = training_pairs(corpus, nearest, CONFIG.uniform, 0), words.centroids(with_validation=False)
    for label in (0, 7, 33, 59):
        row = centroids[[label]]
        start = {word: START_SCALE * value for word, value in zip(row.indices.tolist(), row.data.tolist(), strict=True)}
        w, b, squares, bias_squares = dict(start), START_BIAS, dict.fromkeys(start, 1e-8), 1e-8
        of = np.flatnonzero(pairs.labels == label)
        texts = [dict(zip(text.indices.tolist(), text.data.tolist(), strict=True))
                 for text in (words.queries[[at]] for at in pairs.rows[of])]
        for _ in range(CONFIG.steps):
            slope = {word: CONFIG.pull * (w[word] - start[word]) for word in w}
            bias_slope = 0.0
            for text, relevant in zip(texts, pairs.relevant[of], strict=True):
                logit = b + sum(value * w.get(word, 0) for word, value in text.items())
                error = 1 / (1 + math.exp(-logit)) - relevant
                bias_slope += error
                for word in text.keys() & w.keys():
                    slope[word] += error * text[word]
            bias_squares += bias_slope**2
            b -= 0.3 * bias_slope / math.sqrt(bias_squares)
            for word, value in slope.items():
                squares[word] += value**2
                w[word] -= 0.3 * value / math.sqrt(squares[word])
        known = made.words.ids[label] < len(words.lexicon.idf)
        assert made.bias[label] == pytest.approx(b, abs=1e-3)
        assert dict(zip(made.words.ids[label][known].tolist(), made.words.weights[label][known].tolist(),
                        strict=True)) == pytest.approx(w, abs=1e-3)
        assert w != start


def test_blocks_change_no_bit(words, nearest, made, monkeypatch):
    monkeypatch.setattr(sparse_training, "BLOCK", 50)
    again = train_sparse(words, nearest, CONFIG, 0)    # from the same centroids, which training leaves as they are
    assert np.array_equal(again.bias, made.bias) and np.array_equal(again.words.weights, made.words.weights)


def test_blocks_are_whole_labels_and_all_of_them(corpus, nearest, monkeypatch):
    monkeypatch.setattr(sparse_training, "BLOCK", 50)
    pairs = training_pairs(corpus, nearest, 4, 0)
    blocks = list(pairs.blocks(60))
    assert len(blocks) > 5
    for ends in zip(*blocks, strict=True):
        assert ends[0].start == 0 and all(a.stop == b.start for a, b in pairwise(ends))
    assert blocks[-1][0].stop == 60 and blocks[-1][1].stop == len(pairs.labels)
    for labels, part in blocks:
        assert set(pairs.labels[part]) <= set(range(labels.start, labels.stop))
        assert part.stop - part.start <= 50 or labels.stop - labels.start == 1


def test_training_tells_positives_from_negatives_better_than_the_start(corpus, words, nearest, made):
    pairs = training_pairs(corpus, nearest, CONFIG.uniform, 0)
    start = train_sparse(words, nearest, SparseConfig(steps=0, uniform=4), 0)
    rows, order = unique(pairs.rows), np.argsort(pairs.rows, kind="stable")
    asked = corpus.sides["train"].tokens(rows), np.searchsorted(rows, pairs.rows[order]), pairs.labels[order]

    def loss(classifiers: SparseClassifiers) -> float:
        probability = classifiers.scores(*asked).astype(float)
        return -np.log(np.where(pairs.relevant[order], probability, 1 - probability)).mean()

    assert loss(made) < 0.5 * loss(start)


def test_scores_are_the_probabilities_of_the_logits(corpus, words, made):
    texts = words.lexicon(corpus.sides["test"].tokens(np.arange(10)))
    logits = (texts @ made.words.matrix().T).toarray() + made.bias
    found = made.scores(corpus.sides["test"].tokens(np.arange(10)), np.repeat(np.arange(10), 60),
                        np.tile(np.arange(60), 10)).reshape(10, 60)
    assert found == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-5)


@pytest.mark.parametrize("most", [3, 1000])
def test_it_proposes_the_labels_that_its_words_speak_for(corpus, words, made, monkeypatch, most):
    monkeypatch.setattr(sparse_classifiers, "MAX_LABELS", most)
    weights = made.words.matrix().toarray()
    kept = np.zeros_like(weights)
    for word in np.flatnonzero((weights > 0).any(0)):
        best = sorted(range(60), key=lambda label: (-weights[label, word], label))[:most]
        kept[best, word] = np.maximum(weights[best, word], 0)
    classifiers = SparseClassifiers.of(made.words, made.bias, CONFIG.proposed)
    tokens = corpus.sides["test"].tokens(np.arange(30))
    texts = words.lexicon(tokens).toarray()
    for text, found in zip(texts, classifiers.propose(tokens), strict=True):
        score = kept @ text + made.bias
        touched = np.flatnonzero((kept[:, text > 0] > 0).any(1))
        wanted = sorted(touched, key=lambda label: -score[label])[:CONFIG.proposed]
        assert set(found[found >= 0].tolist()) == set(wanted)
    alone = [classifiers.propose(tokens.part(slice(row, row + 1)))[0] for row in range(30)]
    assert np.array_equal(classifiers.propose(tokens), alone)
    monkeypatch.setattr(sparse_classifiers, "CHUNK", 7)
    assert np.array_equal(classifiers.propose(tokens), alone)


def test_what_is_written_is_read(corpus, words, made, tmp_path):
    made.save(tmp_path)
    read = SparseClassifiers.load(tmp_path, words.lexicon, made.proposed)
    tokens = corpus.sides["test"].tokens(np.arange(7))
    asked = tokens, np.repeat(np.arange(7), 60), np.tile(np.arange(60), 7)
    assert np.array_equal(read.scores(*asked), made.scores(*asked))
    assert np.array_equal(read.propose(tokens), made.propose(tokens))
    (tmp_path / "none").mkdir()
    assert SparseClassifiers.load(tmp_path / "none", words.lexicon, 0) is None


def test_the_words_that_spoke_are_what_the_log_odds_are_the_sum_of(corpus, words, made):
    tokens = corpus.sides["test"].tokens(np.array([4]))
    tokenizer = corpus.tokenizer()
    for label in range(60):
        added = made.contributions(tokens, label)
        probability = made.scores(tokens, np.array([0]), np.array([label]))[0]
        assert sum(added.values()) + made.bias[label] == pytest.approx(math.log(probability / (1 - probability)),
                                                                        abs=1e-3)
        ids = tokens.ids.tolist()
        for word in added:
            assert any(tuple(ids[at:at + len(word)]) == word for at in range(len(ids)))
            assert tokenizer.backend.decode(list(word))


def test_a_new_label_starts_at_its_own_words(words, made, corpus):
    tokens = corpus.tokenizer()(["l3w1 l40w0", "l5w2"], ["", ""])
    more = made.with_labels(np.array([60, 5]), tokens)
    assert len(more.bias) == 61 and more.bias[60] == more.bias[5] == START_BIAS
    texts = words.lexicon(tokens)
    logits = (texts @ more.words.matrix().T).toarray() + more.bias
    assert logits[0, 60] == pytest.approx(START_SCALE + START_BIAS, abs=1e-4)
    assert logits[1, 5] == pytest.approx(START_SCALE + START_BIAS, abs=1e-4)
    assert 60 in more.propose(tokens)[0]
    assert np.array_equal(more.words.matrix()[[7]].toarray(), made.words.matrix()[[7]].toarray())


def test_more_than_there_are_labels_is_all_of_them(tmp_path):
    """A number far above them asks for no memory by it."""
    made, answers = trained("ngame"), []
    for many in (made.corpus.n_labels, 10**9):
        fusion = FusionConfig(centroids=True, words=True, shortlist=many,
                              sparse=SparseConfig(steps=5, hard=many, uniform=many, proposed=many))
        (out := tmp_path / str(many)).mkdir()
        build = ngame(replace(toy_config(), serve=FUSED, fusion=fusion)).build_retriever
        build(made.corpus, made.models, made.vectors, out)
        answers.append(predict(Ranker(out), made.corpus, 5))
    assert all(np.array_equal(one, other) for one, other in zip(*answers, strict=True))
