"""A score by how much of a label's name a text has.

The words that a label shares with its training queries say little of a label with one query; its name is known.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Side
from xcmodels.data.sorted_ids import unique
from xcmodels.data.sparse_rows import heaviest
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.label_words import CHUNK, LabelWords
from xcmodels.retrieval.lexicon import Lexicon, ReadTexts

MAX_TOKENS = 16    # of a name: the rarest
FILE = "names"


@dataclass(frozen=True)
class LabelNames:
    """The share of a label's name, its title, that a text has.

    tokens: those of each name, whose weights are their shares of the name's idf.
    """

    tokens: LabelWords

    @classmethod
    def of(cls, lexicon: Lexicon, labels: Side) -> "LabelNames":
        """Return the names of a corpus's labels."""
        rows = np.arange(len(labels))
        parts = [shares(lexicon, labels.tokens(rows[start:start + CHUNK])) for start in range(0, len(rows), CHUNK)]
        return cls(LabelWords.of(lexicon, sp.vstack(parts, format="csr")))

    @property
    def lexicon(self) -> Lexicon:
        return self.tokens.lexicon

    def scores(self, texts: ReadTexts, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the scores of (text row, label) pairs, (p,) float32, 0 for a label without a title; `rows` ascend."""
        words = self.lexicon.weigh(texts)
        found = replace(words, weights=np.ones_like(words.weights))    # a token is in a text or not
        return self.tokens.scores(found, rows, labels)

    def reading(self, lexicon: Lexicon) -> "LabelNames":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, tokens=self.tokens.reading(lexicon))

    def with_labels(self, rows: np.ndarray, tokens: Tokens) -> "LabelNames":
        """Return this with the names of n texts as those of labels `rows`, replaced or added."""
        return replace(self, tokens=self.tokens.with_rows(rows, shares(self.lexicon, tokens)))

    def save(self, folder: Path) -> None:
        """Write everything but the lexicon."""
        self.tokens.save(folder, FILE)

    @classmethod
    def load(cls, folder: Path, lexicon: Lexicon) -> "LabelNames | None":
        """Map what `save` wrote; return None where there is nothing."""
        tokens = LabelWords.load(folder, FILE, lexicon)
        return None if tokens is None else cls(tokens)


def shares(lexicon: Lexicon, labels: Tokens) -> sp.csr_array:
    """Return what share of its name's idf each of a label's title tokens has, (n, words) float32.

    A token that no training query has counts as the rarest of those that one has, one that all have not at all.
    """
    width, titled = len(lexicon.idf), labels.fields()[0].numpy()
    row = np.repeat(np.arange(len(labels)), labels.titles.numpy())
    row, token = np.divmod(unique(row * width + labels.ids.numpy()[titled]), width)
    idf = lexicon.idf[token]
    idf = np.where((idf > 0) | np.signbit(idf), idf, lexicon.idf.max())
    bounds = np.searchsorted(row, np.arange(len(labels) + 1))
    names = heaviest(sp.csr_array((idf, token, bounds), shape=(len(labels), width)), MAX_TOKENS)
    row = np.repeat(np.arange(len(labels)), np.diff(names.indptr))
    total = np.bincount(row, names.data, minlength=len(labels))
    names.data = (names.data / np.where(total > 0, total, 1)[row]).astype(np.float32)
    return names
