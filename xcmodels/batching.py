"""From rows of a corpus to batches: in which order rows come, and what a batch holds.

A `Block` is one relation between two sides of a batch. Everything about which pair counts as what (positives,
filter pairs, duplicates, padding) is decided here, once; losses only read it.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from xcmodels.corpus import Corpus, Ragged
from xcmodels.tokens import Tokens


@dataclass(frozen=True)
class Entries:
    """One side of a batch: the ids of its rows, with their tokens or their fixed vectors.

    ids (n,) int64; tokens of n texts or None; vectors (n, d) float32 or None.
    """

    ids: torch.Tensor
    tokens: Tokens | None = None
    vectors: torch.Tensor | None = None

    def to(self, device: torch.device) -> "Entries":
        """Return the same side on `device`."""
        return Entries(self.ids.to(device), self.tokens.to(device) if self.tokens else None,
                       None if self.vectors is None else self.vectors.to(device))


@dataclass(frozen=True)
class Block:
    """One relation between two sides of a batch.

    rows and cols name sides. positives (R, C) bool comes from the full label matrix, so that no true pair is
    ever taken for a negative. weights (R, C) float, or None for all ones; 0 = the pair is no term of the loss.
    columns: None = the columns are a pool shared by all rows; (R, C) int64 = each row's own candidates.
    """

    rows: str
    cols: str
    positives: torch.Tensor
    weights: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    def to(self, device: torch.device) -> "Block":
        """Return the same block on `device`."""
        move = {name: value.to(device) for name in ("positives", "weights", "columns")
                if (value := getattr(self, name)) is not None}
        return replace(self, **move)


@dataclass(frozen=True)
class Batch:
    """The sides of a batch by name, and its blocks by the name of the loss term each one feeds."""

    sides: dict[str, Entries]
    blocks: dict[str, Block]

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on `device`."""
        return Batch({name: side.to(device) for name, side in self.sides.items()},
                     {name: block.to(device) for name, block in self.blocks.items()})


def clustered_order(rows: np.ndarray, clusters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return `rows` with the members of a cluster side by side and the clusters shuffled (NGAME, Algorithm 1).

    clusters (len(rows),) int: the cluster of each row. Slicing the result into batches of S takes about
    S / C random clusters a batch.
    """
    rank = rng.permutation(int(clusters.max(initial=-1)) + 1)
    return rows[np.lexsort((rng.random(len(rows)), rank[clusters]))]


def epoch_order(rows: np.ndarray, clusters: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return `rows` shuffled: one by one, or by clusters where there are any."""
    return rng.permutation(rows) if clusters is None else clustered_order(rows, clusters, rng)


def sample_positive(positives: Ragged, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return one positive label of each row (n,), uniformly drawn; every row must have one."""
    lengths = positives.offsets[rows + 1] - positives.offsets[rows]
    return positives.values[positives.offsets[rows] + (rng.random(len(rows)) * lengths).astype(np.int64)]


def sample_some(positives: Ragged, rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to `most` labels of each row, drawn without replacement, end to end (UniDEC, section 3.1: beta)."""
    values, lengths = positives.take(rows)
    row = np.repeat(np.arange(len(rows)), lengths)
    order = np.lexsort((rng.random(len(values)), row))
    rank = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return values[order[rank < most]]


def sample_columns(matrix: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to `count` entries of each row, drawn without replacement, end to end; -1 is no entry."""
    keys = np.where(matrix >= 0, rng.random(matrix.shape), np.inf)
    drawn = np.take_along_axis(matrix, np.argsort(keys, axis=1)[:, :count], axis=1)
    return drawn[drawn >= 0]


def membership(ragged: Ragged, rows: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Return (R, C) bool: whether label pool[c] stands in row rows[r]; `pool` sorted and unique."""
    found = np.zeros((len(rows), len(pool)), dtype=bool)
    values, lengths = ragged.take(rows)
    if len(pool) == 0 or len(values) == 0:
        return found
    place = np.searchsorted(pool, values)
    hit = pool[np.minimum(place, len(pool) - 1)] == values
    found[np.repeat(np.arange(len(rows)), lengths)[hit], place[hit]] = True
    return found


def pooled_block(corpus: Corpus, rows: np.ndarray, pool: np.ndarray, chosen: np.ndarray | None = None) -> Block:
    """Return the block of training queries `rows` against the label `pool` (sorted, unique).

    chosen (R, P) label ids, -1 = none: the positives that count in the loss, by default all that the pool holds. A
    row's other positives in the pool, and its filter pairs, get weight 0: they are neither pulled nor pushed.
    """
    positives = membership(corpus.positives["train"], rows, pool)
    weights = np.ones(positives.shape, dtype=np.float32)
    if chosen is not None:
        weights[positives] = 0.0
        row, slot = np.nonzero(chosen >= 0)
        weights[row, np.searchsorted(pool, chosen[row, slot])] = 1.0
    # Label texts added as queries come after the queries that filters speak of.
    known = rows < len(corpus.filters["train"])
    weights[known] *= ~membership(corpus.filters["train"], rows[known], pool)
    return Block("queries", "labels", torch.from_numpy(positives), torch.from_numpy(weights))
