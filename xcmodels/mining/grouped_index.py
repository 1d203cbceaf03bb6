"""Nearest labels of many queries: those that lie together score the same share of the labels.

A query belongs to the group whose centre has the largest inner product with it. For each group the labels nearest to
its centre are gathered, and the group's queries are scored against these labels alone, by int8 matrix products. `build`
measures which share of the labels is needed: for a sample of queries, it looks how far down their centre's order their
nearest labels stand. Every decision about a query compares integers, or float products of one (query, label) pair. So
its result depends neither on the other queries of a search nor on the number of threads.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.ranges import ranks
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.mining import query_groups
from xcmodels.mining.int8_products import MAX_EXACT, largest_entry, products, quantised, quantised_rows
from xcmodels.mining.label_index import Excluded, LabelIndex, nothing_excluded
from xcmodels.retrieval import ann
from xcmodels.retrieval.inner_products import pair_scores

KIND, FACTS = "grouped", "grouped.json"
_ARRAYS = ("vectors", "codes", "centres")
TARGET_RECALL = 0.94    # share of a query's k nearest labels that a search should find
TRIED = 512         # queries on which the needed share of the labels is measured
_QUERIES = 256      # rows of a block of scores
_LABELS = 4096      # columns of a block of scores
_STRIPES = 16       # a block's columns are compared by the maximum over this many stripes first
_GROUPS = 8         # groups whose labels are chosen by one product
_SAMPLE = 1 << 16   # labels whose scores estimate the threshold of a share
_UNCUT = 0.999      # share of the labels of which no entry is cut: one long vector would leave the others few integers
# Of a candidate's sort key: query, then score, then label; 8 bits are left for the query.
_SCORE_BITS = 26
_LABEL_BITS = 29


@dataclass(frozen=True)
class GroupedIndex(LabelIndex):
    """Label vectors to search for groups of queries; make it with `build`."""

    vectors: np.ndarray    # (L, d) float32, maybe memory-mapped
    codes: np.ndarray      # (L, d) int8, of the vectors less their mean, which changes no query's order
    centres: np.ndarray    # (G, d) int8
    share: float           # of the labels, which a group scores

    kind = KIND
    chunk = 16_384

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        (folder / FACTS).write_text(json.dumps({"share": self.share}))

    def __len__(self) -> int:
        return len(self.vectors)

    def search_order(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return `rows` with those of a group one after another."""
        group = [self._assigned(queries[rows[start:start + _SAMPLE]])[1] for start in range(0, len(rows), _SAMPLE)]
        return rows[np.argsort(np.concatenate([ann.NO_IDS, *group]), kind="stable")]

    def nearest(self, queries: np.ndarray, k: int, excluded: Excluded = nothing_excluded) -> np.ndarray:
        """Return what LabelIndex.nearest says, and nearly the nearest; fastest with whole groups of queries."""
        ann.need_finite(queries, "query")
        out = np.full((len(queries), k), -1, dtype=np.int64)
        codes, group = self._assigned(queries)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        members = np.split(order, starts[1:])

        def search_group(rows: np.ndarray, labels: np.ndarray) -> None:
            gathered = _gathered(self.codes, labels)
            for start in range(0, len(rows), _QUERIES):
                part = rows[start:start + _QUERIES]
                row, label = self._candidates(codes[part], gathered, labels, k, pairs=np.sort(excluded(part)))
                out[part] = self._rescored(queries[part], row, label, k)

        def search_groups(first: int) -> None:
            some = members[first:first + _GROUPS]
            # one call per group, so that its codes are let go before the next group's are gathered
            for rows, labels in zip(some, self._chosen(group[[rows[0] for rows in some]]), strict=True):
                search_group(rows, labels)

        query_groups.in_threads(search_groups, range(0, len(starts), _GROUPS))
        return out

    def _assigned(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries as integers (n, d), and the group of each (n,)."""
        codes = quantised_rows(queries)
        return codes, query_groups.nearest(codes, self.centres)

    def _chosen(self, group: np.ndarray) -> list[np.ndarray]:
        """Return the labels that each group scores: those nearest to its centre first, about a block, then by id."""
        chosen = []
        for scores in self._centre_scores(group):
            sample = np.sort(scores[::self._stride])[::-1]
            ids = np.flatnonzero(scores >= _threshold(sample, self.share))
            near = scores[ids] >= _threshold(sample, _LABELS / len(scores))
            chosen.append(np.concatenate([ids[near], ids[~near]]))
        return chosen

    def _centre_scores(self, group: np.ndarray) -> np.ndarray:
        """Return the products of the centres of some groups with all labels, (g, L) int32."""
        return products(torch.from_numpy(self.centres[group]), torch.from_numpy(self.codes)).numpy()

    @property
    def _stride(self) -> int:
        return max(len(self) // _SAMPLE, 1)

    def _candidates(self, codes: np.ndarray, gathered: np.ndarray, labels: np.ndarray, k: int, *,
                    pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of the best products of each query, more than k, without `pairs`: rows and labels."""
        depth, own = k + k // 4 + 8, np.bincount(pairs // len(self), minlength=len(codes))
        row, label = best_pairs(codes, gathered, labels, depth + own)
        kept = ~isin_sorted(row * len(self) + label, pairs)
        row, label = row[kept], label[kept]
        best = ranks(row) < depth
        return row[best], label[best]

    def _rescored(self, queries: np.ndarray, row: np.ndarray, label: np.ndarray, k: int) -> np.ndarray:
        """Return the k labels of each query, (n, k), whose exact products are largest, of pairs in order of rows."""
        rank = ranks(row)
        found = np.full((len(queries), max(k, int(rank.max(initial=0)) + 1)), len(self))
        found[row, rank] = label
        found.sort(axis=1)    # so that equal scores are in ascending order of id
        row, slot = np.nonzero(found < len(self))
        exact = np.full(found.shape, -np.inf, dtype=np.float32)
        exact[row, slot] = pair_scores(queries, self.vectors, row, found[row, slot])
        found[found == len(self)] = -1
        return np.take_along_axis(found, np.argsort(-exact, axis=1, kind="stable")[:, :k], axis=1)


def build(vectors: np.ndarray, queries: np.ndarray, k: int, *, seed: int, rows: np.ndarray | None = None,
          target_recall: float = TARGET_RECALL) -> GroupedIndex:
    """Return an index of label vectors (L, d), of which the k nearest to each of some queries will be looked for.

    queries: (N, d), of which `rows` (n,) will be searched for, by default all. target_recall: the share, 0 to 1, of
    the nearest labels that a search is to find. Raises ValueError for vectors that are not finite.
    """
    rows = np.arange(len(queries)) if rows is None else rows
    ann.need_finite(vectors, "label vector")
    mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    parts = [slice(start, start + _SAMPLE) for start in range(0, len(vectors), _SAMPLE)]
    peaks = np.concatenate([np.abs(vectors[part] - mean).max(axis=1) for part in parts])
    scale = largest_entry(vectors.shape[1]) / (float(np.quantile(peaks, _UNCUT, method="lower")) or 1.0)
    codes = np.empty(vectors.shape, dtype=np.int8)
    for part in parts:
        codes[part] = quantised(vectors[part] - mean, scale)
    index = GroupedIndex(vectors, codes, query_groups.centres(queries, rows, seed=seed), 1.0)
    drawn = rows[seeds.generator(seed, "tried").permutation(len(rows))[:TRIED]]
    return GroupedIndex(vectors, codes, index.centres, needed_share(index, queries[np.sort(drawn)], k, target_recall))


def load(folder: Path) -> GroupedIndex:
    """Map an index that `save` wrote; raises OSError where a file is missing."""
    # mode "c" (private pages), not "r": torch shares only writable arrays without a copy
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False).view(np.ndarray)
              for name in _ARRAYS}
    return GroupedIndex(**arrays, **json.loads((folder / FACTS).read_text()))


