"""Nearest labels by inner product: exact search, quantised codes, and HNSW.

- exact: scores every label, a block of labels and a batch of queries at a time.
- quantised: scans 4-bit codes of a dimension, or of two, in the processor's registers (faiss' fast scan); the labels
  of the best codes are proposed to a scorer, or rescored exactly, four for each label that is returned.
- hnsw: walks a graph of neighbours; the only kind whose search is sublinear in the labels, but slow to build.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.retrieval.inner_products import largest, pair_scores, put, single_threaded
from xcmodels.retrieval.vector_codes import codes_index

KINDS = ("exact", "quantised", "hnsw")
CHOICES = ("auto", *KINDS, "grouped")    # values of the setting `index`; "grouped" only mines: a retriever takes "auto"
EXACT_MAX = 20_000                # labels that are searched exactly, unless a setting says otherwise
_QUERIES, _LABELS = 256, 32768    # scores held at once: 32 MB
_PROPOSED, _RESCORED = (2, 100), (4, 200)    # best codes that are proposed, or rescored: per label returned, at least
_SPARE, _DEEPER = 50, 4           # where labels are left out: results to spare; factor on the depth if too few are left
_M, _EF_CONSTRUCTION, _EF_SEARCH = 32, 200, 200    # of HNSW: links of a label; labels kept while it builds or searches
_FILES = {"quantised": "codes.faiss", "hnsw": "hnsw.faiss"}
NO_IDS = np.zeros(0, dtype=np.int64)


def choose(kind: str, n_labels: int) -> str:
    """Return the index kind: `kind` itself, or for "auto" exact search up to EXACT_MAX labels and quantised beyond.

    WordNet, 67,892 labels, d = 384, k = 100, one thread: one query took 16.2 ms exactly, 0.7 ms quantised (99.9% of the
    neighbours found, built in 2 s), 1.5 ms by HNSW (97.3%, 89 s); of 600 at once each took 1.4, 0.7 and 1.4 ms.
    Raises ValueError for another kind.
    """
    if kind in ("auto", "grouped"):
        return "exact" if n_labels <= EXACT_MAX else "quantised"
    if kind not in KINDS:
        raise ValueError(f"index must be one of {', '.join(CHOICES)}, got {kind!r}")
    return kind


@dataclass(frozen=True)
class Index:
    """Label vectors to search by inner product; make it with `build` or `load`."""

    kind: str
    vectors: np.ndarray    # (L, d) float32, maybe memory-mapped; HNSW's are in its graph
    faiss_index: Any = None    # "quantised": of the codes; "hnsw": the graph

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def search(self, queries: np.ndarray, k: int,
               without: np.ndarray = NO_IDS) -> tuple[np.ndarray, np.ndarray]:
        """Return inner products float32 (n, k), largest first, and label ids int64 (n, k).

        `queries` is (n, d) float32; the ids `without`, which ascend, are left out, and the next nearest take their
        places. Where there are fewer than k labels (or HNSW finds fewer), the rest is -1 and -inf. Equal scores are in
        ascending order of id, except with HNSW.
        Raises ValueError for a wrong shape, k below 1 and for queries that are not finite.
        """
        queries = self._checked(queries, k)
        scores, ids = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        depth = min(k, len(self) - len(without))
        if depth > 0 and len(queries):
            search = {"exact": self._search_exact, "quantised": self._search_quantised, "hnsw": self._search_faiss}
            scores[:, :depth], ids[:, :depth] = search[self.kind](queries, depth, without)
            scores[ids < 0] = -np.inf
        return scores, ids

    def depth_for(self, k: int) -> int:
        """Return how many labels to propose so that they include nearly all of a query's k nearest."""
        return _depth(_PROPOSED, k) if k and self.kind == "quantised" else k

    def propose(self, queries: np.ndarray, k: int, without: np.ndarray = NO_IDS) -> np.ndarray:
        """Return labels that are probably the nearest, int64 (n, k), unordered and without scores.

        For callers that score them anyway: scoring and sorting double the time of `search`. Raises ValueError as
        `search` does.
        """
        if self.kind != "quantised" or self._too_few(k, without):
            return self.search(queries, k, without)[1]
        return self._search_faiss(self._checked(queries, k), k, without)[1]

    def _checked(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Return contiguous float32 queries; raise ValueError as `search` does."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim or k < 1:
            raise ValueError(f"need queries (n, {self.dim}) and k >= 1, got {queries.shape} and k = {k}")
        need_finite(queries, "query")
        return queries

    def _too_few(self, depth: int, without: np.ndarray = NO_IDS) -> bool:
        """Return whether there are too few labels for codes: faiss then leaves out some of the worst."""
        return 2 * depth > len(self) - len(without)

    def _search_faiss(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and ids (n, k) of the best that faiss finds, in its order; for codes, scores of the codes.

        faiss cannot skip labels, so more than k are searched and those left out dropped: as many as suffice where they
        are spread at random, then for queries short of k four times as many, and exactly from half of the labels on.
        """
        if not len(without):
            return self._call_faiss(queries, k)
        out = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        rows, depth = np.arange(len(queries)), -(-k * len(self) // (len(self) - len(without))) + _SPARE
        while len(rows) and not self._too_few(depth):
            found = self._call_faiss(queries[rows], depth)
            kept = (found[1] >= 0) & ~isin_sorted(found[1], without)
            enough = kept.sum(1) >= k
            first = np.argsort(~kept[enough], axis=1, kind="stable")[:, :k]
            out[0][rows[enough]], out[1][rows[enough]] = (np.take_along_axis(each[enough], first, 1) for each in found)
            rows, depth = rows[~enough], _DEEPER * depth
        if len(rows):
            out[0][rows], out[1][rows] = self._search_exact(queries[rows], k, without)
        return out

    def _call_faiss(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what faiss finds among all labels, scores and ids (n, k)."""
        from faiss import SearchParametersHNSW  # type: ignore[attr-defined]

        # passed with the call, not set on the index, so that threads may search with different k
        params = SearchParametersHNSW(efSearch=max(_EF_SEARCH, k)) if self.kind == "hnsw" else None
        scores, ids = self.faiss_index.search(queries, k, params=params)
        if self.kind == "quantised" and (lost := np.flatnonzero(ids[:, -1] < 0)).size:
            scores[lost], ids[lost] = 0, np.arange(k)    # by a vector of zeros all score alike, and faiss finds none
        return scores, ids

    def _search_exact(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Search with label blocks in the outer loop, so that a mapped file is read once; k <= labels - excluded."""
        batch = torch.from_numpy(queries)
        scores, ids = torch.full((len(batch), k), -torch.inf), torch.full((len(batch), k), -1)
        for first in range(0, len(self), _LABELS):
            block = self.vectors[first : first + _LABELS]
            shareable = block.flags.writeable and block.dtype == np.float32
            labels = torch.from_numpy(block if shareable else np.array(block, dtype=np.float32))
            excluded = torch.from_numpy(without[(without >= first) & (without < first + len(labels))] - first)
            for start in range(0, len(batch), _QUERIES):
                rows = slice(start, start + _QUERIES)
                products = (batch[rows] @ labels.T).index_fill_(1, excluded, -torch.inf)
                top, columns = largest(products, min(k, len(labels)))
                merged, order = torch.cat([scores[rows], top], 1).sort(dim=1, descending=True, stable=True)
                scores[rows] = merged[:, :k]
                ids[rows] = torch.cat([ids[rows], columns + first], 1).gather(1, order[:, :k])
        return scores.numpy(), ids.numpy()

    def _search_quantised(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rescore the labels of the best codes exactly; other queries in the batch change no digit of a score."""
        depth = _depth(_RESCORED, k)
        if self._too_few(depth, without):
            return self._search_exact(queries, k, without)
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), _QUERIES):
            part = queries[start : start + _QUERIES]
            shortlist = np.sort(self._search_faiss(part, depth, without)[1], axis=1)
            exact = pair_scores(part, self.vectors, np.repeat(np.arange(len(part)), depth),
                                np.maximum(shortlist, 0).ravel())
            exact = np.where(shortlist < 0, -np.inf, exact.reshape(shortlist.shape))
            order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
            rows = slice(start, start + len(part))
            scores[rows], ids[rows] = np.take_along_axis(exact, order, 1), np.take_along_axis(shortlist, order, 1)
        return scores, ids

    def save(self, folder: Path) -> None:
        """Write index.json, vectors.npy (except for HNSW) and the faiss index to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.kind != "hnsw":
            np.save(folder / "vectors.npy", self.vectors, allow_pickle=False)
        if self.faiss_index is not None:
            import faiss

            faiss.write_index(self.faiss_index, str(folder / _FILES[self.kind]))
        facts = {"kind": self.kind, "labels": len(self), "dim": self.dim}
        (folder / "index.json").write_text(json.dumps(facts))


def build(vectors: np.ndarray, kind: str = "auto") -> Index:
    """Return an index over (L, d) float32 vectors, whose row numbers are label ids, of the kind that `choose` returns.

    All kinds but HNSW keep the array itself, without a copy. HNSW's graph differs from run to run when it is built by
    several threads. Raises ValueError for a wrong shape or vectors that are not finite.
    """
    if vectors.ndim != 2:
        raise ValueError(f"label vectors must be (L, d), got shape {vectors.shape}")
    need_finite(vectors, "label vector")
    if (kind := choose(kind, len(vectors))) != "hnsw":
        return Index(kind, vectors, codes_index(vectors) if kind == "quantised" else None)
    import faiss

    graph = faiss.IndexHNSWFlat(vectors.shape[1], _M, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = _EF_CONSTRUCTION
    if len(vectors):
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return _hnsw_index(graph)


def _hnsw_index(graph: Any) -> Index:
    """Return the index of an HNSW graph; its vectors are a view, valid as long as the graph lives."""
    import faiss

    store: Any = faiss.downcast_index(graph.storage)
    shape = (graph.ntotal, graph.d)
    vectors = faiss.rev_swig_ptr(store.get_xb(), graph.ntotal * graph.d).reshape(shape) if graph.ntotal else \
        np.empty(shape, np.float32)
    return Index("hnsw", vectors, graph)


def with_rows(index: Index, rows: np.ndarray, vectors: np.ndarray) -> Index:
    """Return the index with vectors (m, d) at `rows` (m,): existing rows are replaced, the next ones added.

    HNSW adds vectors to its graph, in one thread, so that the same vectors make the same graph. To replace one, it is
    rebuilt, as the other kinds always are.
    """
    if index.kind != "hnsw" or (rows < len(index)).any():
        return build(put(index.vectors, rows, vectors), index.kind)
    import faiss

    need_finite(vectors, "label vector")
    # a mapped graph cannot grow; a copy can
    graph = faiss.deserialize_index(faiss.serialize_index(index.faiss_index))
    with single_threaded():
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return _hnsw_index(graph)


def load(folder: Path) -> Index:
    """Map an index that `save` wrote.

    Raises ValueError naming the folder where a file is missing, cut or of another size.
    """
    try:
        facts = json.loads((folder / "index.json").read_text())
        if (kind := choose(facts["kind"], 0)) != "exact":
            import faiss

            faiss_index = faiss.read_index(str(folder / _FILES[kind]), faiss.IO_FLAG_MMAP_IFC)
        if kind == "hnsw":
            index = _hnsw_index(faiss_index)
        else:
            # mode "c" (private pages), not "r": torch shares only writable arrays without a copy
            vectors = np.load(folder / "vectors.npy", mmap_mode="c", allow_pickle=False).view(np.ndarray)
            index = Index(kind, vectors, None if kind == "exact" else faiss_index)
        codes = index.faiss_index
        if codes is not None and (codes.ntotal, codes.d) != (len(index), index.dim):
            raise ValueError(f"{_FILES[kind]} is of ({codes.ntotal}, {codes.d}), the vectors are not")
        if (len(index), index.dim) != (facts["labels"], facts["dim"]):
            raise ValueError(f"holds ({len(index)}, {index.dim}), index.json says ({facts['labels']}, {facts['dim']})")
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is not a whole index: {error}; build it again") from error
    return index


def recall(found: np.ndarray, vectors: np.ndarray, queries: np.ndarray, k: int = 100) -> float:
    """Return the share, 0 to 1, of each query's k exact neighbours among labels `found` (n, S), averaged over queries.

    `vectors` must be those of the index: classifier weights are not unit length, and recall on normalised ones says
    little. Raises ValueError where there is nothing to find.
    """
    if not len(vectors) or not len(queries) or len(found) != len(queries):
        sizes = f"{len(vectors)} vectors, {len(queries)} queries and what was found for {len(found)}"
        raise ValueError(f"recall needs vectors, and for each of some queries what was found, got {sizes}")
    exact = Index("exact", vectors).search(queries, min(k, len(vectors)))[1]
    row_key = np.arange(len(queries))[:, None] * len(vectors)
    return float(isin_sorted(exact + row_key, np.sort((found + row_key)[found >= 0])).mean())


def _depth(rule: tuple[int, int], k: int) -> int:
    return max(rule[0] * k, rule[1])


def need_finite(vectors: np.ndarray, name: str) -> None:
    """Raise ValueError naming the first of the vectors (n, d), each called `name`, that is not finite."""
    for first in range(0, len(vectors), _LABELS):
        finite = np.isfinite(vectors[first : first + _LABELS]).all(axis=1)
        if not finite.all():
            raise ValueError(f"{name} {first + int(finite.argmin())} is not finite; look for a diverged model")
