"""A prepared data set as memory-mapped arrays: tokens, positives, filters, texts.

One folder. Per side (`train`, `test`, `label`): `<side>.tokens.{offsets,values}.npy`, `<side>.titles.npy`,
texts (`label.uid`, `label.title`; `test.uid`, `test.title`, `test.content`; and `train.text`, the text of a training
query that is shown to people). Per split: `positives.<split>.*`, `filters.<split>.*`, ragged rows of label ids, sorted;
`rejected.train.*`, labels that reviewers said are wrong for a training query, where any did.
`branch.uid.*`, `branch.broader.*`, the broader relation of a vocabulary (`branches`), if there is one.
`weights.train.npy`, what each training positive weighs, where they differ. `idf.npy`, of each token in titles, then of
each in contents; `validation.npy`, `tokenizer/`, and `corpus.json` with the counts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike

from xcmodels.data.frozen_states import FrozenStates
from xcmodels.data.ranges import in_ranges
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.data.tokens import Tokenizer, Tokens

BITS = 31              # width of the value in a pair's key, row << BITS | value
_TOGETHER = 1 << 14    # texts written at once


def mapped(path: Path) -> np.ndarray:
    """Map an array read-only, as a plain ndarray, since indexing a memmap costs microseconds a row."""
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)


@dataclass(frozen=True)
class Ragged:
    """n rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row]:self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated values of `rows` (m,), and the rows' lengths (m,)."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        return self.values[in_ranges(starts, lengths)], lengths

    def subset(self, rows: np.ndarray) -> "Ragged":
        """Return these rows, copied into memory."""
        values, lengths = self.take(rows)
        return Ragged(np.concatenate([[0], np.cumsum(lengths)]), values)

    def head(self, n: int) -> "Ragged":
        """Return the first n rows, without a copy."""
        return Ragged(self.offsets[:n + 1], self.values[:self.offsets[n]])

    def less(self, values: np.ndarray) -> "Ragged":
        """Return the rows without these values, copied into memory."""
        return self.where(~isin_sorted(self.values, np.sort(values)))

    def where(self, kept: np.ndarray) -> "Ragged":
        """Return the rows with the values that `kept`, a flag for each value, keeps, copied into memory."""
        return Ragged(np.concatenate([[0], np.cumsum(kept)])[self.offsets], self.values[kept])

    def keys(self, width: int) -> np.ndarray:
        """Return row * width + value of every pair, int64."""
        return np.repeat(np.arange(len(self)), self.lengths) * width + self.values

    def save(self, folder: Path, name: str) -> None:
        """Write `<name>.offsets.npy` and `<name>.values.npy`."""
        np.save(folder / f"{name}.offsets.npy", np.asarray(self.offsets, dtype=np.int64))
        np.save(folder / f"{name}.values.npy", self.values)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Ragged":
        """Map what `save` wrote into memory."""
        return cls(*(mapped(folder / f"{name}.{part}.npy") for part in ("offsets", "values")))

    @classmethod
    def of_pairs(cls, rows: np.ndarray, values: np.ndarray, n: int) -> "Ragged":
        """Group (row, value) pairs of numbers from 0 to 2^31 by row, values sorted within a row."""
        keys = rows.astype(np.int64)
        keys <<= BITS
        keys |= values
        return cls.of_keys(keys, n, values.dtype)

    @classmethod
    def of_keys(cls, keys: np.ndarray, n: int, kind: DTypeLike = np.int64) -> "Ragged":
        """Group pairs by row, given as row << BITS | value, (m,) int64; values are returned as `kind`.

        There may be tens of millions: `keys` is sorted in place and overwritten by the values.
        """
        keys.sort()
        offsets = np.searchsorted(keys, np.arange(n + 1) << BITS)
        keys &= (1 << BITS) - 1
        return cls(offsets, keys.astype(kind, copy=False))


@dataclass(frozen=True)
class Texts:
    """n strings kept as UTF-8 bytes on disk, decoded on access."""

    bytes: Ragged

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, row: int) -> str:
        return self.bytes[row].tobytes().decode()

    def take(self, rows: np.ndarray) -> list[str]:
        """Return the strings of `rows` (m,), much faster than one by one."""
        values, lengths = self.bytes.take(rows)
        joined, ends = values.tobytes(), np.cumsum(lengths).tolist()
        if joined.isascii():    # a byte is a character, so that all are decoded at once
            text = joined.decode()
            return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return [joined[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]

    @staticmethod
    def save(folder: Path, name: str, texts: Iterable[str]) -> None:
        """Write the strings as `Ragged.save` would, holding only some in memory at a time."""
        texts, lengths = iter(texts), [np.zeros(1, dtype=np.int64)]
        with (folder / f"{name}.values.npy").open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (0,)}
            np.lib.format.write_array_header_1_0(file, header)
            while encoded := [text.encode() for text in islice(texts, _TOGETHER)]:
                lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
                file.write(b"".join(encoded))
            offsets = np.concatenate(lengths).cumsum()
            file.seek(0)    # numpy pads the header for a shape of any length
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (int(offsets[-1]),)})
        np.save(folder / f"{name}.offsets.npy", offsets)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Texts":
        """Map what `save` wrote into memory."""
        return cls(Ragged.load(folder, name))


