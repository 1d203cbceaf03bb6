"""Lexical scores: sparse tf-idf over tokens and token bigrams.

A dense vector of a few hundred numbers captures similar meanings and blurs rare names. The words that a query shares
with a label's training queries are therefore a separate score in the fusion. A word is a token or a bigram.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Corpus, Side, mapped
from xcmodels.data.sorted_ids import locate, unique_counts
from xcmodels.data.sparse_rows import heaviest
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.centroids import label_matrix
from xcmodels.retrieval.inner_products import put

BIGRAM_BUCKETS = 1 << 20    # bigrams of one bucket count as equal
MARKS = 1 << 13    # hash buckets to find a query's words by, a power of two; collisions are resolved
PAIRS_AT_ONCE = 512    # of a text and a label, scored together so that the words of those labels fit a cache
MAX_WORDS = 128         # words kept of a label: those of largest weight
CHUNK = 1 << 14    # texts, or labels, at once
IDF = "words.idf.npy"


@dataclass(frozen=True)
class TextWords:
    """The words of n texts: text i has `ids[offsets[i]:offsets[i + 1]]`, ascending, and as many weights."""

    ids: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray    # (n + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, rows: slice) -> "TextWords":
        """Return the words of a slice of the texts."""
        start, stop, _ = rows.indices(len(self))
        offsets = self.offsets[start:stop + 1]
        own = slice(offsets[0], offsets[-1])
        return TextWords(self.ids[own], self.weights[own], offsets - offsets[0])


ReadTexts = Tokens | TextWords    # texts as their tokens, or as the words that were found in those


@dataclass(frozen=True)
class Lexicon:
    """The idf of words: log((n + 1) / (df + 1)) over the training queries, 0 where none of them has the word."""

    idf: np.ndarray    # (vocabulary + BIGRAM_BUCKETS,) float32: tokens, then bigrams

    def __call__(self, texts: ReadTexts) -> sp.csr_array:
        """Return the words of n texts, (n, words) float32, each row of unit length; zeros where no word is known."""
        words = self.weigh(texts)
        # scipy copies what it multiplies where one has wider indices than the other
        return sp.csr_array((words.weights, words.ids.astype(np.int32), words.offsets.astype(np.int32)),
                            shape=(len(texts), len(self.idf)))

    def weigh(self, texts: ReadTexts) -> TextWords:
        """Return the words of texts and their weights, at unit length; those that were weighed already as they are."""
        if isinstance(texts, TextWords):
            return texts
        width = len(self.idf)
        row, word = words_of(texts, width - BIGRAM_BUCKETS)
        keys, counts = unique_counts(row * width + word)
        row, word = np.divmod(keys, width)
        weights = (1 + np.log(counts.astype(np.float32))) * self.idf[word]
        lengths = np.sqrt(np.bincount(row, weights**2, minlength=len(texts)))
        weights /= np.where(lengths > 0, lengths, 1)[row].astype(np.float32)
        return TextWords(word, weights, np.searchsorted(row, np.arange(len(texts) + 1)))

    def side(self, side: Side) -> sp.csr_array:
        """Return the words of every text of a side of a corpus."""
        rows = np.arange(len(side))
        parts = [self(side.tokens(rows[start:start + CHUNK])) for start in range(0, len(rows), CHUNK)]
        return sp.vstack([sp.csr_array((0, len(self.idf)), dtype=np.float32), *parts], format="csr")

    def save(self, folder: Path) -> None:
        np.save(folder / IDF, self.idf)

    @classmethod
    def load(cls, folder: Path) -> "Lexicon | None":
        """Map what `save` wrote; return None where there is nothing."""
        return cls(mapped(folder / IDF)) if (folder / IDF).exists() else None


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

    def labels(self, with_validation: bool) -> "LabelWords":
        """Return `centroids` as the words of labels: their inner product with a text's is the tf-idf cosine."""
        return LabelWords.of(self.lexicon, self.centroids(with_validation))


