"""Random walks with restart on bipartite graphs, and edge pruning (RAMEN, SiameseXML)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Ragged, mapped
from xcmodels.data.ranges import ranks
from xcmodels.data.sparse_rows import heaviest

Edges = tuple[np.ndarray, np.ndarray, np.ndarray]  # node int64, anchor int64, weight float32

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53
_CHUNK = 2**17  # hops drawn at once: arrays of 1 MB, which stay in cache
_QUERIES = 1024  # queries whose shared anchors are counted at once


def _scramble(bits: np.ndarray) -> np.ndarray:
    """Scramble a fresh array of 64-bit words in place: the finaliser of splitmix64 (Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


def hashed_uniform(seed: int, stream: np.ndarray | int, counter: np.ndarray | int) -> np.ndarray:
    """Return a float64 in [0, 1) for every (seed, stream, counter), independent of the other arguments.

    Stream and counter are non-negative integers of shapes that broadcast (to one dimension at least). Each
    (seed, stream) hashes to a start, from which the counter steps as in splitmix64; so no state is kept, and work can
    be split anywhere.
    """
    start = _scramble(np.array([seed % 2**64], dtype=np.uint64))
    start = _scramble(start + (np.atleast_1d(stream).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    bits = _scramble(start + (np.atleast_1d(counter).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    bits >>= np.uint64(11)
    return bits * _UNIT


@dataclass(frozen=True)
class Adjacency:
    """The edges of one side of a graph, CSR, prepared for sampling.

    Where weights differ, `shares` are the running sums of weights within a row, from its first share to 1.0, and
    `guide` holds at slot j of a row of d edges how many have a share of at most j / d: a draw starts there and skips
    on average less than one edge, as in Chen's indexed search (1974). Both are None where all weights are equal.
    """

    indptr: np.ndarray
    indices: np.ndarray
    shares: np.ndarray | None
    guide: np.ndarray | None

    def draw(self, rows: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return one neighbour of each row, with probability in proportion to its edge's weight."""
        first = self.indptr[rows]
        edge = first + (uniform * (self.indptr[rows + 1] - first)).astype(np.int64)
        if self.shares is None or self.guide is None:
            return self.indices[edge]
        edge = first + self.guide[edge]
        short = np.flatnonzero(self.shares[edge] <= uniform)
        while len(short):
            edge[short] += 1
            short = short[self.shares[edge[short]] <= uniform[short]]  # ends in the row: its last share is 1
        return self.indices[edge]


@dataclass(frozen=True)
class WalkGraph:
    """A graph prepared for walks: anchors of each node and nodes of each anchor, without those of too high a degree."""

    anchors: Adjacency
    nodes: Adjacency

    def save(self, folder: Path) -> None:
        """Write the arrays, for workers to map by path."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("anchors", "nodes"):
            for field, array in vars(getattr(self, name)).items():
                if array is not None:
                    np.save(folder / f"{name}.{field}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> "WalkGraph":
        """Map what `save` wrote, read-only."""

        def side(name: str) -> Adjacency:
            files = [folder / f"{name}.{field}.npy" for field in ("indptr", "indices", "shares", "guide")]
            weights = (mapped(file) if files[2].exists() else None for file in files[2:])
            return Adjacency(mapped(files[0]), mapped(files[1]), *weights)

        return cls(side("anchors"), side("nodes"))


def walk_graph(graph: sp.csr_array, max_degree: int = 500) -> WalkGraph:
    """Prepare a graph (nodes x anchors, weights >= 0) for walks.

    Nodes with more than `max_degree` anchors and anchors with more than `max_degree` nodes, counted on the graph as
    passed, are left out with all their edges (the authors' releases); so are edges of weight 0.
    Raises ValueError for a weight that is negative or not finite.
    """
    graph = sp.csr_array(graph, copy=True)
    graph.sum_duplicates()
    if graph.nnz and not (graph.data.min() >= 0 and np.isfinite(graph.data).all()):
        raise ValueError("edge weights must be finite and at least 0; look for NaN or negative weights in the edges")
    graph.eliminate_zeros()
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    degree = np.diff(graph.indptr)[rows], np.bincount(graph.indices, minlength=graph.shape[1])[graph.indices]
    graph.data[(degree[0] > max_degree) | (degree[1] > max_degree)] = 0
    graph.eliminate_zeros()
    transposed = sp.csr_array(graph.T)
    transposed.sort_indices()
    return WalkGraph(_adjacency(graph), _adjacency(transposed))


def _adjacency(graph: sp.csr_array) -> Adjacency:
    indptr, indices = graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
    if not graph.nnz or graph.data.min() == graph.data.max():
        return Adjacency(indptr, indices, None, None)
    degree = np.diff(indptr)
    first, row_degree = np.repeat(indptr[:-1], degree), np.repeat(degree, degree)
    weights = graph.data.astype(np.float64)
    weights /= np.repeat(np.add.reduceat(np.append(weights, 0.0), indptr[:-1]), degree)  # empty rows repeat 0 times
    running = np.cumsum(weights)
    shares = running - (running - weights)[first]
    shares[indptr[1:][degree > 0] - 1] = 1.0
    slots = np.ceil(shares * row_degree).astype(np.int64)
    inside = slots < row_degree
    passed = np.cumsum(np.bincount(first[inside] + slots[inside], minlength=graph.nnz))
    guide = passed - np.where(first > 0, passed[first - 1], 0)
    return Adjacency(indptr, indices, shares, guide.astype(np.int32))


def random_walks(graph: WalkGraph, nodes: np.ndarray, *, hops: int = 400, restart: float = 0.8, top: int = 10,
                 seed: int) -> Edges:
    """Return each node's `top` most visited anchors on a random walk with restart (RAMEN, Appendix A).

    A hop goes from the current node to an anchor, which counts as a visit, and on to one of the anchor's nodes, both
    in proportion to edge weights; with probability `restart` the next hop starts from the first node again.
    Edges are in the order of `nodes`, by descending visits, then by anchor id; a node's weights sum to 1.
    Nodes without an edge (or left out, see `walk_graph`) give none. The hops of a node depend on the seed and the
    node only, so any split of `nodes` gives the same edges.
    Raises ValueError for hops or top below 1, for a restart outside [0, 1] and for a node outside the graph.
    """
    _check_walk(hops, restart, top)
    nodes, n_nodes = np.asarray(nodes, dtype=np.int64), len(graph.anchors.indptr) - 1
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < n_nodes:
        raise ValueError(f"nodes run from {nodes.min()} to {nodes.max()}, the graph has 0 to {n_nodes - 1}")
    nodes = nodes[graph.anchors.indptr[nodes + 1] > graph.anchors.indptr[nodes]]
    step = max(1, _CHUNK // hops)
    return _join(_most_visited(part, _walk(graph, part, hops, restart, seed, land=False), top, own=None)
                 for part in (nodes[start : start + step] for start in range(0, len(nodes), step)))


def label_correlation(queries_of: sp.csr_array, *, hops: int = 400, restart: float = 0.8, top: int = 10,
                      max_degree: int = 500, seed: int) -> sp.csr_array:
    """Return the label correlation operator of SiameseXML (Module II), float32 CSR (L, L) with rows that sum to 1.

    queries_of: (labels x queries). The walk is that of `random_walks` from each label over its queries, but counts the
    labels it lands on. The start counts as one landing and is always among the `top`, so the diagonal is never empty;
    a label without a walk is related to itself alone.
    """
    _check_walk(hops, restart, top)
    n_labels, graph = queries_of.shape[0], walk_graph(queries_of, max_degree)
    connected = np.diff(graph.anchors.indptr) > 0
    labels, step = np.flatnonzero(connected), max(1, _CHUNK // hops)
    isolated = np.flatnonzero(~connected)
    parts: list[Edges] = [(isolated, isolated, np.ones(len(isolated), dtype=np.float32))]
    for part in (labels[start : start + step] for start in range(0, len(labels), step)):
        landed = _walk(graph, part, hops, restart, seed, land=True)
        parts.append(_most_visited(part, np.column_stack([landed, part.astype(np.int32)]), top, own=part))
    row, column, weight = _join(parts)
    return sp.csr_array((weight, (row, column)), shape=(n_labels, n_labels))


def similar_edges(edges: Ragged, node_vectors: np.ndarray, anchor_vectors: np.ndarray,
                  threshold: float = 0.0) -> np.ndarray:
    """Return, for each edge from a node to an anchor, whether their cosine is above `threshold` (RAMEN, Appendix A).

    The vectors are (nodes, d) and (anchors, d) of any length, and may be memory-mapped; a zero vector has cosine 0.
    """
    nodes, anchors = np.repeat(np.arange(len(edges)), edges.lengths), edges.values
    keep = np.zeros(len(nodes), dtype=bool)
    for start in range(0, len(nodes), 8192):
        part = slice(start, start + 8192)
        left, right = node_vectors[nodes[part]], anchor_vectors[anchors[part]]
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        keep[part] = np.einsum("ed,ed->e", left, right) / np.where(lengths > 0, lengths, 1) > threshold
    return keep


def shared_anchors(queries: Ragged, labels: Ragged, n_anchors: int, most: int) -> Ragged:
    """Return for each query the labels that share most anchors with it, at most `most`, ties by id (RAMEN, AugGT).

    queries, labels: the anchors of each.
    """
    query_anchors, label_anchors = (
        sp.csr_array((np.ones(len(nodes.values), np.float32), nodes.values, nodes.offsets),
                     shape=(len(nodes), n_anchors)) for nodes in (queries, labels))
    anchor_labels = label_anchors.T.tocsr()
    parts = [heaviest(query_anchors[start:start + _QUERIES] @ anchor_labels, most)
             for start in range(0, len(queries), _QUERIES)]
    rows = sp.vstack([sp.csr_array((0, len(labels)), dtype=np.float32), *parts], format="csr")
    return Ragged(rows.indptr, rows.indices)


def _check_walk(hops: int, restart: float, top: int) -> None:
    if hops < 1 or top < 1 or not 0 <= restart <= 1:
        raise ValueError(f"need hops >= 1, top >= 1, 0 <= restart <= 1; got {hops}, {top}, {restart}")


def _walk(graph: WalkGraph, nodes: np.ndarray, hops: int, restart: float, seed: int, *, land: bool) -> np.ndarray:
    """Return the anchor of every hop, or with `land` the node it lands on, int32 (n, hops).

    Hops are not taken in order: all that are equally far from the last restart are taken together. Most start at the
    node itself (80% of them at restart .8), so a few rounds of large arrays replace `hops` small ones.
    """
    counter = np.arange(hops)
    pick = hashed_uniform(seed, nodes[:, None], 2 * counter).ravel()
    onward = hashed_uniform(seed, nodes[:, None], 2 * counter + 1).ravel()
    back = onward < restart
    # rescaled within its side of the restart, `onward` is uniform again, and picks the node to land on
    onward = np.where(back, onward / max(restart, _UNIT), (onward - restart) / max(1 - restart, _UNIT))
    goes_on = ~back
    goes_on[hops - 1 :: hops] = False
    visits = np.empty(len(pick), dtype=np.int32)
    starting = np.ones(len(pick), dtype=bool)
    starting[1:] = ~goes_on[:-1]
    hop = np.flatnonzero(starting)
    current = nodes[hop // hops]
    while len(hop):
        anchor, leaving = graph.anchors.draw(current, pick[hop]), goes_on[hop]
        if land:
            landed = visits[hop] = graph.nodes.draw(anchor, onward[hop])
            current, hop = landed[leaving], hop[leaving] + 1
        else:
            visits[hop] = anchor
            current, hop = graph.nodes.draw(anchor[leaving], onward[hop[leaving]]), hop[leaving] + 1
    return visits.reshape(len(nodes), hops)


def _most_visited(nodes: np.ndarray, visits: np.ndarray, top: int, own: np.ndarray | None) -> Edges:
    """Count each row of visits and keep the `top` ids by count, then by id; `own` ids (n,), if not None, come first."""
    ordered = np.sort(visits, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = np.flatnonzero(new)
    counts = np.diff(starts, append=ordered.size)
    ids, rows = ordered.ravel()[starts], starts // ordered.shape[1]
    rank = counts if own is None else np.where(ids == own[rows], ordered.shape[1] + 1, counts)
    order = np.argsort(rows * (ordered.shape[1] + 2) - rank, kind="stable")  # ids already rise within a row
    order = order[ranks(rows) < top]
    rows, counts = rows[order], counts[order]
    total = np.bincount(rows, weights=counts, minlength=len(nodes))
    return nodes[rows], ids[order].astype(np.int64), (counts / total[rows]).astype(np.float32)


def _join(parts: Iterable[Edges]) -> Edges:
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    node, anchor, weight = (np.concatenate(column) for column in zip(none, *parts, strict=True))
    return node, anchor, weight
