"""The scores over words that a fusion has: which a corpus gets, and their training."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.frequent_classifiers import FrequentClassifiers
from xcmodels.retrieval.frequent_training import train_frequent
from xcmodels.retrieval.label_names import LabelNames
from xcmodels.retrieval.serving_config import FusionConfig
from xcmodels.retrieval.sparse_classifiers import SparseClassifiers
from xcmodels.retrieval.sparse_training import train_sparse


class Lexical(NamedTuple):
    """The words of a corpus, the classifiers over them, trained without the validation split, and the labels' names."""

    words: CorpusWords | None = None
    sparse: SparseClassifiers | None = None
    frequent: FrequentClassifiers | None = None
    names: LabelNames | None = None


def train_lexical(corpus: Corpus, nearest: Callable[[np.ndarray, int], np.ndarray], fusion: FusionConfig,
                  seed: int) -> Lexical:
    """Return what the settings of a fusion ask for; without any of it, not even the words.

    nearest: finds labels near to rows of the training side.
    """
    if not (fusion.words or fusion.sparse.steps or fusion.frequent or fusion.name):
        return Lexical()
    words = CorpusWords(corpus)
    frequent = train_frequent(words, fusion.frequent, seed) if fusion.frequent else None
    names = LabelNames.of(words.lexicon, corpus.sides["label"]) if fusion.name else None
    if not fusion.sparse.steps:
        return Lexical(words, None, frequent, names)
    hard = min(fusion.sparse.hard, corpus.n_labels)
    sparse = train_sparse(words, nearest(corpus.training_rows(), hard), fusion.sparse, seed)
    return Lexical(words, sparse, frequent, names)
