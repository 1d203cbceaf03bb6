"""From corpus rows to batches: the order of an epoch, sampling, and a batch's blocks.

A `Block` is one relation between two sides of a batch. Which pairs are positives, negatives or ignored (filter
pairs, duplicates, padding) is decided here, once; losses only read it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.ranges import ranks
from xcmodels.data.sorted_ids import locate, unique
from xcmodels.data.tokens import Tokens


@dataclass(frozen=True)
class BatchSide:
    """One side of a batch: the ids of its rows, with their tokens or their fixed vectors.

    ids (n,) int64; tokens of n texts or None; vectors (n, d) float32 or None.
    """

    ids: torch.Tensor
    tokens: Tokens | None = None
    vectors: torch.Tensor | None = None


@dataclass(frozen=True)
class Block:
    """One relation between two sides of a batch.

    rows and cols name sides. positives (R, C) bool comes from the full label matrix, so that no true pair is
    ever taken for a negative. weights (R, C) float or bool, or None for all ones; 0 = the loss ignores the pair.
    columns: None = the columns are a pool shared by all rows; (R, C) int64 = each row's own candidates.
    chosen_positives (R, P) int64: the columns of the chosen positives of a row, -1 = none; None = none were chosen.
    n_positives (R,) int64: how many a row has, in the block or not.
    """

    rows: str
    cols: str
    positives: torch.Tensor
    weights: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    chosen_positives: torch.Tensor | None = None
    n_positives: torch.Tensor | None = None

    @property
    def counted_negatives(self) -> torch.Tensor:
        """The negative pairs that the loss counts, (R, C) bool."""
        return ~self.positives & counted_pairs(self.positives, self.weights)


def counted_pairs(positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return which pairs the loss counts, (R, C) bool."""
    if weights is None:
        return torch.ones_like(positives)
    return weights if weights.dtype == torch.bool else weights > 0    # torch would convert flags, in 6 ms


@dataclass(frozen=True)
class Batch:
    """The sides of a batch by name, and its blocks by the name of the loss term each one feeds."""

    sides: dict[str, BatchSide]
    blocks: dict[str, Block]

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Return the batch with each of its tensors as `move` returns it."""
        def moved(part: Any) -> Any:
            return replace(part, **{name: value.map(move) if isinstance(value, Tokens) else move(value)
                                    for name, value in vars(part).items() if isinstance(value, Tokens | torch.Tensor)})

        sides, blocks = ({name: moved(part) for name, part in parts.items()} for parts in (self.sides, self.blocks))
        return moved(replace(self, sides=sides, blocks=blocks))

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device; the host does not wait for copies of tensors in pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


def epoch_order(rows: np.ndarray, clusters: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return `rows` shuffled, the members of a cluster adjacent where there are clusters (NGAME, Algorithm 1).

    clusters (len(rows),) int: the cluster of each row. S neighbours in the result are of few clusters, at random.
    """
    if clusters is None:
        return rng.permutation(rows)
    rank = rng.permutation(int(clusters.max(initial=-1)) + 1)
    return rows[np.lexsort((rng.random(len(rows)), rank[clusters]))]