@dataclass(frozen=True)
class LabelWords:
    """A weight for each of a label's words, to score by those that a query shares.

    ids (L, W) int32, weights (L, W) float32, W the most words of a label; a label of fewer words is padded with the id
    len(lexicon.idf), of weight 0.
    """

    lexicon: Lexicon
    ids: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, lexicon: Lexicon, rows: sp.csr_array) -> "LabelWords":
        """Return the words of labels from a sparse matrix, rows (L, words) float32."""
        lengths = np.diff(rows.indptr)
        cells = np.nonzero(np.arange(lengths.max(initial=0)) < lengths[:, None])
        ids = np.full((len(lengths), lengths.max(initial=0)), len(lexicon.idf), dtype=np.int32)
        weights = np.zeros(ids.shape, dtype=np.float32)
        ids[cells], weights[cells] = rows.indices, rows.data
        return cls(lexicon, ids, weights)

    def matrix(self) -> sp.csr_array:
        """Return the weights as a sparse matrix, (L, words) float32."""
        known = self.ids < len(self.lexicon.idf)
        bounds = np.append(0, np.cumsum(known.sum(1)))
        bounds = bounds.astype(sp.get_index_dtype(maxval=bounds[-1]))
        shape = len(self.ids), len(self.lexicon.idf)
        return sp.csr_array((self.weights[known], self.ids[known], bounds), shape=shape)

    def scores(self, texts: ReadTexts, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the inner products of (text row, label) pairs, (p,) float32; `rows` ascend.

        A pair's score does not depend on the other pairs.
        """
        words, out = self.lexicon.weigh(texts), np.zeros(len(rows), dtype=np.float32)
        together = min(len(words), max(1, PAIRS_AT_ONCE * len(words) // max(len(rows), 1)))
        marks = np.zeros(together * MARKS, dtype=bool)
        for first in range(0, len(words), max(1, together)):
            part = slice(first, first + together)
            start, end = np.searchsorted(rows, (part.start, part.stop))
            out[start:end] = self._shared(words.part(part), rows[start:end] - first, labels[start:end], marks)
        return out

    def _shared(self, words: TextWords, rows: np.ndarray, labels: np.ndarray, marks: np.ndarray) -> np.ndarray:
        """Return what `scores` does; marks (at least MARKS a text) are clear before and after."""
        own, label_words = np.repeat(np.arange(len(words)), np.diff(words.offsets)), self.ids.take(labels, axis=0)
        # Few words of labels are the text's: marks that fit a fast cache leave those and a few collisions.
        marked = own * MARKS + (words.ids & (MARKS - 1))
        marks[marked] = True
        maybe = np.flatnonzero(marks.take((label_words & (MARKS - 1)) + (rows * MARKS)[:, None]))
        marks[marked] = False
        pair, slot = np.divmod(maybe, max(1, label_words.shape[1]))
        width = len(self.lexicon.idf) + 1    # the last stands for no word
        position, same = locate(rows[pair] * width + label_words.ravel().take(maybe), own * width + words.ids)
        pair, slot = pair[same], slot[same]
        products = self.weights[labels[pair], slot] * words.weights[position[same]]
        return np.bincount(pair, products, minlength=len(labels))

    def contributions(self, tokens: Tokens, label: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words that a label shares with one text, (m,), and what each adds to the score, (m,) float32."""
        words = self.lexicon.weigh(tokens)
        position, same = locate(self.ids[label], words.ids)
        return self.ids[label][same], self.weights[label][same] * words.weights[position[same]]

    def reading(self, lexicon: Lexicon) -> "LabelWords":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, lexicon=lexicon)

    def with_labels(self, rows: np.ndarray, tokens: Tokens, scale: float = 1.0) -> "LabelWords":
        """Return this with the words of n texts as those of labels `rows`, replaced or added, at length `scale`."""
        texts = np.float32(scale) * normalise_rows(heaviest(self.lexicon(tokens), MAX_WORDS))
        new = LabelWords.of(self.lexicon, texts)
        width = max(self.ids.shape[1], new.ids.shape[1])

        def widened(matrix: np.ndarray, fill: int) -> np.ndarray:
            return np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])), constant_values=fill)

        no_word = len(self.lexicon.idf)
        return LabelWords(self.lexicon, put(widened(self.ids, no_word), rows, widened(new.ids, no_word)),
                          put(widened(self.weights, 0), rows, widened(new.weights, 0)))

    def save(self, folder: Path, name: str) -> None:
        """Write `<name>.ids.npy` and `<name>.weights.npy`; whoever needs the lexicon saves it."""
        np.save(folder / f"{name}.ids.npy", self.ids)
        np.save(folder / f"{name}.weights.npy", self.weights)

    @classmethod
    def load(cls, folder: Path, name: str, lexicon: Lexicon) -> "LabelWords | None":
        """Map what `save` wrote; return None where there is nothing."""
        if not (folder / f"{name}.ids.npy").exists():
            return None
        return cls(lexicon, mapped(folder / f"{name}.ids.npy"), mapped(folder / f"{name}.weights.npy"))


def words_of(tokens: Tokens, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of n texts, tokens and bigrams within a field: the row (m,) and the id (m,) of each."""
    ids, offsets = tokens.ids.numpy(), tokens.offsets.numpy()
    row = np.repeat(np.arange(len(tokens)), np.diff(offsets))
    inside = np.ones(len(ids) + 1, dtype=bool)    # whether a token and the one before are of one field
    inside[offsets[:-1]] = inside[offsets[:-1] + tokens.titles.numpy()] = False
    bigram = inside[1:-1]
    pairs = vocabulary + _hashed(ids[:-1], ids[1:])[bigram]
    return np.concatenate([row, row[1:][bigram]]), np.concatenate([ids, pairs])


def _hashed(first: Any, second: Any) -> Any:
    """Return the hash buckets of bigrams."""
    return (first * 0x9E3779B1 + second) % BIGRAM_BUCKETS


def spellings(tokens: Tokens, vocabulary: int) -> dict[int, tuple[int, ...]]:
    """Return the token ids of each word of one text, by the word's id."""
    ids, title = tokens.ids.tolist(), int(tokens.titles[0])
    bigrams = [*pairwise(ids[:title]), *pairwise(ids[title:])]
    return {**{token: (token,) for token in ids}, **{vocabulary + _hashed(*pair): pair for pair in bigrams}}


def count_words(tokens: Tokens, vocabulary: int) -> sp.csr_array:
    """Return how often each text has each of its words, (n, words) float32."""
    row, word = words_of(tokens, vocabulary)
    shape = len(tokens), vocabulary + BIGRAM_BUCKETS
    return sp.csr_array((np.ones(len(row), np.float32), (row, word)), shape=shape)


def make_lexicon(side: Side, vocabulary: int) -> Lexicon:
    """Return the idf of words in the texts of a side of a corpus."""
    rows, df = np.arange(len(side)), np.zeros(vocabulary + BIGRAM_BUCKETS, np.int64)
    for start in range(0, len(rows), CHUNK):
        df += np.bincount(count_words(side.tokens(rows[start:start + CHUNK]), vocabulary).indices, minlength=len(df))
    return Lexicon(np.where(df > 0, np.log((len(rows) + 1) / (df + 1)), 0).astype(np.float32))


def normalise_rows(rows: sp.csr_array) -> sp.csr_array:
    """Scale the rows to unit length, in place, and return them; a row of zeros stays."""
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data = (rows.data / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))).astype(np.float32)
    return rows