@dataclass(frozen=True)
class Side:
    """The texts of one side: training queries, test queries or labels."""

    ragged: Ragged
    titles: np.ndarray
    states: Ragged | None = None    # of frozen layers, values (S, d)

    def __len__(self) -> int:
        return len(self.titles)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Side":
        """Map `<name>.tokens.*.npy` and `<name>.titles.npy` into memory."""
        return cls(Ragged.load(folder, f"{name}.tokens"), mapped(folder / f"{name}.titles.npy"))

    def tokens(self, rows: np.ndarray) -> Tokens:
        ids, states = self.ragged.subset(rows), None
        if self.states is not None:
            starts, ends = (self.states.offsets[rows + more] for more in (0, 1))
            states = FrozenStates.of(self.states.values, starts, ends - starts)
        return Tokens(torch.from_numpy(ids.values.astype(np.int64)), torch.from_numpy(ids.offsets),
                      torch.from_numpy(self.titles[rows].astype(np.int64)), states=states)


@dataclass(frozen=True)
class Graph:
    """A metadata graph after random walks: the anchors' texts, and the anchors of each node of either side."""

    anchors: Side
    edges: Mapping[str, Ragged]     # of training queries ("train") and of labels ("label")


class Corpus:
    """A prepared data set, opened from its folder; nothing is read until it is used."""

    states: Path | None = None    # the folder with its sides' states (`xcmodels.training.frozen_layers`)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = json.loads((folder / "corpus.json").read_text())
        self.sides = {name: Side.load(folder, name) for name in ("train", "test", "label")}
        self.positives = {split: Ragged.load(folder, f"positives.{split}") for split in ("train", "test")}
        self.filters = {split: Ragged.load(folder, f"filters.{split}") for split in ("train", "test")}
        self.rejected = self._rejected()
        weights = folder / "weights.train.npy"
        self.weights = mapped(weights) if weights.exists() else None    # of positives["train"], 1 on average
        self.graphs = {name: Graph(Side.load(folder, f"anchors.{name}"),
                                   {side: Ragged.load(folder, f"walks.{name}.{side}") for side in ("train", "label")})
                       for name in self.facts["anchors"]}
        self.idf = mapped(folder / "idf.npy")
        self.validation = np.load(folder / "validation.npy")

    def _rejected(self) -> Ragged:
        """Return the labels rejected for each row of the training side: negatives that every epoch trains on."""
        if (self.folder / "rejected.train.offsets.npy").exists():
            return Ragged.load(self.folder, "rejected.train")
        return Ragged(np.zeros(len(self.sides["train"]) + 1, np.int64), np.zeros(0, np.int64))

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return len(self.sides["label"])

    @property
    def n_queries(self) -> int:
        """N, the number of training queries; label texts added as queries come after them."""
        return int(self.facts["train"])

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @cached_property
    def train_positives(self) -> Ragged:
        """The positives of the training side without its filter pairs: those that training uses."""
        positives, kept = self.positives["train"], self._unfiltered
        return positives if kept is None else positives.where(kept)

    @cached_property
    def train_weights(self) -> Ragged | None:
        """What each of `train_positives` weighs in losses and the sparse view, float32; None = all weigh the same."""
        if self.weights is None:
            return None
        kept = self._unfiltered
        return Ragged(self.train_positives.offsets, self.weights if kept is None else self.weights[kept])

    @property
    def _unfiltered(self) -> np.ndarray | None:
        """A flag for each positive of the training side: whether it is no filter pair; None where none is."""
        filters = self.filters["train"].keys(self.n_labels)
        return ~isin_sorted(self.positives["train"].keys(self.n_labels), np.sort(filters)) if len(filters) else None

    def training_rows(self) -> np.ndarray:
        """Return the rows to train on: those with a positive, without the validation split."""
        rows = np.flatnonzero(self.train_positives.lengths > 0)
        return np.setdiff1d(rows, self.validation, assume_unique=True)

    def rejected_rows(self) -> np.ndarray:
        """Return the rows for which labels were rejected, without the validation split."""
        return np.setdiff1d(np.flatnonzero(self.rejected.lengths), self.validation)

    def frequencies(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return (L,) int64: how many training queries, or of `rows` alone, have each label.

        Label texts added as queries are not counted.
        """
        queries = self.positives["train"].head(self.n_queries)
        labels = queries.values if rows is None else queries.take(rows[rows < self.n_queries])[0]
        return np.bincount(labels, minlength=self.n_labels)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the corpus was prepared with."""
        return Tokenizer.load(self.folder / "tokenizer")

    def label_texts(self) -> tuple[Texts, Texts]:
        """Return the labels' uids and titles."""
        return Texts.load(self.folder, "label.uid"), Texts.load(self.folder, "label.title")