def sample_positive(positives: Ragged, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return one positive label of each row (n,), drawn uniformly; every row must have one."""
    lengths = positives.offsets[rows + 1] - positives.offsets[rows]
    return positives.values[positives.offsets[rows] + (rng.random(len(rows)) * lengths).astype(np.int64)]


def sample_pair(positives: Ragged, rows: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return two positives of each row (n,), drawn without replacement; the same one twice where a row has one."""
    lengths = positives.offsets[rows + 1] - positives.offsets[rows]
    first = (rng.random(len(rows)) * lengths).astype(np.int64)
    step = 1 + (rng.random(len(rows)) * (lengths - 1)).astype(np.int64)    # to another position, wrapping around
    second = np.where(lengths > 1, (first + step) % np.maximum(lengths, 1), first)
    drawn = [positives.values[positives.offsets[rows] + index].astype(np.int64) for index in (first, second)]
    return drawn[0], drawn[1]


def sample_anchor(edges: Ragged, kept: np.ndarray | None, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return one value of each row (n,), drawn uniformly from the kept ones; -1 where a row has none.

    kept: a flag per value of `edges`, None = all.
    """
    values, lengths = edges.take(rows)
    row = np.repeat(np.arange(len(rows)), lengths)
    eligible = np.arange(len(values)) if kept is None else np.flatnonzero(Ragged(edges.offsets, kept).take(rows)[0])
    eligible = eligible[rng.permutation(len(eligible))]
    drawn = np.full(len(rows), -1, dtype=np.int64)
    drawn[row[eligible]] = values[eligible]
    return drawn


def sample_positives(positives: Ragged, rows: np.ndarray, most: int,
                rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `most` labels of each row, drawn without replacement and concatenated, and the count per row.

    UniDEC, section 3.1: beta; ASTRA: k_p.
    """
    values, lengths = positives.take(rows)
    row = np.repeat(np.arange(len(rows)), lengths)
    order = np.lexsort((rng.random(len(values)), row))
    return values[order[ranks(row) < most]], np.minimum(lengths, most)


def sample_negatives(matrix: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to `count` entries of each row, drawn without replacement and concatenated; -1 is no entry."""
    keys = np.where(matrix >= 0, rng.random(matrix.shape), np.inf)
    drawn = np.take_along_axis(matrix, np.argsort(keys, axis=1)[:, :count], axis=1)
    return drawn[drawn >= 0]


def with_rejected(corpus: Corpus, rows: np.ndarray, mined: np.ndarray) -> np.ndarray:
    """Return the labels rejected for each of `rows`, then those mined for it, each once: (R, J + H), -1 = none.

    mined (R, H): label ids, -1 = none.
    """
    rejected = padded(*corpus.rejected.take(rows))
    known = (mined[:, :, None] == rejected[:, None, :]).any(2)
    return np.concatenate([rejected, np.where(known, -1, mined)], axis=1)


def membership(ragged: Ragged, rows: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Return (R, C) bool: whether row rows[r] has label pool[c]; `pool` sorted and unique."""
    member = np.zeros((len(rows), len(pool)), dtype=bool)
    member[_cells(*_pairs(ragged, rows), pool)] = True
    return member


def _pairs(ragged: Ragged, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every (index into `rows`, label) pair, as two arrays."""
    values, lengths = ragged.take(rows)
    return np.repeat(np.arange(len(rows)), lengths), values


def _cells(rows: np.ndarray, labels: np.ndarray, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the pool column of every pair whose label is in the pool."""
    columns, hit = locate(labels, pool)
    return rows[hit], columns[hit]


def pooled_block(corpus: Corpus, rows: np.ndarray, pool: np.ndarray, chosen: np.ndarray | None = None) -> Block:
    """Return the block of training queries `rows` against the label `pool` (sorted, unique).

    chosen (R, P) label ids, -1 = none: the positives that the loss counts, by default all in the pool. A row's other
    positives in the pool, and its filter pairs, get weight 0: they are ignored by the loss.
    """
    positives = membership(corpus.positives["train"], rows, pool)
    if chosen is None:
        weights = np.ones(positives.shape, dtype=bool)
        weights[_filters(corpus, rows, pool)] = False
        block = Block("queries", "labels", torch.from_numpy(positives), torch.from_numpy(weights))
    else:
        block = _chosen_block(("queries", "labels"), positives, pool, chosen, _filters(corpus, rows, pool))
    return _with_pair_weights(block, _pair_weights(corpus, rows, pool))


def label_block(corpus: Corpus, labels: np.ndarray, queries: np.ndarray) -> Block:
    """Return the block of `labels` (B,) against one training query drawn for each, `queries` (B,) (SiameseXML, I).

    Only a label's own query counts as its positive; other queries that have it, or a filter pair with it, are ignored
    by the loss. Labels and queries may repeat.
    """
    pool, row = np.unique(labels, return_inverse=True)
    # One row per label, as the block has them: turned round afterwards, a matrix of 3,307 labels took 30 ms.
    positives = np.zeros((len(pool), len(queries)), dtype=bool)
    positives[_cells(*_pairs(corpus.positives["train"], queries), pool)[::-1]] = True
    weights, pair_weights = ~positives, _pair_weights(corpus, queries, pool)
    weights[_filters(corpus, queries, pool)[::-1]] = False
    positives, weights = positives[row], weights[row]
    np.fill_diagonal(weights, True)
    block = Block("labels", "queries", torch.from_numpy(positives), torch.from_numpy(weights))
    return _with_pair_weights(block, None if pair_weights is None else pair_weights.T[row])


def anchor_block(sides: tuple[str, str], edges: Ragged, rows: np.ndarray, pool: np.ndarray,
                 chosen: np.ndarray) -> Block:
    """Return the block of the nodes `rows` of one side against the anchor `pool` (sorted, unique).

    sides: the names of nodes and anchors in the batch; chosen (R,) the positive anchor of each node, -1 = none.
    Its other anchors, pruned ones included, are ignored by the loss.
    """
    return _chosen_block(sides, membership(edges, rows, pool), pool, chosen[:, None])


def _chosen_block(sides: tuple[str, str], positives: np.ndarray, pool: np.ndarray, chosen: np.ndarray,
                  excluded: tuple[np.ndarray, np.ndarray] | None = None) -> Block:
    """Return the block that counts the chosen positives (R, P) and all negatives, without the `excluded` pairs."""
    columns = np.where(chosen >= 0, np.searchsorted(pool, chosen), -1)
    weights, (row, slot) = ~positives, np.nonzero(columns >= 0)
    weights[row, columns[row, slot]] = True
    if excluded is not None:
        weights[excluded] = False
        columns[~np.take_along_axis(weights, columns, axis=1)] = -1
    return Block(*sides, torch.from_numpy(positives), torch.from_numpy(weights),
                 chosen_positives=torch.from_numpy(columns))


def uniform_block(corpus: Corpus, rows: np.ndarray, pool: np.ndarray, mined: np.ndarray, weight: float) -> Block:
    """Return the block of training queries `rows` against shared uniform labels, as negatives only.

    pool: labels drawn uniformly from all, sorted and unique; mined (R, H) label ids, -1 = none, which another block
    holds. A pair weighs `weight`, or 0 where the label is a positive, a filter pair or mined for the row (ASTRA, eq.
    2).
    """
    weights = np.full((len(rows), len(pool)), weight, dtype=np.float32)
    column, drawn = locate(mined, pool)
    row, slot = np.nonzero(drawn)
    # Few pairs are excluded: setting them one by one needs no second matrix.
    weights[_cells(*_pairs(corpus.positives["train"], rows), pool)] = 0.0
    weights[row, column[row, slot]] = 0.0
    weights[_filters(corpus, rows, pool)] = 0.0
    # Not torch.zeros: a torch of more than one thread would start more of them for the thread that makes batches, and
    # until they sleep they take a quarter of the step that is computed meanwhile.
    positives = np.zeros(weights.shape, dtype=bool)
    return Block("queries", "labels", torch.from_numpy(positives), torch.from_numpy(weights))


def shortlist_block(corpus: Corpus, rows: np.ndarray, most: int, mined: np.ndarray, rng: np.random.Generator) -> Block:
    """Return the block of training queries `rows` against each row's own labels: positives and mined negatives.

    most: positives of a row; where a row has more, `most` are drawn, each weighed by positives / most, so that the
    expected sum is that over all. mined (R, H) label ids that are neither positives nor filter pairs, -1 = none.
    """
    values, lengths = sample_positives(corpus.train_positives, rows, most, rng)
    drawn = padded(values, lengths)
    n_positives = corpus.train_positives.subset(rows).lengths
    share = n_positives / np.maximum(lengths, 1)
    columns = np.concatenate([drawn, mined], axis=1)
    weights = (columns >= 0).astype(np.float32)
    weights[:, :drawn.shape[1]] *= share[:, None]
    if corpus.train_weights is not None:
        pool = unique(values)
        pair_weights = _pair_weights(corpus, rows, pool)
        assert pair_weights is not None
        weights[:, :drawn.shape[1]] *= pair_weights[np.arange(len(rows))[:, None], np.searchsorted(pool, drawn)]
    positives = np.zeros(columns.shape, dtype=bool)
    positives[:, :drawn.shape[1]] = drawn >= 0
    return Block("queries", "labels", torch.from_numpy(positives), torch.from_numpy(weights),
                 torch.from_numpy(np.maximum(columns, 0).astype(np.int64)), n_positives=torch.from_numpy(n_positives))


def padded(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return (n, longest): rows of these lengths, concatenated in `values`, padded with -1."""
    out = np.full((len(lengths), int(lengths.max(initial=0))), -1, dtype=np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = values
    return out


def _pair_weights(corpus: Corpus, rows: np.ndarray, pool: np.ndarray) -> np.ndarray | None:
    """Return the data set's weight of each pair (R, C): a positive's own, else 1; None where all weigh 1."""
    if corpus.train_weights is None:
        return None
    weights, (row, labels) = np.ones((len(rows), len(pool)), np.float32), _pairs(corpus.train_positives, rows)
    pair, column = _cells(np.arange(len(row)), labels, pool)
    weights[row[pair], column] = corpus.train_weights.take(rows)[0][pair]
    return weights


def _with_pair_weights(block: Block, pair_weights: np.ndarray | None) -> Block:
    """Return the block, its weights multiplied by those of its pairs, (R, C)."""
    assert block.weights is not None
    return block if pair_weights is None else replace(block, weights=block.weights * torch.from_numpy(pair_weights))


def _filters(corpus: Corpus, rows: np.ndarray, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column of every filter pair."""
    return _cells(*_pairs(corpus.filters["train"], rows), pool)
