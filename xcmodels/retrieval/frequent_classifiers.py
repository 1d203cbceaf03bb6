"""Linear classifiers of frequent labels over all words, each trained against all texts, as a sparse linear tree's are.

The sparse view (`sparse_classifiers`) gives a label a few words of its own and tells it from labels near it, which
suits one of few texts. Of a label with many, a classifier over every word also knows how often the label is right.
So where a text says little, these propose what most texts have.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from xcmodels.data.corpus import mapped
from xcmodels.data.ranges import in_ranges
from xcmodels.data.sorted_ids import isin_sorted, locate
from xcmodels.retrieval.ann import NO_IDS
from xcmodels.retrieval.lexicon import Lexicon, ReadTexts, TextWords
from xcmodels.retrieval.sparse_files import load_sparse, save_sparse

SLOPE = 2.0     # of a score by the margin: at the margins +1 and -1, which training wants, scores are .88 and .12
CHUNK = 1024    # texts that are scored at once, by all frequent labels
NAME = "frequent"


@dataclass(frozen=True)
class FrequentClassifiers:
    """The classifiers of H frequent labels; a text with the tf-idf words x has the margin w . x + b.

    labels (H,): their ids, ascending. weights (words, H) float32: w. bias (H,) float32: b. proposed: how many of them
    are proposed for a text.
    """

    lexicon: Lexicon
    labels: np.ndarray
    weights: sp.csr_array
    bias: np.ndarray
    proposed: int = 0

    def scores(self, texts: ReadTexts, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the scores sigmoid(SLOPE * margin) of (text row, label) pairs, (p,) float32; `rows` ascend.

        A label that is not frequent has 0. A pair's score does not depend on the other pairs.
        """
        words, out = self.lexicon.weigh(texts), np.zeros(len(rows), dtype=np.float32)
        column, frequent = locate(labels, self.labels)
        for start in range(0, len(words), CHUNK):
            own = slice(*np.searchsorted(rows, (start, start + CHUNK)))
            asked = np.flatnonzero(frequent[own]) + own.start
            if len(asked):
                margins = self.margins(words.part(slice(start, start + CHUNK)))
                out[asked] = expit(SLOPE * margins[rows[asked] - start, column[asked]])
        return out

    def propose(self, texts: ReadTexts, without: np.ndarray = NO_IDS) -> np.ndarray:
        """Return the labels of highest margin for n texts, (n, min(proposed, H)) int64; -1 in place of those `without`.

        without: ids, ascending.
        """
        words, width = self.lexicon.weigh(texts), min(self.proposed, len(self.labels))
        out = np.full((len(words), width), -1, dtype=np.int64)
        left_out = isin_sorted(self.labels, without) if len(without) else None
        for start in range(0, len(words) if width else 0, CHUNK):
            part = slice(start, start + CHUNK)
            margins = self.margins(words.part(part))
            if left_out is not None:
                margins = np.where(left_out, -np.inf, margins)
            best = margins.argpartition(-width, axis=1)[:, -width:]
            out[part] = self.labels[best]
            if left_out is not None:
                out[part][left_out[best]] = -1
        return out

    def margins(self, words: TextWords) -> np.ndarray:
        """Return the margins of n texts and all labels, (n, H); the texts keep them, for proposing and for scoring."""
        if id(self.weights) not in words.kept:    # kept with the weights, so that no other array gets their id
            words.kept[id(self.weights)] = self.weights, self._margins(words)
        return words.kept[id(self.weights)][1]

    def _margins(self, words: TextWords) -> np.ndarray:
        # not by scipy's product, which takes three times as long for one text
        starts = self.weights.indptr[words.ids]
        lengths = self.weights.indptr[words.ids + 1] - starts
        at, n, width = in_ranges(starts, lengths), len(words), len(self.labels)
        first = np.repeat(np.arange(n) * width, np.diff(words.offsets))    # the first cell of each word's text
        added = self.weights.data[at] * np.repeat(words.weights, lengths)
        cells = self.weights.indices[at] + np.repeat(first, lengths)
        return np.bincount(cells, added, n * width).reshape(n, width) + self.bias

    def reading(self, lexicon: Lexicon) -> "FrequentClassifiers":
        """Return this with texts read by another lexicon of the same words."""
        return replace(self, lexicon=lexicon)

    def without(self, labels: np.ndarray) -> "FrequentClassifiers":
        """Return this without some labels, whose texts are no longer those that it was trained on."""
        kept = ~isin_sorted(self.labels, np.sort(labels))
        return replace(self, labels=self.labels[kept], weights=self.weights[:, kept], bias=self.bias[kept])

    def save(self, folder: Path) -> None:
        """Write everything but the lexicon and `proposed`."""
        np.save(folder / f"{NAME}.labels.npy", self.labels)
        np.save(folder / f"{NAME}.bias.npy", self.bias)
        save_sparse(folder, NAME, self.weights)

    @classmethod
    def load(cls, folder: Path, lexicon: Lexicon, proposed: int) -> "FrequentClassifiers | None":
        """Map what `save` wrote; return None where there is nothing."""
        if not (folder / f"{NAME}.labels.npy").exists():
            return None
        labels, bias = (mapped(folder / f"{NAME}.{part}.npy") for part in ("labels", "bias"))
        return cls(lexicon, labels, load_sparse(folder, NAME, len(labels)), bias, proposed)
