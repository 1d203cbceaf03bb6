"""Example training texts of each label, to explain predictions by the most similar."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged, Side, Texts, mapped
from xcmodels.data.tokens import Tokens
from xcmodels.nn.autograd import normalise
from xcmodels.retrieval.inner_products import put

MAX_EXAMPLES = 16    # training texts of a label
COMPARED = 160       # training texts of all labels that are explained at once: a transformer reads 100 a second or two


@dataclass(frozen=True)
class Examples:
    """The training texts that a retriever keeps, numbered from 0."""

    counts: np.ndarray         # (L,) int64: training texts that have each label, kept or not
    kept: Ragged               # (L, up to MAX_EXAMPLES): the numbers of each label's texts
    side: Side                 # their tokens
    texts: Texts               # as shown to people
    labels: Ragged             # ids of the labels of each text

    def nearest(self, query: np.ndarray, labels: np.ndarray, most: int,
                embed: Callable[[Tokens], np.ndarray]) -> list[list[tuple[int, float]]]:
        """Return (number, cosine) of the `most` texts of each label that are nearest to a query vector (d,).

        At most COMPARED texts are compared, or `most` per label where those are more, spread evenly over the kept ones.
        """
        each = max(most, COMPARED // max(1, len(labels))) if most else 0
        rows = [_spread(self.kept[label], each) for label in labels]
        numbers, lengths = np.concatenate([np.empty(0, np.int32), *rows]), [len(row) for row in rows]
        unique, inverse = np.unique(numbers, return_inverse=True)
        cosines = normalise(embed(self.side.tokens(unique))) @ normalise(query[None])[0] if len(unique) else np.empty(0)
        out = []
        for texts in np.split(inverse, np.cumsum(lengths)[:-1]):
            best = texts[np.argsort(-cosines[texts], kind="stable")[:most]]
            out.append([(int(unique[text]), float(cosines[text])) for text in best])
        return out

    def without(self, labels: np.ndarray, n_labels: int) -> "Examples":
        """Return the same for `n_labels` labels, without any example of `labels`."""
        rows = np.setdiff1d(np.arange(len(self.kept)), labels)
        values, row_lengths = self.kept.take(rows)
        lengths = np.zeros(n_labels, np.int64)
        lengths[rows] = row_lengths
        counts = put(self.counts, labels, np.zeros(len(labels), np.int64))
        return replace(self, counts=counts, kept=Ragged(np.concatenate([[0], np.cumsum(lengths)]), values),
                       labels=self.labels.less(labels))

    def save(self, folder: Path) -> None:
        """Write everything to `folder`, which must not exist yet."""
        folder.mkdir()
        np.save(folder / "counts.npy", self.counts)
        np.save(folder / "titles.npy", self.side.titles)
        for name, ragged in (("kept", self.kept), ("tokens", self.side.ragged), ("text", self.texts.bytes),
                             ("labels", self.labels)):
            ragged.save(folder, name)

    @classmethod
    def load(cls, folder: Path) -> "Examples":
        side = Side(Ragged.load(folder, "tokens"), mapped(folder / "titles.npy"))
        return cls(mapped(folder / "counts.npy"), Ragged.load(folder, "kept"), side,
                   Texts.load(folder, "text"), Ragged.load(folder, "labels"))


def _spread(values: np.ndarray, most: int) -> np.ndarray:
    """Return up to `most` values, at even distances."""
    count = min(len(values), most)
    return values[np.arange(count) * len(values) // max(1, count)]


def save_examples(corpus: Corpus, folder: Path) -> None:
    """Write up to MAX_EXAMPLES training texts of each label of a corpus, with their tokens and labels."""
    labels_of = corpus.positives["train"].head(corpus.n_queries)
    rows = np.repeat(np.arange(corpus.n_queries, dtype=np.int64), labels_of.lengths)
    chosen = evenly_drawn(Ragged.of_pairs(labels_of.values, rows, corpus.n_labels), MAX_EXAMPLES)
    rows, numbers = np.unique(chosen.values, return_inverse=True)
    side = corpus.sides["train"]
    Examples(corpus.frequencies(), Ragged(chosen.offsets, numbers.astype(np.int32)),
             Side(side.ragged.subset(rows), side.titles[rows]),
             Texts(Texts.load(corpus.folder, "train.text").bytes.subset(rows)), labels_of.subset(rows)).save(folder)


def evenly_drawn(rows: Ragged, most: int) -> Ragged:
    """Return up to `most` values of each row, one drawn from each of as many equal stretches of it."""
    counts = np.minimum(rows.lengths, most)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(rows)), counts)
    slot, n = np.arange(len(row)) - offsets[row], rows.lengths[row]
    first, after = slot * n // counts[row], (slot + 1) * n // counts[row]
    # the same for every seed of a run: which texts are shown is no part of training
    drawn = (seeds.generator(0, "examples").random(len(row)) * (after - first)).astype(np.int64)
    return Ragged(offsets, rows.values[rows.offsets[row] + first + drawn])
