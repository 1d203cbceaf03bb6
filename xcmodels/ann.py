"""Nearest labels by inner product: exact search, and an HNSW graph where there are too many labels for it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

KINDS = ("exact", "hnsw")
_QUERIES, _LABELS = 256, 32768  # scores held at once: 32 MB
NOTHING = np.zeros(0, dtype=np.int64)


def choose(kind: str, n_labels: int, limit: int = 200_000) -> str:
    """Return the index kind: `kind` itself, or for "auto" exact search up to `limit` labels and HNSW beyond.

    Measured on two CPU cores at 131K labels, d = 384: 10K queries took 16 s exactly; HNSW took 262 s to build and
    found .94 to .96 of the neighbours. Raises ValueError for another kind.
    """
    if kind == "auto":
        return "exact" if n_labels <= limit else "hnsw"
    if kind not in KINDS:
        raise ValueError(f"index kind must be auto, exact or hnsw, got {kind!r}")
    return kind


@dataclass(frozen=True)
class Index:
    """Label vectors to search by inner product; make it with `build` or `load`."""

    kind: str
    held: Any  # "exact": (L, d) array, maybe memory-mapped; "hnsw": a faiss index
    ef_search: int = 0

    def __len__(self) -> int:
        return len(self.held) if self.kind == "exact" else self.held.ntotal

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.held.shape[1] if self.kind == "exact" else self.held.d

    @property
    def vectors(self) -> np.ndarray:
        """The (L, d) float32 vectors that the index holds, not copied."""
        if self.kind == "exact":
            return self.held
        import faiss

        store: Any = faiss.downcast_index(self.held.storage)
        return faiss.rev_swig_ptr(store.get_xb(), len(self) * self.dim).reshape(len(self), self.dim)

    def search(self, queries: np.ndarray, k: int,
               without: np.ndarray = NOTHING) -> tuple[np.ndarray, np.ndarray]:
        """Return inner products float32 (n, k), largest first, and label ids int64 (n, k).

        `queries` is (n, d) float32; the ids `without` are not found. Where there are fewer than k labels (or HNSW finds
        fewer), the rest is -1 and -inf.
        Exact search gives equal scores by rising id. Raises ValueError for a wrong shape, k below 1 and for queries
        that are not finite.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim or k < 1:
            raise ValueError(f"need queries (n, {self.dim}) and k >= 1, got {queries.shape} and k = {k}")
        _need_finite(queries, "query")
        scores, ids = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        depth = min(k, len(self) - len(without))
        if depth > 0 and len(queries):
            search = self._search_exact if self.kind == "exact" else self._search_hnsw
            scores[:, :depth], ids[:, :depth] = search(queries, depth, without)
            scores[ids < 0] = -np.inf
        return scores, ids

    def _search_exact(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Search block by block, label blocks outside, so that a mapped file is read once; k labels are there."""
        asked = torch.from_numpy(queries)
        scores, ids = torch.full((len(asked), k), -torch.inf), torch.full((len(asked), k), -1)
        for first in range(0, len(self), _LABELS):
            block = self.held[first : first + _LABELS]
            plain = block.flags.writeable and block.dtype == np.float32
            labels = torch.from_numpy(block if plain else np.array(block, dtype=np.float32))
            left_out = torch.from_numpy(without[(without >= first) & (without < first + len(labels))] - first)
            for at in range(0, len(asked), _QUERIES):
                rows = slice(at, at + _QUERIES)
                here, where = _top((asked[rows] @ labels.T).index_fill_(1, left_out, -torch.inf), min(k, len(labels)))
                both, order = torch.cat([scores[rows], here], 1).sort(dim=1, descending=True, stable=True)
                scores[rows] = both[:, :k]
                ids[rows] = torch.cat([ids[rows], where + first], 1).gather(1, order[:, :k])
        return scores.numpy(), ids.numpy()

    def _search_hnsw(self, queries: np.ndarray, k: int, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from faiss import IDSelectorBatch, IDSelectorNot, SearchParametersHNSW  # type: ignore[attr-defined]

        # given with the call, not set on the index, so that threads may search with different k
        depth = {"efSearch": max(self.ef_search, k)}
        params = SearchParametersHNSW(sel=IDSelectorNot(IDSelectorBatch(without)), **depth) if len(without) \
            else SearchParametersHNSW(**depth)
        return self.held.search(queries, k, params=params)

    def save(self, folder: Path) -> None:
        """Write index.json and vectors.npy or hnsw.faiss to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "exact":
            np.save(folder / "vectors.npy", self.held, allow_pickle=False)
        else:
            import faiss

            faiss.write_index(self.held, str(folder / "hnsw.faiss"))
        about = {"kind": self.kind, "labels": len(self), "dim": self.dim, "ef_search": self.ef_search}
        (folder / "index.json").write_text(json.dumps(about))


def build(
    vectors: np.ndarray, kind: str = "auto", *, m: int = 32, ef_construction: int = 200, ef_search: int = 200
) -> Index:
    """Return an index over (L, d) float32 vectors, whose row numbers are label ids.

    Exact search keeps the array itself, without a copy. The other settings are HNSW's; its graph differs from run to
    run when it is built by more than one thread. Raises ValueError for a wrong shape or vectors that are not finite.
    """
    if vectors.ndim != 2:
        raise ValueError(f"label vectors must be (L, d), got shape {vectors.shape}")
    _need_finite(vectors, "label vector")
    if choose(kind, len(vectors)) == "exact":
        return Index("exact", vectors)
    import faiss

    graph = faiss.IndexHNSWFlat(vectors.shape[1], m, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = ef_construction
    if len(vectors):
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return Index("hnsw", graph, ef_search)


def with_rows(index: Index, rows: np.ndarray, vectors: np.ndarray) -> Index:
    """Return the index with vectors (m, d) as its `rows` (m,): some of those there are, then the next ones.

    HNSW takes further vectors into its graph, by one thread, so that the same ones make the same graph. To change one
    that it holds, it is built again.
    """
    if index.kind == "exact":
        return build(put(index.vectors, rows, vectors), "exact")
    import faiss

    n = len(index)
    if (rows < n).any():
        return build(put(index.vectors, rows, vectors), "hnsw", ef_search=index.ef_search)
    _need_finite(vectors, "label vector")
    # One that is mapped cannot grow; a copy can.
    graph = faiss.deserialize_index(faiss.serialize_index(index.held))
    threads = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(1)
        graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    return Index("hnsw", graph, index.ef_search)


def put(matrix: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a copy of the matrix with `values` as its `rows`: some of those there are, then the next ones."""
    shape = (max(len(matrix), int(rows.max(initial=-1)) + 1), *matrix.shape[1:])
    out = np.empty(shape, dtype=matrix.dtype)
    out[:len(matrix)] = matrix
    out[rows] = values
    return out


def load(folder: Path) -> Index:
    """Map an index that `save` wrote.

    Raises ValueError naming the folder where a file is missing, cut or of another size.
    """
    try:
        about = json.loads((folder / "index.json").read_text())
        if choose(about["kind"], 0) == "exact":
            # mode "c" (private pages) rather than "r": torch takes only writable arrays without a copy
            index = Index("exact", np.load(folder / "vectors.npy", mmap_mode="c", allow_pickle=False).view(np.ndarray))
        else:
            import faiss

            graph = faiss.read_index(str(folder / "hnsw.faiss"), faiss.IO_FLAG_MMAP_IFC)
            index = Index("hnsw", graph, about["ef_search"])
        if (len(index), index.dim) != (about["labels"], about["dim"]):
            raise ValueError(f"holds ({len(index)}, {index.dim}), index.json says ({about['labels']}, {about['dim']})")
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is not a whole index: {error}; build it again") from error
    return index


def recall(index: Index, exact_vectors: np.ndarray, queries: np.ndarray, k: int = 100) -> float:
    """Return the share, 0 to 1, of each query's k exact neighbours that the index finds, averaged over queries.

    `exact_vectors` are the very vectors that the index holds: classifier weights are not unit length, and recall on
    normalised ones says little. Raises ValueError where their number differs, and where there is nothing to find.
    """
    if len(exact_vectors) != len(index) or not len(index) or not len(queries):
        sizes = f"{len(exact_vectors)} vectors, an index of {len(index)} and {len(queries)} queries"
        raise ValueError(f"recall needs the vectors that the index holds and some queries, got {sizes}")
    k = min(k, len(index))
    wanted, found = Index("exact", exact_vectors).search(queries, k)[1], index.search(queries, k)[1]
    row = np.arange(len(queries))[:, None] * len(index)
    return float(np.isin(wanted + row, (found + row)[found >= 0]).mean())


def _top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest of each row and their columns, equal ones by rising column."""
    # One more than asked for tells where the cut falls between equal scores: there topk may have taken any of them.
    values, columns = scores.topk(min(k + 1, scores.shape[1]))
    cut = values[:, -1] == values[:, -2] if values.shape[1] > k else torch.zeros(0, dtype=torch.bool)
    columns = columns[:, :k]
    for row in torch.nonzero(cut).ravel().tolist():
        last = values[row, k]
        above, equal = torch.nonzero(scores[row] > last).ravel(), torch.nonzero(scores[row] == last).ravel()
        columns[row] = torch.cat([above, equal[: k - len(above)]])
    columns = columns.sort(1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def _need_finite(vectors: np.ndarray, name: str) -> None:
    for first in range(0, len(vectors), _LABELS):
        finite = np.isfinite(vectors[first : first + _LABELS]).all(axis=1)
        if not finite.all():
            raise ValueError(f"{name} {first + int(finite.argmin())} is not finite; look for a diverged model")
