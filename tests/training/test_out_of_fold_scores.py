"""The pairs that confidences are fitted on are scored as those of later queries are, not as those that were seen."""

import numpy as np
import pytest

from xcmodels.data.propensity import inverse_propensity
from xcmodels.retrieval.boosted_trees import fit_trees
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.fusion import FusedScore, fit_fusion
from xcmodels.retrieval.score_weights import fit_weights
from xcmodels.retrieval.serving_config import FusionConfig


@pytest.mark.parametrize("fitted", [False, True])
def test_pairs_are_scored_by_trees_of_the_other_half_and_by_words_of_training_queries(corpus, fitted):
    """By trees that saw them, or by words that only they have, confidences would be too sure of every later text."""
    words, held, rng = CorpusWords(corpus), corpus.validation, np.random.default_rng(0)
    lexicon = words.lexicon_of_training()
    queries, vectors = (rng.normal(size=(count, 8)).astype(np.float32) for count in (len(held), 60))
    fusion, measured, pairs = fit_fusion(
        corpus, queries, np.tile(np.arange(60), (len(held), 1)), terms={"classifier": FusedScore(vectors)},
        indexed=("classifier",), embedded=lambda: queries, words=words, lexicon=lexicon,
        config=FusionConfig(min_leaf=20, weight=2.0, fit_weights=fitted))
    rows, labels, tokens = pairs.rows, pairs.labels, corpus.sides["train"].tokens(held)
    relevant = np.array([label in corpus.positives["train"][int(row)]
                         for row, label in zip(held[rows], labels, strict=True)], np.float32)
    known, counts = words.labels(with_validation=False), corpus.frequencies(corpus.training_rows())
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
