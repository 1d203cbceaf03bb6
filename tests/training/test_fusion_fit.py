"""The pairs that a fusion is fitted on: which, and scored as those of later queries are, not as those it has seen."""

import numpy as np
import pytest

from tests.support.toy import trained
from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.retrieval import ann
from xcmodels.retrieval.boosted_trees import fit_trees
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.fusion import InnerProductTerm
from xcmodels.retrieval.fusion_fit import fit_fusion
from xcmodels.retrieval.lexical import Lexical
from xcmodels.retrieval.score_weights import fit_weights
from xcmodels.retrieval.serving_config import FusionConfig


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


def twice(vectors):
    """Return terms of which both are the same vectors."""
    return {"encoder": InnerProductTerm(vectors), "classifier": InnerProductTerm(vectors)}


def test_the_fusion_is_fitted_without_the_validation_queries_and_served_with_them(toy):
    """Fitted with them, it would see each validation query's own share in the centroids that it is judged by."""
    corpus, queries, labels = toy.corpus, toy.vectors["queries"], toy.vectors["labels"]
    positives, rows = corpus.positives["train"], corpus.training_rows()
    mean, counts = np.zeros((2, 60, 32)), np.zeros((2, 60), np.float32)
    for row in range(600):
        for known in ([0, 1] if row in rows else [1]):
            mean[known, positives[row]] += queries[row]
            counts[known, positives[row]] += 1
    mean /= np.maximum(np.linalg.norm(mean, axis=2, keepdims=True), 1e-9)
    assert (counts[0] < counts[1]).any()
    held, ids = corpus.validation, np.tile(np.arange(60), (len(corpus.validation), 1))
    fusion, *_ = fit_fusion(corpus, queries[held], ids, terms=twice(labels), indexed=("classifier",),
                           embedded=lambda: queries, lexical=Lexical(CorpusWords(corpus)),
                           config=FusionConfig(centroids=True, words=True, min_leaf=20))
    assert np.array_equal(fusion.frequencies, counts[1])
    assert fusion.terms["similar texts"].matrix == pytest.approx(mean[1], abs=1e-6)
    before, after = (CorpusWords(corpus).label_words(with_validation) for with_validation in (False, True))
    assert np.array_equal(fusion.words.weights, after.weights) and np.array_equal(fusion.words.ids, after.ids)
    assert not np.array_equal(before.ids, after.ids)
    tokens = corpus.sides["train"].tokens(held)
    asked = [(row, label) for row in held for label in range(60)
             if counts[0, label] and label not in corpus.filters["train"][int(row)]]
    shared = before.scores(tokens, np.searchsorted(held, [row for row, _ in asked]), np.array(asked)[:, 1])
    seen = np.array([[*2 * [labels[label] @ queries[row]], mean[0, label] @ queries[row], words, counts[0, label]]
                     for (row, label), words in zip(asked, shared, strict=True)], np.float32)
    wanted = fit_trees(seen, np.array([label in positives[int(row)] for row, label in asked], np.float32), min_leaf=20)
    assert fusion.trees.predict(seen) == pytest.approx(wanted.predict(seen), abs=1e-6)


def test_the_fusion_sees_the_shortlist_less_the_filters(toy):
    """Every pair it is fitted on is of a validation query, in the shortlist, and no filter pair."""
    index = ann.load(toy.retriever / "index" / "labels")
    queries = toy.vectors["queries"][toy.corpus.validation]
    wanted = set()
    for row, query in enumerate(queries):
        top = np.argsort(-(index.vectors @ query), kind="stable")[:20].tolist()
        banned = toy.corpus.filters["train"][int(toy.corpus.validation[row])].tolist()
        wanted |= {(row, label) for label in top if label not in banned}
    relevant = sum(label in toy.corpus.positives["train"][int(toy.corpus.validation[row])] for row, label in wanted)
    assert toy.measured == {"pairs": len(wanted), "relevant": relevant}