def needed_share(index: GroupedIndex, queries: np.ndarray, k: int, recall: float) -> float:
    """Return the share of the labels, in the order of a query's centre, that has `recall` of the k nearest, on average.

    recall: a share, 0 to 1.
    """
    codes, group = index._assigned(queries)
    every, k = np.arange(len(index)), min(k, len(index))
    gathered, shares = _gathered(index.codes, every), np.empty((len(queries), k))

    def measure(start: int) -> None:
        rows = np.arange(start, min(start + _GROUPS, len(queries)))
        row, label = best_pairs(codes[rows], gathered, every, np.full(len(rows), k))
        nearest = label[ranks(row) < k].reshape(len(rows), k)
        for number, scores in enumerate(index._centre_scores(group[rows])):
            sample = np.sort(scores[::index._stride])
            shares[rows[number]] = 1 - np.searchsorted(sample, scores[nearest[number]]) / len(sample)

    query_groups.in_threads(measure, range(0, len(queries), _GROUPS))
    least = min(4 * k / max(len(index), 1), 1.0)
    return max(float(np.quantile(shares, recall, method="higher")), least) if shares.size else 1.0


def best_pairs(queries: np.ndarray, gathered: np.ndarray, labels: np.ndarray,
               depths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the depths[i] best labels of each query i, and some more, as rows and labels, (p,) each, the best first.

    queries: (n, d) int8, at most _QUERIES of them; gathered: what `_gathered` returns for `labels`. Equal scores are in
    ascending order of label.
    """
    n, keys, wanted, lowest = len(queries), list[np.ndarray](), int(depths.sum()), np.zeros((0, 1), np.int32)
    width = _LABELS // _STRIPES
    stripes = width * np.arange(_STRIPES)
    padded = np.zeros((-(-n // 32) * 32, queries.shape[1]), dtype=np.int8)    # few shapes, of which each has its kernel
    padded[:n] = queries
    block = torch.empty((len(padded), _LABELS), dtype=torch.int32)
    for start in range(0, len(gathered), _LABELS):
        scores = products(torch.from_numpy(padded), torch.from_numpy(gathered[start:start + _LABELS]), block)[:n]
        if (valid := len(labels) - start) < _LABELS:
            scores[:, valid:] = -MAX_EXACT
        if not start:    # the labels nearest to the centre: what any other must reach
            lowest = _score_at_depth(scores.numpy(), np.where(depths < valid, depths, _LABELS))[:, None]
        peaks, flat = scores.view(n, _STRIPES, -1).amax(1).numpy(), scores.numpy().ravel()
        place = np.flatnonzero(peaks >= lowest)
        row, place = place // width, place % width
        some = flat.take((row * _LABELS + place)[:, None] + stripes)
        hit = np.flatnonzero(some >= lowest[row])
        row, column = row[hit // _STRIPES], place[hit // _STRIPES] + stripes[hit % _STRIPES]
        worth = MAX_EXACT - some.ravel()[hit].astype(np.int64)
        keys.append(row << _SCORE_BITS + _LABEL_BITS | worth << _LABEL_BITS | labels[start + column])
        if sum(map(len, keys)) > 2 * wanted:    # the worst go, and what others must reach rises
            found, row, rank = _in_order(keys)
            last = rank == depths[row] - 1
            lowest[row[last], 0] = MAX_EXACT - (found[last] >> _LABEL_BITS & ((1 << _SCORE_BITS) - 1))
            keys = [found[rank < depths[row]]]
    found, row, _ = _in_order(keys)
    return row, found & ((1 << _LABEL_BITS) - 1)


def _in_order(keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all keys in order, the row of each, and its rank in its row, from 0."""
    found = np.sort(np.concatenate([ann.NO_IDS, *keys]))
    row = found >> _SCORE_BITS + _LABEL_BITS
    return found, row, ranks(row)


def _score_at_depth(scores: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return the score at a depth of each row, int32 (n,); where the depth is the row's length, what all reach."""
    deepest = min(int(depths[depths < scores.shape[1]].max(initial=1)), scores.shape[1])
    top = np.sort(np.partition(scores, -deepest, axis=1)[:, -deepest:], axis=1)
    at = top[np.arange(len(top)), deepest - np.minimum(depths, deepest)]
    return np.where(depths < scores.shape[1], at, 1 - MAX_EXACT).astype(np.int32)


def _gathered(codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the codes of some labels, (m, d), followed by rows of zeros up to a whole number of blocks."""
    out = np.zeros((-(-len(labels) // _LABELS) * _LABELS, codes.shape[1]), dtype=np.int8)
    torch.index_select(torch.from_numpy(codes), 0, torch.from_numpy(labels), out=torch.from_numpy(out[:len(labels)]))
    return out


def _threshold(sample: np.ndarray, share: float) -> float:
    """Return the score that a share of the labels reaches, by a sample of the scores, largest first."""
    count = int(np.ceil(share * len(sample)))
    return float(sample[count - 1]) if count < len(sample) else -np.inf
