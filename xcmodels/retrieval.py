"""From texts to labels: embed -> shortlist from the indexes -> combine the scores.

A retriever is one folder without a pickle in it: `encoder/`, `tokenizer/`, `index/<name>/`, `fusion.npz`,
`embeddings.npy`, `frequencies.npy`, `label.*` texts and `retriever.json`. What is large is mapped on load.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from xcmodels import ann
from xcmodels.corpus import Corpus, Texts
from xcmodels.encoders import QUERY, Encoder, EncoderConfig, load_encoder, save_encoder
from xcmodels.fusion import RegressionTree
from xcmodels.tokens import Tokenizer

FORMAT = 1


@dataclass(frozen=True)
class Label:
    """One predicted label: `id` is its line in the label file, counted from 0."""

    id: int
    uid: str
    text: str
    score: float


@dataclass(frozen=True)
class TreeFusion:
    """NGAME's fused score: T(z^T x, w^T x, f) + z^T x + w^T x (Appendix C)."""

    tree: RegressionTree
    embeddings: np.ndarray     # (L, d), z
    classifiers: np.ndarray    # (L, d), w
    frequencies: np.ndarray    # (L,) float32, f

    def __call__(self, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the scores (n, S) of label ids (n, S), -inf where an id is -1."""
        rows, slots = np.nonzero(ids >= 0)
        labels = ids[rows, slots]
        similar = pair_scores(queries, self.embeddings, rows, labels)
        classified = pair_scores(queries, self.classifiers, rows, labels)
        fused = self.tree.predict(np.stack([similar, classified, self.frequencies[labels]], axis=1))
        scores = np.full(ids.shape, -np.inf, dtype=np.float32)
        scores[rows, slots] = fused + similar + classified
        return scores


def pair_scores(queries: np.ndarray, matrix: np.ndarray, rows: np.ndarray, labels: np.ndarray,
                chunk: int = 1 << 16) -> np.ndarray:
    """Return queries[rows] . matrix[labels], (p,) float32, gathering `chunk` pairs at a time."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        out[part] = np.einsum("pd,pd->p", queries[rows[part]], matrix[labels[part]])
    return out


def candidates(indexes: Iterable[ann.Index], queries: np.ndarray, shortlist: int) -> np.ndarray:
    """Return the union of every index's best `shortlist` labels a query, (n, S) int64, -1 for a repetition."""
    ids = np.sort(np.concatenate([index.search(queries, shortlist)[1] for index in indexes], axis=1), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    return ids


class Retriever:
    """Tags texts with the best of its labels.

    >>> retriever = Retriever.load(Path("retriever"))
    >>> retriever.predict(["a member of the genus Canis"], k=5)
    """

    def __init__(self, folder: Path) -> None:
        self.facts = json.loads((folder / "retriever.json").read_text())
        if self.facts["format"] != FORMAT:
            raise ValueError(f"{folder} is a retriever of format {self.facts['format']}, this version reads {FORMAT}; "
                             "install the version of xcflow that made it")
        self.encoder: Encoder = load_encoder(folder / "encoder").eval()
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.indexes = {"classifier": ann.load(folder / "index" / "classifier")}
        self.combine = TreeFusion(RegressionTree.load(folder / "fusion.npz"),
                                  np.load(folder / "embeddings.npy", mmap_mode="r"),
                                  self.indexes["classifier"].vectors,
                                  np.load(folder / "frequencies.npy", mmap_mode="r"))
        self.uids, self.titles = Texts.load(folder, "label.uid"), Texts.load(folder, "label.title")

    @classmethod
    def load(cls, folder: Path | str) -> "Retriever":
        """Open the retriever in `folder`; its matrices are mapped, not read."""
        return cls(Path(folder))

    def __repr__(self) -> str:
        return f"Retriever({self.facts['method']} on {self.facts['data']}, {len(self.uids):,} labels)"

    def embed(self, titles: Sequence[str], contents: Sequence[str] | None = None) -> np.ndarray:
        """Return (n, d) float32 unit vectors of query texts."""
        tokens = self.tokenizer(titles, contents or [""] * len(titles))
        with torch.no_grad():
            return self.encoder(tokens, QUERY).numpy()

    def search(self, queries: np.ndarray, k: int, chunk: int = 1024) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids (n, k) int64, scores (n, k) float32) of query vectors (n, d), best first, -1 / -inf padded."""
        ids = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), chunk):
            part = queries[start:start + chunk]
            found = candidates(self.indexes.values(), part, max(self.facts["shortlist"], k))
            best, of = _best(found, self.combine(part, found), k)
            rows = slice(start, start + len(part))
            ids[rows, :best.shape[1]], scores[rows, :best.shape[1]] = best, of
        return ids, scores

    def predict(self, texts: Sequence[str], k: int = 10, contents: Sequence[str] | None = None) -> list[list[Label]]:
        """Return the best `k` labels of each text, best first.

        contents: a longer text a query, where queries have titles and contents.
        Raises ValueError for k < 1 and for a single text where a list is meant.
        """
        if isinstance(texts, str):
            raise ValueError("texts must be a list of texts, got one text; write predict([text])")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids, scores = self.search(self.embed(texts, contents), min(k, len(self.uids)))
        return [[Label(int(i), self.uids[i], self.titles[i], round(float(s), 6)) for i, s in zip(row, of, strict=True)
                 if i >= 0] for row, of in zip(ids, scores, strict=True)]


def _best(ids: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each row, or all where there are fewer; equal scores in the order of label ids."""
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


def save_retriever(out: Path, corpus: Corpus, *, encoder: Encoder, config: EncoderConfig, index: ann.Index,
                   shortlist: int, fusion: TreeFusion) -> None:
    """Write everything that `Retriever.load` needs to `out`, an empty folder."""
    save_encoder(encoder, config, out / "encoder")
    shutil.copytree(corpus.folder / "tokenizer", out / "tokenizer")
    index.save(out / "index" / "classifier")
    np.save(out / "embeddings.npy", fusion.embeddings)
    fusion.tree.save(out / "fusion.npz")
    np.save(out / "frequencies.npy", fusion.frequencies)
    for part in ("label.uid", "label.title"):
        for half in ("offsets", "values"):
            shutil.copy(corpus.folder / f"{part}.{half}.npy", out)
    facts = {"format": FORMAT, "method": "ngame", "data": corpus.name, "shortlist": shortlist,
             "labels": corpus.n_labels}
    (out / "retriever.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
