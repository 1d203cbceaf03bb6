"""From texts to labels: embed -> shortlist from the indexes -> combine the scores.

A retriever is one folder without a pickle in it: `encoder/`, `tokenizer/`, `index/<name>/`, what the combination of
scores needs beside the indexes, `examples/` of training texts, `label.*` texts, `removed.npy` (ids of labels that
are predicted no more), `trained.npy` (`xcmodels.data.seen_texts`) and `retriever.json`. What is large is mapped.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seen_texts
from xcmodels.data.corpus import Corpus, Side, Texts
from xcmodels.data.tokens import Tokenizer, Tokens
from xcmodels.nn.encoders import QUERY, Encoder, load_encoder, save_encoder
from xcmodels.retrieval import ann, inner_products
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.explain import Examples, Explained, Near, save_examples
from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.proposers import Proposer, best_of, candidates
from xcmodels.retrieval.scorers import Combine, InnerProduct

FORMAT = 8
BLOCK = 64         # texts ranked by one thread at a time: what it gathers for them stays in cache
SCORERS: Mapping[str, type[InnerProduct] | type[TreeFusion] | type[CentroidMix]] = {
    each.kind: each for each in (InnerProduct, TreeFusion, CentroidMix)}


@dataclass(frozen=True)
class Label:
    """One predicted label: `id` is its line in the label file, counted from 0."""

    id: int
    uid: str
    text: str
    score: float


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
        self.one = self.encoder.plain(QUERY)
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.removed = np.load(folder / "removed.npy")
        self.proposers = {name: Proposer.load(folder / "index" / name, self.removed) for name in self.facts["indexes"]}
        self.indexes = {name: proposer.index for name, proposer in self.proposers.items()}
        self.combine = SCORERS[self.facts["combine"]].load(folder, self.indexes)
        self.examples = Examples.load(folder / "examples")
        self.uids, self.titles = Texts.load(folder, "label.uid"), Texts.load(folder, "label.title")
        self.trained = seen_texts.load(folder)    # digests of the training texts; None where that is not known

    @classmethod
    def load(cls, folder: Path | str) -> "Retriever":
        """Open the retriever in `folder`; its matrices are mapped, not read."""
        return cls(Path(folder))

    def __repr__(self) -> str:
        return f"Retriever({self.facts['method']} on {self.facts['data']}, {len(self):,} labels)"

    def __len__(self) -> int:
        """The number of labels that it predicts; removed ones keep their ids, but are none of these."""
        return len(self.uids) - len(self.removed)

    def embed(self, texts: Tokens | Sequence[str], contents: Sequence[str] | None = None) -> np.ndarray:
        """Return the query vectors (n, d) float32 of n texts, tokenised or not; contents as `predict` takes them.

        Raises ValueError for a single text where a list is meant.
        """
        tokens = texts if isinstance(texts, Tokens) else self._tokens(texts, contents)
        if len(tokens) == 1 and self.one is not None:
            return self.one(tokens)
        with torch.inference_mode():
            return self.encoder(tokens, QUERY).numpy()

    def search(self, tokens: Tokens, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids (n, k) int64, scores (n, k) float32) of n query texts, best first, -1 / -inf padded."""
        queries = self.embed(tokens)
        blocks = [slice(start, start + BLOCK) for start in range(0, len(tokens), BLOCK)]
        if len(blocks) <= 1:
            return self._rank(queries, tokens, k)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            ranked = list(pool.map(lambda block: self._rank(queries[block], tokens.part(block), k), blocks))
        ids, scores = zip(*ranked, strict=True)
        return np.concatenate(ids), np.concatenate(scores)

    def _rank(self, queries: np.ndarray, tokens: Tokens, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `search` does for a block of texts, whose vectors are `queries`."""
        with inner_products.alone():
            found = candidates(self.proposers.values(), queries, self.facts["shortlist"], k)
            scores = self.combine(queries, found, tokens)
            finite("a score", scores[found >= 0])
            ids, scores = best_of(found, scores, k)
        if (missing := k - ids.shape[1]) > 0:
            room = (0, 0), (0, missing)
            ids, scores = np.pad(ids, room, constant_values=-1), np.pad(scores, room, constant_values=-np.inf)
        return ids, scores

    def search_side(self, side: Side, k: int, rows: np.ndarray | None = None,
                    chunk: int = 1024) -> tuple[np.ndarray, np.ndarray]:
        """Return what `search` does for a whole side of a corpus, or `rows` of it, `chunk` texts at a time."""
        rows = np.arange(len(side)) if rows is None else rows
        ids, scores = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            ids[part], scores[part] = self.search(side.tokens(rows[part]), k)
        return ids, scores

    def predict(self, texts: Sequence[str], k: int = 10, contents: Sequence[str] | None = None) -> list[list[Label]]:
        """Return the best `k` labels of each text, best first.

        contents: a longer text a query, where queries have titles and contents.
        Raises ValueError for k < 1 and for a single text where a list is meant.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids, scores = self.search(self._tokens(texts, contents), min(k, len(self)))
        there = ids >= 0
        labels = map(Label, ids[there].tolist(), self.uids.take(ids[there]), self.titles.take(ids[there]),
                     (round(score, 6) for score in scores[there].tolist()))
        return [list(islice(labels, count)) for count in there.sum(1).tolist()]

    def _tokens(self, texts: Sequence[str], contents: Sequence[str] | None) -> Tokens:
        if isinstance(texts, str):
            raise ValueError("texts must be a list of texts, got one text; write [text]")
        return self.tokenizer(texts, contents)

    def explain(self, text: str, labels: Sequence[Label], nearest: int = 3, content: str = "") -> list[Explained]:
        """Return why each of the labels that `predict` gave a text fits it.

        nearest: the most training texts of a label that are shown. The parts are those of the text asked about alone:
        among others, sums differ in their last digit, and at a threshold of a tree by the trees' part.
        Raises ValueError for a label of another retriever.
        """
        ids = np.array([label.id for label in labels], dtype=np.int64)
        if (strange := ids[(ids < 0) | (ids >= len(self.uids))]).size:
            raise ValueError(f"there is no label {strange[0]} among {len(self.uids)}; explain what this retriever said")
        if not len(ids):
            return []
        tokens = self.tokenizer([text], [content])
        query = self.embed(tokens)
        parts = self.combine.parts(query, tokens, np.zeros(len(ids), np.int64), ids)
        for name, part in parts.items():
            finite(f"the part {name!r} of a score", part)
        near = self.examples.nearest(query[0], ids, nearest, self.embed)
        return [Explained({name: round(float(part[at]), 6) for name, part in parts.items()},
                          int(self.examples.counts[label]), [self._near(*each) for each in near[at]])
                for at, label in enumerate(ids)]

    def _near(self, number: int, cosine: float) -> Near:
        labels = np.setdiff1d(self.examples.labels[number], self.removed)
        return Near(self.examples.texts[number], round(cosine, 6), [self.titles[label] for label in labels])


def finite(what: str, values: np.ndarray) -> None:
    """Raise FloatingPointError for a number that is not finite: it would be told as none at all."""
    if not np.isfinite(values).all():
        raise FloatingPointError(f"{what} is not finite; look for a diverged model or a damaged file")


def save_retriever(out: Path, corpus: Corpus, *, method: str, encoder: Encoder, indexes: Mapping[str, Proposer],
                   shortlist: int, scores: Combine) -> None:
    """Write everything that `Retriever.load` needs to `out`, an empty folder.

    shortlist: labels that each index proposes for a query, to be ranked by `scores`.
    """
    save_encoder(encoder, out / "encoder")
    shutil.copytree(corpus.folder / "tokenizer", out / "tokenizer")
    for name, index in indexes.items():
        index.save(out / "index" / name)
    scores.save(out)
    save_examples(corpus, out / "examples")
    np.save(out / "removed.npy", ann.NOTHING)
    np.save(out / seen_texts.FILE, seen_texts.trained_on(corpus))
    for part in ("label.uid", "label.title"):
        for half in ("offsets", "values"):
            shutil.copy(corpus.folder / f"{part}.{half}.npy", out)
    facts = {"format": FORMAT, "method": method, "data": corpus.name, "shortlist": shortlist,
             "labels": corpus.n_labels, "indexes": list(indexes), "combine": scores.kind, "trained": True}
    (out / "retriever.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
