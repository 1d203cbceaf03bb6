"""Words: which very tokens, and which pairs of neighbouring ones, the queries of a label have; tf-idf, sparse.

A vector of a few hundred numbers tells alike words from unlike ones and blurs the rest; a rare name is one of that
rest. The words that a query shares with a label's training queries are a score of their own in the fusion.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.ann import put
from xcmodels.centroids import label_matrix
from xcmodels.corpus import Corpus, Side
from xcmodels.mapped import mapped
from xcmodels.tokens import Tokens

PAIRS = 1 << 20    # numbers that pairs of tokens share; two that meet in one count as the same
KEPT = 128         # words of a label that are kept, those that weigh the most
CHUNK = 1 << 14    # texts, or labels, at once
MARKS = 1 << 16    # places in which a text's words are marked, by their last bits


@dataclass(frozen=True)
class Lexicon:
    """What a word weighs: log((n + 1) / (df + 1)) over the training queries, 0 where none of them has it."""

    idf: np.ndarray    # (vocabulary + PAIRS,) float32: tokens, then pairs of them

    def __call__(self, tokens: Tokens) -> sp.csr_array:
        """Return the words of n texts, (n, words) float32, each row of unit length; of zeros where none is known."""
        width = len(self.idf)
        row, word = words_of(tokens, width - PAIRS)
        keys, counts = np.unique(row * width + word, return_counts=True)
        row, word = np.divmod(keys, width)
        weights = (1 + np.log(counts.astype(np.float32))) * self.idf[word]
        lengths = np.sqrt(np.bincount(row, weights**2, minlength=len(tokens)))
        weights /= np.where(lengths > 0, lengths, 1)[row].astype(np.float32)
        bounds = np.searchsorted(row, np.arange(len(tokens) + 1))
        return sp.csr_array((weights, word, bounds), shape=(len(tokens), width))

    def side(self, side: Side) -> sp.csr_array:
        """Return the words of every text of a side of a corpus."""
        rows = np.arange(len(side))
        parts = [self(side.tokens(rows[start:start + CHUNK])) for start in range(0, len(rows), CHUNK)]
        return sp.vstack([sp.csr_array((0, len(self.idf)), dtype=np.float32), *parts], format="csr")


class CorpusWords:
    """The words of the training queries and of the label texts of a corpus, from which those of labels are made."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, sides = corpus, corpus.sides
        self.lexicon = make_lexicon(sides["train"], len(corpus.idf) // 2)
        self.queries, self.texts = self.lexicon.side(sides["train"]), self.lexicon.side(sides["label"])

    def labels(self, held_out: bool) -> "LabelWords":
        """Return the sum of what a label's training queries and its own text say, cut to KEPT words, at unit length.

        held_out: the validation split counts, too.
        """
        has = label_matrix(self.corpus, held_out)
        parts = [heaviest(has[start:start + CHUNK] @ self.queries + self.texts[start:start + CHUNK], KEPT)
                 for start in range(0, has.shape[0], CHUNK)]
        return LabelWords(self.lexicon, unit_rows(sp.vstack(parts, format="csr")))


@dataclass(frozen=True)
class LabelWords:
    """The words of each label, and how many of them a query shares, weighed."""

    lexicon: Lexicon
    labels: sp.csr_array    # (L, words) float32, rows of unit length

    def scores(self, tokens: Tokens, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the cosines of (text row, label) pairs, (p,) float32; `rows` ascend."""
        queries, out = self.lexicon(tokens), np.empty(len(rows), dtype=np.float32)
        bounds = np.searchsorted(rows, np.arange(len(tokens) + 1))
        for row, (start, end) in enumerate(pairwise(bounds)):
            own = slice(queries.indptr[row], queries.indptr[row + 1])
            out[start:end] = self._shared(queries.indices[own], queries.data[own], labels[start:end])
        return out

    def _shared(self, ids: np.ndarray, weights: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the inner products of one text's words, by rising id, with those of labels."""
        first = self.labels.indptr[labels]
        lengths = self.labels.indptr[labels + 1] - first
        ends = np.cumsum(lengths)
        place = np.arange(len(labels) and ends[-1]) + np.repeat(first - (ends - lengths), lengths)
        words = self.labels.indices[place]
        # Few words of the labels are the text's. A small table of their last bits, which stays in cache, finds most of
        # those that are not; a row of a million weights would be a page fault a word.
        marked = np.zeros(MARKS, dtype=bool)
        marked[ids % MARKS] = True
        near = np.flatnonzero(marked[words % MARKS])
        at = np.minimum(np.searchsorted(ids, words[near]), max(len(ids) - 1, 0))
        same = ids[at] == words[near] if len(ids) else np.zeros(0, dtype=bool)
        near = near[same]
        return np.bincount(np.searchsorted(ends, near, side="right"), weights[at[same]] * self.labels.data[place[near]],
                           minlength=len(labels))

    def with_labels(self, rows: np.ndarray, tokens: Tokens) -> "LabelWords":
        """Return this with the words of texts as those of the labels `rows`, some of those there are, then the next."""
        n = self.labels.shape[0]
        order = put(np.arange(n), rows, n + np.arange(len(rows)))
        both = sp.vstack([self.labels, unit_rows(heaviest(self.lexicon(tokens), KEPT))], format="csr")
        return LabelWords(self.lexicon, both[order])

    def save(self, folder: Path) -> None:
        """Write `words.*.npy`."""
        for name, array in (("idf", self.lexicon.idf), ("offsets", self.labels.indptr), ("ids", self.labels.indices),
                            ("weights", self.labels.data)):
            np.save(folder / f"words.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "LabelWords | None":
        """Map what `save` wrote; None where nothing was."""
        if not (folder / "words.idf.npy").exists():
            return None
        idf, offsets, ids, weights = (mapped(folder / f"words.{name}.npy")
                                      for name in ("idf", "offsets", "ids", "weights"))
        return cls(Lexicon(idf), sp.csr_array((weights, ids, offsets), shape=(len(offsets) - 1, len(idf))))


def words_of(tokens: Tokens, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every token of n texts and every pair of neighbours in one field: its text (m,), and its number (m,)."""
    ids, title = tokens.ids.numpy(), tokens.in_title().numpy()
    row = np.repeat(np.arange(len(tokens)), tokens.offsets.diff().numpy())
    together = (row[1:] == row[:-1]) & (title[1:] == title[:-1])
    pairs = vocabulary + (ids[:-1] * 0x9E3779B1 + ids[1:])[together] % PAIRS
    return np.concatenate([row, row[1:][together]]), np.concatenate([ids, pairs])


def count_words(tokens: Tokens, vocabulary: int) -> sp.csr_array:
    """Return how often each text has each of its words, (n, words) float32."""
    where = words_of(tokens, vocabulary)
    return sp.csr_array((np.ones(len(where[0]), np.float32), where), shape=(len(tokens), vocabulary + PAIRS))


def make_lexicon(side: Side, vocabulary: int) -> Lexicon:
    """Return what words weigh in the texts of a side of a corpus."""
    rows, having = np.arange(len(side)), np.zeros(vocabulary + PAIRS, np.int64)
    for start in range(0, len(rows), CHUNK):
        having += np.bincount(count_words(side.tokens(rows[start:start + CHUNK]), vocabulary).indices,
                              minlength=len(having))
    return Lexicon(np.where(having > 0, np.log((len(rows) + 1) / (having + 1)), 0).astype(np.float32))


def heaviest(rows: sp.csr_array, most: int) -> sp.csr_array:
    """Return the `most` largest values of each row, the first of equal ones."""
    of = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    order = np.lexsort((rows.indices, -rows.data, of))
    kept = order[np.arange(len(of)) - rows.indptr[of] < most]
    return sp.csr_array((rows.data[kept], (of[kept], rows.indices[kept])), shape=rows.shape)


def unit_rows(rows: sp.csr_array) -> sp.csr_array:
    """Return the rows at unit length; a row of zeros stays."""
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data = (rows.data / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))).astype(np.float32)
    return rows
