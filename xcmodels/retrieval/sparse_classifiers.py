"""The sparse view: one linear classifier per label, over the label's own words; it scores and proposes labels.

Dense vectors capture similar meanings; a linear classifier over words captures which of the names that two labels
share tells them apart. Sparse linear trees win by that; here no tree is needed, since dense search finds the negatives.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from xcmodels.data.corpus import mapped
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.data.sparse_rows import heaviest
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.ann import NO_IDS
from xcmodels.retrieval.inner_products import put
from xcmodels.retrieval.label_words import LabelWords
from xcmodels.retrieval.lexicon import BIGRAM_BUCKETS, Lexicon, ReadTexts, spellings
from xcmodels.retrieval.sparse_files import load_sparse, save_sparse

START_SCALE, START_BIAS = 8.0, -3.0    # of a classifier at its label's tf-idf centroid: a cosine of .375 is even odds
MAX_LABELS = 200     # labels that a word proposes: those of largest weight
CHUNK = 1024         # texts whose labels are proposed at once: up to MAX_LABELS for each of their words
NAME = "sparse"
INDEX = f"{NAME}.index"


@dataclass(frozen=True)
class SparseClassifiers:
    """The classifiers sigmoid(w_l . x + b_l) of L labels, x the tf-idf words of a text."""

    words: LabelWords       # w
    bias: np.ndarray        # (L,) float32, b
    proposed: int           # labels that are proposed for a text
    index: sp.csr_array     # (words, L) float32: the labels that each word proposes, and their weights

    @classmethod
    def of(cls, words: LabelWords, bias: np.ndarray, proposed: int) -> "SparseClassifiers":
        """Return the classifiers with an index of the labels that each word speaks for."""
        weights = words.matrix()
        weights.data[weights.data < 0] = 0
        weights.eliminate_zeros()
        return cls(words, bias, proposed, heaviest(weights.T.tocsr(), MAX_LABELS))

    @property
    def lexicon(self) -> Lexicon:
        return self.words.lexicon

    def scores(self, tokens: ReadTexts, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the probabilities of (text row, label) pairs, (p,) float32; `rows` ascend."""
        return self.probabilities(self.words.scores(tokens, rows, labels), labels)

    def probabilities(self, products: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the probabilities of pairs from their inner products w . x, (p,) float32."""
        return expit(products + self.bias[labels])

    def propose(self, tokens: ReadTexts, without: np.ndarray = NO_IDS) -> np.ndarray:
        """Return labels of high score that share a word with a text, for n texts, (n, proposed) int64; -1 for none.

        Scores are sums of positive weights here, and a word proposes no more than MAX_LABELS. The ids `without`, which
        ascend, are left out. Of fewer labels than `proposed` there are as many columns as labels.
        """
        out = np.full((len(tokens), min(self.proposed, len(self.bias))), -1, dtype=np.int64)
        for start in range(0, len(tokens), CHUNK):
            part = slice(start, start + CHUNK)
            self._propose(tokens.part(part), without, out[part])
        return out

    def _propose(self, tokens: ReadTexts, without: np.ndarray, out: np.ndarray) -> None:
        """Write to `out` (n, proposed), all -1, what `propose` returns."""
        found = self.words.lexicon(tokens) @ self.index
        found.data += self.bias[found.indices]
        if len(without):
            found.data[isin_sorted(found.indices, without)] = -np.inf
        for row, (first, last) in enumerate(pairwise(found.indptr.tolist())):
            worse = max(last - first - self.proposed, 0)
            if worse < last - first:
                scores = found.data[first:last]
                best = np.argpartition(scores, worse)[worse:]
                best = best[scores[best] > -np.inf]
                out[row, :len(best)] = found.indices[first:last][best]

    def contributions(self, tokens: Tokens, label: int) -> dict[tuple[int, ...], float]:
        """Return what each word that a label shares with one text adds to the log-odds, by the word's token ids."""
        words, added = self.words.contributions(tokens, label)
        spelled = spellings(tokens, len(self.words.lexicon.idf) - BIGRAM_BUCKETS)
        return {spelled[word]: value for word, value in zip(words.tolist(), added.tolist(), strict=True)}

    def on_words_of(self, words: LabelWords) -> "SparseClassifiers":
        """Return this with weights on others' words of labels, so that what a pair shares is found once for both."""
        return replace(self, words=self.words.on_words_of(words))

    def reading(self, lexicon: Lexicon) -> "SparseClassifiers":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, words=self.words.reading(lexicon))

    def with_labels(self, rows: np.ndarray, tokens: Tokens) -> "SparseClassifiers":
        """Return this with labels `rows` replaced or added, their classifiers where training would start on n texts."""
        words = self.words.with_labels(rows, tokens, START_SCALE)
        return self.of(words, put(self.bias, rows, np.full(len(rows), START_BIAS, np.float32)), self.proposed)

    def save(self, folder: Path, *, ids: bool = True) -> None:
        """Write everything but the lexicon, `proposed` and, unless `ids`, those of the words."""
        self.words.save(folder, NAME, ids=ids)
        np.save(folder / f"{NAME}.bias.npy", self.bias)
        save_sparse(folder, INDEX, self.index)

    @classmethod
    def load(cls, folder: Path, lexicon: Lexicon, proposed: int,
             shared: LabelWords | None = None) -> "SparseClassifiers | None":
        """Map what `save` wrote, with the words of `shared` if there are; return None where there is nothing."""
        words = LabelWords.load(folder, NAME, lexicon, shared)
        if words is None:
            return None
        bias = mapped(folder / f"{NAME}.bias.npy")
        return cls(words, bias, proposed, load_sparse(folder, INDEX, len(bias)))
