"""Words: which very tokens, and which pairs of neighbouring ones, the queries of a label have; tf-idf, sparse.

A vector of a few hundred numbers tells alike words from unlike ones and blurs the rest; a rare name is one of that
rest. The words that a query shares with a label's training queries are a score of their own in the fusion.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.data.centroids import label_matrix
from xcmodels.data.corpus import Corpus, Side, mapped
from xcmodels.data.sorted_ids import counted, located
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.inner_products import put

PAIRS = 1 << 20    # numbers that pairs of tokens share; two that meet in one count as the same
MARKS = 1 << 13    # to look for a query's words by, a power of two; words that share one are told apart
KEPT = 128         # words of a label that are kept, those that weigh the most
CHUNK = 1 << 14    # texts, or labels, at once


@dataclass(frozen=True)
class Lexicon:
    """What a word weighs: log((n + 1) / (df + 1)) over the training queries, 0 where none of them has it."""

    idf: np.ndarray    # (vocabulary + PAIRS,) float32: tokens, then pairs of them

    def __call__(self, tokens: Tokens) -> sp.csr_array:
        """Return the words of n texts, (n, words) float32, each row of unit length; of zeros where none is known."""
        weights, word, bounds = self.weigh(tokens)
        return sp.csr_array((weights, word, bounds), shape=(len(tokens), len(self.idf)))

    def weigh(self, tokens: Tokens) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the weights and the numbers of the words of n texts, and where each text's begin, (n + 1,)."""
        width = len(self.idf)
        row, word = words_of(tokens, width - PAIRS)
        keys, counts = counted(row * width + word)
        row, word = np.divmod(keys, width)
        weights = (1 + np.log(counts.astype(np.float32))) * self.idf[word]
        lengths = np.sqrt(np.bincount(row, weights**2, minlength=len(tokens)))
        weights /= np.where(lengths > 0, lengths, 1)[row].astype(np.float32)
        return weights, word, np.searchsorted(row, np.arange(len(tokens) + 1))

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
        return LabelWords.of(self.lexicon, sp.vstack(parts, format="csr"))


@dataclass(frozen=True)
class LabelWords:
    """The words of each label, and how many of them a query shares, weighed.

    ids (L, W) int32, weights (L, W) float32: W as many as a label has at most, at unit length together; a label of
    fewer words is filled up with the one beyond the lexicon, of weight 0.
    """

    lexicon: Lexicon
    ids: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, lexicon: Lexicon, rows: sp.csr_array) -> "LabelWords":
        """Return the words of labels, rows (L, words) float32, of which each has a few."""
        kept = unit_rows(rows)
        lengths = np.diff(kept.indptr)
        place = np.nonzero(np.arange(lengths.max(initial=0)) < lengths[:, None])
        ids = np.full((len(lengths), lengths.max(initial=0)), len(lexicon.idf), dtype=np.int32)
        weights = np.zeros(ids.shape, dtype=np.float32)
        ids[place], weights[place] = kept.indices, kept.data
        return cls(lexicon, ids, weights)

    def scores(self, tokens: Tokens, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the cosines of (text row, label) pairs, (p,) float32; `rows` ascend."""
        weights, words, begin = self.lexicon.weigh(tokens)
        out, marks = np.zeros(len(rows), dtype=np.float32), np.zeros(MARKS, dtype=bool)
        bounds = np.searchsorted(rows, np.arange(len(tokens) + 1))
        for row, (start, end) in enumerate(pairwise(bounds.tolist())):
            own, of = slice(begin[row], begin[row + 1]), labels[start:end]
            said, theirs = words[own], self.ids.take(of, axis=0).ravel()
            # Few words of labels are a query's: marks that fit the fastest cache leave those, and some that share one.
            marked = said & (MARKS - 1)
            marks[marked] = True
            maybe = np.flatnonzero(marks.take(theirs & (MARKS - 1)))
            marks[marked] = False
            at, same = located(theirs.take(maybe), said)
            label, place = np.divmod(maybe[same], self.ids.shape[1])
            both = self.weights[of[label], place] * weights[own][at[same]]
            out[start:end] = np.bincount(label, both, minlength=len(of))
        return out

    def with_labels(self, rows: np.ndarray, tokens: Tokens) -> "LabelWords":
        """Return this with the words of texts as those of the labels `rows`, some of those there are, then the next."""
        new, width = LabelWords.of(self.lexicon, heaviest(self.lexicon(tokens), KEPT)), self.ids.shape[1]
        more = max(width, new.ids.shape[1])

        def widened(of: np.ndarray, fill: int) -> np.ndarray:
            return np.pad(of, ((0, 0), (0, more - of.shape[1])), constant_values=fill)

        nothing = len(self.lexicon.idf)
        return LabelWords(self.lexicon, put(widened(self.ids, nothing), rows, widened(new.ids, nothing)),
                          put(widened(self.weights, 0), rows, widened(new.weights, 0)))

    def save(self, folder: Path) -> None:
        """Write `words.*.npy`."""
        for name, array in (("idf", self.lexicon.idf), ("ids", self.ids), ("weights", self.weights)):
            np.save(folder / f"words.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "LabelWords | None":
        """Map what `save` wrote; None where nothing was."""
        if not (folder / "words.idf.npy").exists():
            return None
        idf, ids, weights = (mapped(folder / f"words.{name}.npy") for name in ("idf", "ids", "weights"))
        return cls(Lexicon(idf), ids, weights)


def words_of(tokens: Tokens, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every token of n texts and every pair of neighbours in one field: its text (m,), and its number (m,)."""
    ids, offsets = tokens.ids.numpy(), tokens.offsets.numpy()
    row = np.repeat(np.arange(len(tokens)), np.diff(offsets))
    inside = np.ones(len(ids) + 1, dtype=bool)    # a field: what stands before a token is of the same one
    inside[offsets[:-1]] = inside[offsets[:-1] + tokens.titles.numpy()] = False
    together = inside[1:-1]
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
    lengths = np.diff(rows.indptr)
    kept = np.ones(len(rows.data), dtype=bool)
    longer = np.flatnonzero(np.repeat(lengths > most, lengths))    # in most rows there is nothing to choose
    of = np.repeat(np.arange(len(lengths)), lengths)[longer]
    order = np.lexsort((rows.indices[longer], -rows.data[longer], of))
    rank = np.arange(len(of)) - np.searchsorted(of, of)
    kept[longer[order[rank >= most]]] = False
    bounds = np.concatenate([[0], np.cumsum(np.minimum(lengths, most))])
    out = sp.csr_array((rows.data[kept], rows.indices[kept], bounds), shape=rows.shape)
    out.sort_indices()
    return out


def unit_rows(rows: sp.csr_array) -> sp.csr_array:
    """Return the rows at unit length; a row of zeros stays."""
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data = (rows.data / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))).astype(np.float32)
    return rows
