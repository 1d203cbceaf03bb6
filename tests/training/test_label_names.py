"""The share of a label's name that a text has, against sets of tokens."""

import numpy as np
import pytest
import torch

from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Corpus, Ragged, Side
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval import label_names
from xcmodels.retrieval.label_names import LabelNames, shares
from xcmodels.retrieval.lexicon import Lexicon, make_lexicon


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def lexicon(corpus) -> Lexicon:
    return make_lexicon(corpus.sides["train"], len(corpus.idf) // 2)


def tokens(*texts: tuple[list[int], list[int]]) -> Tokens:
    """Texts as the tokens of their titles and contents."""
    lengths = [0, *(len(title) + len(content) for title, content in texts)]
    return Tokens(torch.tensor([token for title, content in texts for token in title + content]),
                  torch.tensor(np.cumsum(lengths)), torch.tensor([len(title) for title, _ in texts]))


def share(text: list[int], name: list[int], idf: np.ndarray) -> float:
    """The share of the name's idf that its tokens in the text have."""
    weights = {token: float(idf[token]) or float(idf.max()) for token in name}
    kept = sorted(weights, key=lambda token: (-weights[token], token))[:label_names.MAX_TOKENS]
    return sum(weights[token] for token in kept if token in text) / (sum(weights[token] for token in kept) or 1)


@pytest.mark.parametrize("most", [16, 2])
def test_a_label_scores_by_the_share_of_its_name_that_a_text_has(corpus, lexicon, monkeypatch, most):
    monkeypatch.setattr(label_names, "MAX_TOKENS", most)
    monkeypatch.setattr(label_names, "CHUNK", 7)
    texts, labels, rng = corpus.sides["train"], corpus.sides["label"], np.random.default_rng(0)
    rows, ids = np.sort(rng.integers(0, len(texts), 500)), rng.integers(0, len(labels), 500)
    read = texts.tokens(np.arange(len(texts)))
    expected = [share(texts.ragged[row].tolist(), labels.ragged[label][:labels.titles[label]].tolist(),
                               lexicon.idf) for row, label in zip(rows, ids, strict=True)]
    names = LabelNames.of(lexicon, labels)
    found = names.scores(read, rows, ids)
    assert found.dtype == np.float32 and found == pytest.approx(expected, abs=1e-6)
    assert 0 < np.mean(found > 0) < 1
    assert np.array_equal(names.scores(lexicon.weigh(read), rows, ids), found)


def test_a_token_that_no_training_query_has_counts_as_the_rarest_and_a_content_not_at_all():
    idf = np.array([0, 0.5, 2, 0, 1], np.float32)
    made = shares(Lexicon(idf), tokens(([2, 3, 1, 1], [4]), ([], [4, 2]), ([3], []))).toarray()
    assert made == pytest.approx(np.array([[0, .5 / 4.5, 2 / 4.5, 2 / 4.5, 0], [0] * 5, [0, 0, 0, 1, 0]]))


def test_a_token_that_every_training_query_has_does_not_count():
    """Its idf is 0, as that of a token that none has."""
    queries = tokens(([2, 1], []), ([2], [3]), ([3], [2]))
    side = Side(Ragged(queries.offsets.numpy(), queries.ids.numpy()), queries.titles.numpy())
    labels = Side(Ragged(np.array([0, 2, 4]), np.array([2, 1, 2, 4])), np.full(2, 2))
    names = LabelNames.of(make_lexicon(side, 5), labels)
    assert names.scores(queries, np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)).tolist() == [1, 0, 0, 0, 0, 0]


def test_new_labels_have_their_names_and_all_of_them_are_read_back(corpus, lexicon, tmp_path):
    labels = corpus.sides["label"]
    made, n = LabelNames.of(lexicon, labels), len(labels)
    name = labels.ragged[3][:labels.titles[3]].tolist()
    edited = made.with_labels(np.array([1, n]), tokens((name, []), ([*name, 5], [])))
    text, zeros = tokens((name, [])), np.zeros(3, int)
    scores = edited.scores(text, zeros, np.array([1, 3, n]))
    assert scores[0] == scores[1] == pytest.approx(1) and 0 < scores[2] < 1
    edited.save(tmp_path)
    read = LabelNames.load(tmp_path, lexicon)
    assert np.array_equal(read.scores(text, zeros, np.array([1, 3, n])), scores)
    assert LabelNames.load(tmp_path / "none", lexicon) is None
