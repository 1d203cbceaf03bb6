"""The words of a corpus, and of its labels: tf-idf centroids of their training queries and their own texts.

A dense vector of a few hundred numbers captures similar meanings and blurs rare names. The words that a query shares
with a label's training queries are therefore a separate score in the fusion. A word is a token or a bigram.
"""

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Corpus
from xcmodels.data.sparse_rows import heaviest, normalise_rows
from xcmodels.retrieval.centroids import label_matrix
from xcmodels.retrieval.label_words import CHUNK, MAX_WORDS, LabelWords
from xcmodels.retrieval.lexicon import Lexicon, make_lexicon


class CorpusWords:
    """The words of the training queries and label texts of a corpus, which make up the words of labels."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, sides = corpus, corpus.sides
        self.lexicon = make_lexicon(sides["train"], len(corpus.idf) // 2)
        self.queries, self.texts = self.lexicon.side(sides["train"]), self.lexicon.side(sides["label"])
        self._centroids = dict[bool, sp.csr_array]()

    def centroids(self, with_validation: bool) -> sp.csr_array:
        """Return the sum of each label's training queries and its own text, cut to MAX_WORDS words, at unit length.

        (L, words) float32, made at the first call; with_validation: include the validation split.
        """
        if with_validation not in self._centroids:
            self._centroids[with_validation] = self._summed(with_validation)
        return self._centroids[with_validation]

    def _summed(self, with_validation: bool) -> sp.csr_array:
        queries_of = label_matrix(self.corpus, with_validation)
        parts = [heaviest(queries_of[start:start + CHUNK] @ self.queries + self.texts[start:start + CHUNK], MAX_WORDS)
                 for start in range(0, queries_of.shape[0], CHUNK)]
        return normalise_rows(sp.vstack(parts, format="csr"))

    def lexicon_of_training(self) -> Lexicon:
        """Return the lexicon in which a validation query's words weigh as a later query's would.

        Words that only validation queries have weigh 0.
        """
        known = np.zeros(len(self.lexicon.idf), dtype=bool)
        known[self.queries[self.corpus.training_rows()].indices] = True
        return Lexicon(np.where(known, self.lexicon.idf, np.float32(0)))

    def label_words(self, with_validation: bool) -> LabelWords:
        """Return `centroids` as the words of labels: their inner product with a text's is the tf-idf cosine."""
        return LabelWords.of(self.lexicon, self.centroids(with_validation))
