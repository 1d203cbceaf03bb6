"""Nearest labels by inner product: exact search, and two faster kinds for many labels.

- exact: every label is scored, a block of labels and a batch of queries at a time.
- quantised: codes of 4 bits a dimension, or for two, are scanned in the processor's registers (faiss' fast scan); the
  labels of the best codes are proposed to whoever scores them, or scored exactly, four for each that is wanted.
- hnsw: a graph of neighbours is walked, which alone costs less than in proportion to the labels; slow to build.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcmodels.data.sorted_ids import among
from xcmodels.retrieval.inner_products import alone, largest, pair_scores, put

KINDS = ("exact", "quantised", "hnsw")
CHOICES = ("auto", *KINDS)        # what a setting may say
EXACT_MAX_BATCH, EXACT_MAX_ONLINE = 200_000, 20_000    # labels searched exactly for many queries at once, for one
_QUERIES, _LABELS = 256, 32768    # scores held at once: 32 MB
_PROPOSED, _SCORED = (2, 100), (4, 200)    # labels of the best codes that are proposed, or scored: for each, at least
_TOGETHER = 64                    # labels whose codes are scanned at once: of many queries, 0.7 of what 32 take
_SINGLY = 128                     # dimensions up to which each has a code of its own
_FILES = {"quantised": "codes.faiss", "hnsw": "hnsw.faiss"}
NOTHING = np.zeros(0, dtype=np.int64)


def choose(kind: str, n_labels: int, limit: int = EXACT_MAX_BATCH) -> str:
    """Return the index kind: `kind` itself, or for "auto" exact search up to `limit` labels and quantised beyond.

    WordNet, 67,892 labels, d = 384, k = 100, one thread: one query took 16.2 ms exactly, 0.7 ms quantised (99.9% of the
    neighbours found, built in 2 s), 1.5 ms by HNSW (97.3%, 89 s); of 600 at once each took 1.4, 0.7 and 1.4 ms.
    Raises ValueError for another kind.
    """
    if kind == "auto":
        return "exact" if n_labels <= limit else "quantised"
    if kind not in KINDS:
        raise ValueError(f"index must be one of {', '.join(CHOICES)}, got {kind!r}")
    return kind


@dataclass(frozen=True)
class Index:
    """Label vectors to search by inner product; make it with `build` or `load`."""

    kind: str
    vectors: np.ndarray    # (L, d) float32, maybe memory-mapped; HNSW's are in its graph
    held: Any = None       # "quantised": a faiss index of codes; "hnsw": one that is the graph
    ef_search: int = 0

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.vectors.shape[1]

    def search(self, queries: np.ndarray, k: int,
               without: np.ndarray = NOTHING) -> tuple[np.ndarray, np.ndarray]:
        """Return inner products float32 (n, k), largest first, and label ids int64 (n, k).

        `queries` is (n, d) float32; the ids `without` are not found. Where there are fewer than k labels (or HNSW finds
        fewer), the rest is -1 and -inf. Equal scores come by rising id, but for HNSW's.
        Raises ValueError for a wrong shape, k below 1 and for queries that are not finite.
        """
        queries = self._asked(queries, k)
        scores, ids = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        depth = min(k, len(self) - len(without))
        if depth > 0 and len(queries):
            search = getattr(self, f"_search_{self.kind}")
            scores[:, :depth], ids[:, :depth] = search(queries, depth, without)
            scores[ids < 0] = -np.inf
        return scores, ids

    def reach(self, k: int) -> int:
        """Return how many labels to propose so that nearly all of a query's k nearest are among them."""
        return _deep(_PROPOSED, k) if k and self.kind == "quantised" else k

    def propose(self, queries: np.ndarray, k: int, without: np.ndarray = NOTHING) -> np.ndarray:
        """Return labels that seem the nearest, int64 (n, k), as `search` would, but neither scored nor in order.

        For who scores them anyway: what `search` does beyond finding the best codes takes as long as that. Raises
        ValueError as `search` does.
        """
        if self.kind != "quantised" or self._few(depth := k + len(without)):
            return self.search(queries, k, without)[1]
        found = self.held.search(self._asked(queries, k), depth)[1]
        if not len(without):
            return found
        found[np.isin(found, without)] = -1
        return np.take_along_axis(found, np.argsort(found < 0, axis=1, kind="stable")[:, :k], 1)

    def _asked(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Return queries as they are searched with; raise as `search` does."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim or k < 1:
            raise ValueError(f"need queries (n, {self.dim}) and k >= 1, got {queries.shape} and k = {k}")
        _need_finite(queries, "query")
        return queries

    def _few(self, depth: int) -> bool:
        """Whether the labels are too few for codes: faiss leaves out some of the worst."""
        return 2 * depth > len(self)

    def _search_exact(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Search block by block, label blocks outside, so that a mapped file is read once; k labels are there."""
        asked = torch.from_numpy(queries)
        scores, ids = torch.full((len(asked), k), -torch.inf), torch.full((len(asked), k), -1)
        for first in range(0, len(self), _LABELS):
            block = self.vectors[first : first + _LABELS]
            plain = block.flags.writeable and block.dtype == np.float32
            labels = torch.from_numpy(block if plain else np.array(block, dtype=np.float32))
            left_out = torch.from_numpy(without[(without >= first) & (without < first + len(labels))] - first)
            for at in range(0, len(asked), _QUERIES):
                rows = slice(at, at + _QUERIES)
                products = (asked[rows] @ labels.T).index_fill_(1, left_out, -torch.inf)
                here, where = largest(products, min(k, len(labels)))
                both, order = torch.cat([scores[rows], here], 1).sort(dim=1, descending=True, stable=True)
                scores[rows] = both[:, :k]
                ids[rows] = torch.cat([ids[rows], where + first], 1).gather(1, order[:, :k])
        return scores.numpy(), ids.numpy()

    def _search_quantised(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Score exactly what has the best codes; each query by itself, so that its neighbours change no digit."""
        depth = _deep(_SCORED, k) + len(without)
        if self._few(depth):
            return self._search_exact(queries, k, without)
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        none = np.append(without, -1)
        for start in range(0, len(queries), _QUERIES):
            part = queries[start : start + _QUERIES]
            found = np.sort(self.held.search(part, depth)[1], axis=1)
            told = pair_scores(part, self.vectors, np.repeat(np.arange(len(part)), depth), np.maximum(found, 0).ravel())
            told = np.where(np.isin(found, none), -np.inf, told.reshape(found.shape))
            order = np.argsort(-told, axis=1, kind="stable")[:, :k]
            here = slice(start, start + len(part))
            scores[here], ids[here] = np.take_along_axis(told, order, 1), np.take_along_axis(found, order, 1)
        return scores, ids

    def _search_hnsw(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from faiss import IDSelectorBatch, IDSelectorNot, SearchParametersHNSW  # type: ignore[attr-defined]

        # given with the call, not set on the index, so that threads may search with different k
        depth = {"efSearch": max(self.ef_search, k)}
        params = SearchParametersHNSW(sel=IDSelectorNot(IDSelectorBatch(without)), **depth) if len(without) \
            else SearchParametersHNSW(**depth)
        return self.held.search(queries, k, params=params)

    def save(self, folder: Path) -> None:
        """Write index.json, vectors.npy but for HNSW, and what faiss holds to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.kind != "hnsw":
            np.save(folder / "vectors.npy", self.vectors, allow_pickle=False)
        if self.held is not None:
            import faiss

            faiss.write_index(self.held, str(folder / _FILES[self.kind]))
        about = {"kind": self.kind, "labels": len(self), "dim": self.dim, "ef_search": self.ef_search}
        (folder / "index.json").write_text(json.dumps(about))


def build(
    vectors: np.ndarray, kind: str = "auto", *, limit: int = EXACT_MAX_BATCH, m: int = 32, ef_construction: int = 200,
    ef_search: int = 200,
) -> Index:
    """Return an index over (L, d) float32 vectors, whose row numbers are label ids; "auto" goes by `limit`.

    All but HNSW keep the array itself, without a copy. The last settings are HNSW's; its graph differs from run to run
    when it is built by more than one thread. Raises ValueError for a wrong shape or vectors that are not finite.
    """
    if vectors.ndim != 2:
        raise ValueError(f"label vectors must be (L, d), got shape {vectors.shape}")
    _need_finite(vectors, "label vector")
    if (kind := choose(kind, len(vectors), limit)) != "hnsw":
        return Index(kind, vectors, _codes(vectors) if kind == "quantised" else None)
    import faiss

    graph = faiss.IndexHNSWFlat(vectors.shape[1], m, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = ef_construction
    if len(vectors):
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return _of_graph(graph, ef_search)


def _of_graph(graph: Any, ef_search: int) -> Index:
    """Return the index of an HNSW graph; its vectors are not copied, and live as long as it does."""
    import faiss

    store: Any = faiss.downcast_index(graph.storage)
    shape = (graph.ntotal, graph.d)
    vectors = faiss.rev_swig_ptr(store.get_xb(), graph.ntotal * graph.d).reshape(shape) if graph.ntotal else \
        np.empty(shape, np.float32)
    return Index("hnsw", vectors, graph, ef_search)


def codes_of(dim: int) -> int:
    """Return how many codes, of 4 bits each, a quantised index keeps of a vector."""
    return dim if dim <= _SINGLY or dim % 2 else dim // 2


def _codes(vectors: np.ndarray) -> Any:
    """Return a faiss index of codes of 4 bits for each dimension of the vectors, or for two where there are many."""
    import faiss

    d = vectors.shape[1]
    codes = faiss.IndexPQFastScan(d, codes_of(d), 4, faiss.METRIC_INNER_PRODUCT, _TOGETHER)
    codes.pq.cp.min_points_per_centroid = 1    # few vectors are repeated below; a warning would say what is known
    if len(vectors):
        few = len(vectors) < 2 ** codes.nbits
        codes.train(np.ascontiguousarray(np.resize(vectors, (2 ** codes.nbits, d)) if few else vectors, np.float32))
        for start in range(0, len(vectors), _LABELS):
            codes.add(np.ascontiguousarray(vectors[start : start + _LABELS], dtype=np.float32))
    return codes


def with_rows(index: Index, rows: np.ndarray, vectors: np.ndarray) -> Index:
    """Return the index with vectors (m, d) as its `rows` (m,): some of those there are, then the next ones.

    HNSW takes further vectors into its graph, by one thread, so that the same ones make the same graph. To change one
    that it holds, it is built again, as the other kinds are.
    """
    if index.kind != "hnsw":
        return build(put(index.vectors, rows, vectors), index.kind)
    import faiss

    n = len(index)
    if (rows < n).any():
        return build(put(index.vectors, rows, vectors), "hnsw", ef_search=index.ef_search)
    _need_finite(vectors, "label vector")
    # One that is mapped cannot grow; a copy can.
    graph = faiss.deserialize_index(faiss.serialize_index(index.held))
    with alone():
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return _of_graph(graph, index.ef_search)


def load(folder: Path) -> Index:
    """Map an index that `save` wrote.

    Raises ValueError naming the folder where a file is missing, cut or of another size.
    """
    try:
        about = json.loads((folder / "index.json").read_text())
        if (kind := choose(about["kind"], 0)) != "exact":
            import faiss

            held = faiss.read_index(str(folder / _FILES[kind]), faiss.IO_FLAG_MMAP_IFC)
        if kind == "hnsw":
            index = _of_graph(held, about["ef_search"])
        else:
            # mode "c" (private pages) rather than "r": torch takes only writable arrays without a copy
            vectors = np.load(folder / "vectors.npy", mmap_mode="c", allow_pickle=False).view(np.ndarray)
            index = Index(kind, vectors, None if kind == "exact" else held)
        if index.held is not None and (index.held.ntotal, index.held.d) != (len(index), index.dim):
            raise ValueError(f"{_FILES[kind]} is of ({index.held.ntotal}, {index.held.d}), the vectors are not")
        if (len(index), index.dim) != (about["labels"], about["dim"]):
            raise ValueError(f"holds ({len(index)}, {index.dim}), index.json says ({about['labels']}, {about['dim']})")
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is not a whole index: {error}; build it again") from error
    return index


def recall(found: np.ndarray, vectors: np.ndarray, queries: np.ndarray, k: int = 100) -> float:
    """Return the share, 0 to 1, of each query's k exact neighbours among labels `found` (n, S), averaged over queries.

    `vectors` are the very vectors that the index holds: classifier weights are not unit length, and recall on
    normalised ones says little. Raises ValueError where there is nothing to find.
    """
    if not len(vectors) or not len(queries) or len(found) != len(queries):
        sizes = f"{len(vectors)} vectors, {len(queries)} queries and what was found for {len(found)}"
        raise ValueError(f"recall needs vectors, and for each of some queries what was found, got {sizes}")
    wanted = Index("exact", vectors).search(queries, min(k, len(vectors)))[1]
    row = np.arange(len(queries))[:, None] * len(vectors)
    return float(among(wanted + row, np.sort((found + row)[found >= 0])).mean())


def _deep(rule: tuple[int, int], k: int) -> int:
    """Return how many of the best codes to take where k labels are wanted."""
    return max(rule[0] * k, rule[1])


def _need_finite(vectors: np.ndarray, name: str) -> None:
    for first in range(0, len(vectors), _LABELS):
        finite = np.isfinite(vectors[first : first + _LABELS]).all(axis=1)
        if not finite.all():
            raise ValueError(f"{name} {first + int(finite.argmin())} is not finite; look for a diverged model")
