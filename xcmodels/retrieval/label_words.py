"""The words of labels, each with a weight: scores by those that a text shares with a label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import mapped
from xcmodels.data.sorted_ids import locate
from xcmodels.data.sparse_rows import heaviest, normalise_rows
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.inner_products import put
from xcmodels.retrieval.lexicon import Lexicon, ReadTexts, TextWords

MARKS = 1 << 13    # hash buckets to find a query's words by, a power of two; collisions are resolved
PAIRS_AT_ONCE = 512    # of a text and a label, scored together so that the words of those labels fit a cache
MAX_WORDS = 128         # words kept of a label: those of largest weight
CHUNK = 1 << 14    # labels at once


@dataclass(frozen=True)
class LabelWords:
    """A weight for each of a label's words, to score by those that a query shares: a sparse matrix, padded.

    The weights are those of the label's tf-idf centroid (`CorpusWords.label_words`), or of its linear classifier
    (`SparseClassifiers.words`); both can share one array of ids. ids (L, W) int32, weights (L, W) float32, W the most
    words of a label; a label of fewer words is padded with the id len(lexicon.idf), of weight 0.
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
        return self.scores_by([self.weights], texts, rows, labels)[0]

    def scores_by(self, weights: Sequence[np.ndarray], texts: ReadTexts, rows: np.ndarray,
                  labels: np.ndarray) -> np.ndarray:
        """Return what `scores` does by each of several weights (L, W) of the same words, (len(weights), p)."""
        words, out = self.lexicon.weigh(texts), np.zeros((len(weights), len(rows)), dtype=np.float32)
        together = min(len(words), max(1, PAIRS_AT_ONCE * len(words) // max(len(rows), 1)))
        marks = np.zeros(together * MARKS, dtype=bool)
        for first in range(0, len(words), max(1, together)):
            part = slice(first, first + together)
            own = slice(*np.searchsorted(rows, (part.start, part.stop)))
            pair, slot, shared = self._shared(words.part(part), rows[own] - first, labels[own], marks)
            for scores, weight in zip(out[:, own], weights, strict=True):
                scores[:] = np.bincount(pair, weight[labels[own][pair], slot] * shared, minlength=len(scores))
        return out

    def _shared(self, words: TextWords, rows: np.ndarray, labels: np.ndarray,
                marks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the words that pairs share: the pair, the word's slot of the label, and its weight in the text.

        marks (at least MARKS a text) are clear before and after.
        """
        own, label_words = np.repeat(np.arange(len(words)), np.diff(words.offsets)), self.ids.take(labels, axis=0)
        # Few words of labels are the text's: marks that fit a fast cache leave those and a few collisions.
        marked = own * MARKS + (words.ids & (MARKS - 1))
        marks[marked] = True
        maybe = np.flatnonzero(marks.take((label_words & (MARKS - 1)) + (rows * MARKS)[:, None]))
        marks[marked] = False
        pair, slot = np.divmod(maybe, max(1, label_words.shape[1]))
        width = len(self.lexicon.idf) + 1    # the last stands for no word
        position, same = locate(rows[pair] * width + label_words.ravel().take(maybe), own * width + words.ids)
        return pair[same], slot[same], words.weights[position[same]]

    def contributions(self, tokens: Tokens, label: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words that a label shares with one text, (m,), and what each adds to the score, (m,) float32."""
        words = self.lexicon.weigh(tokens)
        position, same = locate(self.ids[label], words.ids)
        same &= self.weights[label] != 0    # words of others' alone
        return self.ids[label][same], self.weights[label][same] * words.weights[position[same]]

    def reading(self, lexicon: Lexicon) -> "LabelWords":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, lexicon=lexicon)

    def on_words_of(self, other: "LabelWords") -> "LabelWords":
        """Return these weights on the words of another's labels, whose `ids` are shared; words that it lacks go."""
        if np.array_equal(self.ids, other.ids):
            return replace(self, ids=other.ids)
        weights = np.zeros(other.ids.shape, dtype=np.float32)
        for start in range(0, len(weights), CHUNK):
            part = slice(start, start + CHUNK)
            (places, wanted), (cells, known) = other._word_keys(part), self._word_keys(part)
            position, same = locate(wanted, known)
            weights[part].reshape(-1)[places[same]] = self.weights[part].ravel()[cells][position[same]]
        return replace(self, ids=other.ids, weights=weights)

    def _word_keys(self, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return where the words of some labels are, as cells of their rows, and an ascending key of label and word."""
        n, ids = len(self.lexicon.idf), self.ids[part].ravel()
        cells = np.flatnonzero(ids < n)
        return cells, cells // self.ids.shape[1] * n + ids[cells]

    def with_labels(self, rows: np.ndarray, tokens: Tokens, scale: float = 1.0) -> "LabelWords":
        """Return this with the words of n texts as those of labels `rows`, replaced or added, at length `scale`."""
        return self.with_rows(rows, np.float32(scale) * normalise_rows(heaviest(self.lexicon(tokens), MAX_WORDS)))

    def with_rows(self, rows: np.ndarray, words: sp.csr_array) -> "LabelWords":
        """Return this with the words (n, words) as those of labels `rows`, replaced or added."""
        new = LabelWords.of(self.lexicon, words)
        width = max(self.ids.shape[1], new.ids.shape[1])

        def widened(matrix: np.ndarray, fill: int) -> np.ndarray:
            return np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])), constant_values=fill)

        no_word = len(self.lexicon.idf)
        return LabelWords(self.lexicon, put(widened(self.ids, no_word), rows, widened(new.ids, no_word)),
                          put(widened(self.weights, 0), rows, widened(new.weights, 0)))

    def save(self, folder: Path, name: str, *, ids: bool = True) -> None:
        """Write `<name>.weights.npy` and, unless another's are saved that it shares, `<name>.ids.npy`.

        Whoever needs the lexicon saves it.
        """
        if ids:
            np.save(folder / f"{name}.ids.npy", self.ids)
        np.save(folder / f"{name}.weights.npy", self.weights)

    @classmethod
    def load(cls, folder: Path, name: str, lexicon: Lexicon, shared: "LabelWords | None" = None) -> "LabelWords | None":
        """Map what `save` wrote, with the ids of `shared` if there are; return None where there is nothing."""
        if not (folder / f"{name}.weights.npy").exists():
            return None
        ids = mapped(folder / f"{name}.ids.npy") if shared is None else shared.ids
        return cls(lexicon, ids, mapped(folder / f"{name}.weights.npy"))
