"""The pairs that confidences are fitted on are scored as those of later queries are, not as those that were seen."""

import numpy as np
import pytest

from xcmodels.retrieval.boosted_trees import fit_trees
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.fusion import FusedScore, fit_fusion
from xcmodels.retrieval.serving_config import FusionConfig


def test_pairs_are_scored_by_trees_of_the_other_half_and_by_words_of_training_queries(corpus):
    """By trees that saw them, or by words that only they have, confidences would be too sure of every later text."""
    words, held, rng = CorpusWords(corpus), corpus.validation, np.random.default_rng(0)
    lexicon = words.lexicon_of_training()
    queries, vectors = (rng.normal(size=(count, 8)).astype(np.float32) for count in (len(held), 60))
    _, _, pairs = fit_fusion(corpus, queries, np.tile(np.arange(60), (len(held), 1)),
                             terms={"classifier": FusedScore(vectors)}, indexed=("classifier",),
                             embedded=lambda: queries, config=FusionConfig(min_leaf=20), words=words, lexicon=lexicon)
    rows, labels, tokens = pairs.rows, pairs.labels, corpus.sides["train"].tokens(held)
    relevant = np.array([label in corpus.positives["train"][int(row)]
                         for row, label in zip(held[rows], labels, strict=True)], np.float32)
    known, counts = words.labels(with_validation=False), corpus.frequencies(corpus.training_rows())
    seen, later = (np.stack([(queries[rows] * vectors[labels]).sum(axis=1),
                             of_labels.scores(tokens, rows, labels), counts[labels]], axis=1).astype(np.float32)
                   for of_labels in (known, known.reading(lexicon)))
    assert not np.allclose(seen, later), "some words are of validation queries alone"
    for half in (0, 1):
        own = rows % 2 == half
        trees = fit_trees(seen[~own], relevant[~own], min_leaf=20)
        assert pairs.scores[own] == pytest.approx(later[own, :-1].sum(axis=1) + trees.predict(later[own]), abs=1e-5)
