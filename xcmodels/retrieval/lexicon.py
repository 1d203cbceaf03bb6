"""The words of texts, tokens and bigrams, and their tf-idf weights."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Side, mapped
from xcmodels.data.sorted_ids import unique, unique_counts
from xcmodels.data.tokens import Tokens

BIGRAM_BUCKETS = 1 << 20    # bigrams of one bucket count as equal
CHUNK = 1 << 14    # texts at once
IDF = "words.idf.npy"


@dataclass(frozen=True)
class TextWords:
    """The words of n texts: text i has `ids[offsets[i]:offsets[i + 1]]`, ascending, and as many weights.

    kept: what has been computed of these texts and is read again, by the id of the array that it depends on, with that.
    """

    ids: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray    # (n + 1,)
    kept: dict[int, tuple[Any, np.ndarray]] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, rows: slice) -> "TextWords":
        """Return the words of a slice of the texts."""
        start, stop, _ = rows.indices(len(self))
        if stop - start == len(self):
            return self
        offsets = self.offsets[start:stop + 1]
        own = slice(offsets[0], offsets[-1])
        return TextWords(self.ids[own], self.weights[own], offsets - offsets[0])


ReadTexts = Tokens | TextWords    # texts as their tokens, or as the words that were found in those


@dataclass(frozen=True)
class Lexicon:
    """The idf of words: log((n + 1) / (df + 1)) over the training queries, 0 where none of them has the word.

    It is -0.0 where all of them have it, which counts as 0 but tells it from an unknown word.
    """

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


def make_lexicon(side: Side, vocabulary: int) -> Lexicon:
    """Return the idf of words in the texts of a side of a corpus."""
    rows, width = np.arange(len(side)), vocabulary + BIGRAM_BUCKETS
    df = np.zeros(width, np.int64)
    for start in range(0, len(rows), CHUNK):
        row, word = words_of(side.tokens(rows[start:start + CHUNK]), vocabulary)
        df += np.bincount(unique(row * width + word) % width, minlength=width)
    idf = np.where(df > 0, np.log((len(rows) + 1) / (df + 1)), 0)
    return Lexicon(np.where((df > 0) & (df == len(rows)), -0.0, idf).astype(np.float32))