def test_the_fusion_is_not_told_of_labels_that_only_validation_queries_have(toy):
    """No test query will ever have one: those labels would not be in the label file."""
    corpus = Corpus(toy.corpus.folder)
    corpus.validation = np.flatnonzero([7 in corpus.positives["train"][row] for row in range(600)])
    ids = np.tile(np.arange(60), (len(corpus.validation), 1))
    queries, labels = np.ones((len(ids), 4), np.float32), np.ones((60, 4), np.float32)
    fusion, measured, _ = fit_fusion(corpus, queries, ids, terms=twice(labels), indexed=("classifier",),
                                  embedded=lambda: queries, lexical=Lexical(), config=FusionConfig())
    banned = sum(bool(np.isin(label, corpus.filters["train"][row])) for row in corpus.validation for label in range(60)
                 if label != 7)
    assert measured["pairs"] == 59 * len(ids) - banned
    assert np.array_equal(fusion.frequencies, corpus.frequencies())


@pytest.mark.parametrize("fitted", [False, True])
def test_pairs_are_scored_by_trees_of_the_other_half_and_by_words_of_training_queries(corpus, fitted):
    """By trees that saw them, or by words that only they have, confidences would be too sure of every later text."""
    words, held, rng = CorpusWords(corpus), corpus.validation, np.random.default_rng(0)
    lexicon = words.lexicon_of_training()
    queries, vectors = (rng.normal(size=(count, 8)).astype(np.float32) for count in (len(held), 60))
    fusion, measured, pairs = fit_fusion(
        corpus, queries, np.tile(np.arange(60), (len(held), 1)), terms={"classifier": InnerProductTerm(vectors)},
        indexed=("classifier",), embedded=lambda: queries, lexical=Lexical(words),
        config=FusionConfig(words=True, min_leaf=20, weight=2.0, fit_weights=fitted))
    rows, labels, tokens = pairs.rows, pairs.labels, corpus.sides["train"].tokens(held)
    relevant = np.array([label in corpus.positives["train"][int(row)]
                         for row, label in zip(held[rows], labels, strict=True)], np.float32)
    known, counts = words.label_words(with_validation=False), corpus.frequencies(corpus.training_rows())
    seen, later = (np.stack([(queries[rows] * vectors[labels]).sum(axis=1),
                             of_labels.scores(tokens, rows, labels), counts[labels]], axis=1).astype(np.float32)
                   for of_labels in (known, known.reading(lexicon)))
    assert not np.allclose(seen, later), "some words are of validation queries alone"
    trees = [fit_trees(seen[rows % 2 != half], relevant[rows % 2 != half], min_leaf=20) for half in (0, 1)]
    added = [np.where(rows % 2 == 0, *(each.predict(inputs) for each in trees)) for inputs in (seen, later)]
    weights = np.array([1.0, 1.0, 2.0])
    if fitted:
        gains = np.sqrt(inverse_propensity(corpus))[labels]
        weights = fit_weights(np.column_stack([seen[:, :-1], added[0]]), rows, relevant > 0, gains, weights)
        assert np.abs(weights - [1, 1, 2]).max() > 0.05
        assert [measured[f"weight/{name}"] for name in ("classifier", "words", "trees")] == pytest.approx(weights)
    assert pairs.scores == pytest.approx(np.column_stack([later[:, :-1], added[1]]) @ weights, abs=1e-5)
    parts, raw = fusion.parts(queries, tokens, rows, labels), fusion.features(queries, tokens, rows, labels)
    assert parts["classifier"] == pytest.approx(weights[0] * raw[:, 0], abs=1e-5)
    assert parts["words"] == pytest.approx(weights[1] * raw[:, 1], abs=1e-5)
    served = fit_trees(seen, relevant, min_leaf=20).predict(raw)
    assert parts["trees"] == pytest.approx(weights[2] * served, abs=1e-5)
