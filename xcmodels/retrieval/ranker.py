"""From texts to ranked label ids: embed, propose candidates, score."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seen_texts
from xcmodels.data.corpus import Corpus, Ragged, Side, Texts, mapped
from xcmodels.data.tokens import Tokenizer, Tokens
from xcmodels.nn.encoders import QUERY, Encoder, load_encoder
from xcmodels.predictions import drop_filtered
from xcmodels.retrieval.calibration import Calibration
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.folder import REMOVED, read_facts
from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.inner_products import single_threaded
from xcmodels.retrieval.lexicon import ReadTexts
from xcmodels.retrieval.proposers import Proposer, Selection, best_of, candidates
from xcmodels.retrieval.scorers import InnerProduct, Scorer

SCORERS: Mapping[str, type[InnerProduct] | type[TreeFusion] | type[CentroidMix]] = {
    scorer.kind: scorer for scorer in (InnerProduct, TreeFusion, CentroidMix)}
CHUNK = 1024       # texts embedded at once
BLOCK = 64         # texts ranked by one thread at a time, so that their data stays in cache


class Ranker:
    """Ranks labels for texts by a retriever's folder; its matrices are mapped, not read."""

    def __init__(self, folder: Path) -> None:
        self.facts = read_facts(folder)
        self.encoder: Encoder = load_encoder(folder / "encoder").eval()
        self.embed_one = self.encoder.in_numpy(QUERY)    # without torch; None where the backbone cannot
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.removed = np.load(folder / REMOVED)
        self.proposers = {name: Proposer.load(folder / "index" / name, self.removed)
                          for name in self.facts["proposers"]}
        self.indexes = {name: proposer.index for name, proposer in self.proposers.items()}
        self.scorer: Scorer = SCORERS[self.facts["scorer"]].load(folder, self.indexes)
        self.calibration = Calibration.load(folder)
        self.uids = Texts.load(folder, "label.uid")
        self.everything = Selection(self.removed, len(self), self.proposers)
        self.training_digests = mapped(folder / seen_texts.FILE)
        self.label_digests = mapped(folder / seen_texts.OF_LABELS)

    def __len__(self) -> int:
        """The number of labels that it predicts; removed ones keep their ids, but do not count."""
        return len(self.uids) - len(self.removed)

    def embed(self, texts: Tokens | Sequence[str], contents: Sequence[str] | None = None) -> np.ndarray:
        """Return the query vectors (n, d) float32 of n texts, tokenised or not; contents as `predict` takes them.

        Raises ValueError for a single text where a list is meant.
        """
        tokens = texts if isinstance(texts, Tokens) else self._tokens(texts, contents)
        if len(tokens) == 1 and self.embed_one is not None:
            return self.embed_one(tokens)
        with torch.inference_mode():
            return self.encoder(tokens, QUERY).numpy()

    def search(self, tokens: Tokens, k: int, selection: Selection | None = None,
               queries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids (n, k) int64, scores (n, k) float32) of n query texts, best first, -1 / -inf padded.

        selection: the labels to choose from, by default all but removed ones. queries: what `embed` returns, if known.
        """
        queries = self.embed(tokens) if queries is None else queries
        selection = selection or self.everything
        blocks = [slice(start, start + BLOCK) for start in range(0, len(tokens), BLOCK)]
        read = self.scorer.read(tokens)
        if len(blocks) <= 1:
            return self._rank(queries, read, k, selection)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            ranked = list(pool.map(lambda block: self._rank(queries[block], read.part(block), k, selection), blocks))
        ids, scores = zip(*ranked, strict=True)
        return np.concatenate(ids), np.concatenate(scores)

    def _rank(self, queries: np.ndarray, tokens: ReadTexts, k: int,
              selection: Selection) -> tuple[np.ndarray, np.ndarray]:
        """Return what `search` returns, for a block of texts with vectors `queries`."""
        with single_threaded():
            if selection.scored is None:
                others = self.scorer.propose(tokens, selection.without)
                shortlist = candidates(selection.proposers.values(), queries,
                                       selection.depth * self.facts["shortlist"], selection.depth * k, others)
            else:
                shortlist = np.repeat(selection.scored[None], len(queries), axis=0)
            scores = self.scorer(queries, shortlist, tokens)
            check_finite("a score", scores[shortlist >= 0])
            ids, scores = best_of(shortlist, scores, k)
        if (missing := k - ids.shape[1]) > 0:
            padding = (0, 0), (0, missing)
            ids, scores = np.pad(ids, padding, constant_values=-1), np.pad(scores, padding, constant_values=-np.inf)
        return ids, scores

    def unfused(self) -> "dict[str, Ranker]":
        """Return a ranker for each value of `serve` that ranks what the indexes propose by a part of the score."""
        rankers = dict[str, Ranker]()
        for name, scorer in self.scorer.unfused().items():
            rankers[name] = object.__new__(Ranker)    # not by `copy`, which a Retriever refuses
            vars(rankers[name]).update(vars(self), scorer=scorer)
        return rankers

    def search_side(self, side: Side, k: int, rows: np.ndarray,
                    queries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return what `search` returns, for `rows` of a side of a corpus, CHUNK texts at a time."""
        ids, scores = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            known = None if queries is None else queries[part]
            ids[part], scores[part] = self.search(side.tokens(rows[part]), k, queries=known)
        return ids, scores

    def _tokens(self, texts: Iterable[str], contents: Iterable[str] | None) -> Tokens:
        titles, others = checked_texts("texts", texts), checked_texts("contents", () if contents is None else contents)
        if others and len(others) != len(titles):
            raise ValueError(f"contents must be as many as the texts, {len(titles)}, got {len(others)}")
        return self.tokenizer(*self.fields(titles, others))

    def fields(self, texts: list[str], contents: list[str]) -> tuple[list[str], list[str]]:
        """Return the titles and the contents that texts are read as; contents: none where there are none."""
        return texts, contents


def checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return the texts as a list; raise ValueError for a single text, for a table, and for what is no text."""
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a list of texts, got one text; write [text]")
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        # the elements of a table are the names of its columns
        raise ValueError(f"{name} must be a list of texts, not of type {type(texts).__name__}; give a table's column")
    out = list(texts)    # of an iterator, too, which can be read once
    for place, text in enumerate(out):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{place}] must be a text, got {text!r}")
    return out


def check_finite(what: str, values: np.ndarray) -> None:
    """Raise FloatingPointError for a number that is not finite: it would pass for a missing label."""
    if not np.isfinite(values).all():
        raise FloatingPointError(f"{what} is not finite; look for a diverged model or a damaged file")


def predict(ranker: Ranker, corpus: Corpus, depth: int, rows: np.ndarray | None = None,
            queries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the best labels of the test queries, or of `rows`, and their scores, (n, depth), without filter pairs.

    queries: the vectors of these queries, if known.
    """
    rows = np.arange(len(corpus.sides["test"])) if rows is None else rows
    filters = corpus.filters["test"].subset(rows)
    most = int(filters.lengths.max(initial=0))
    ids, scores = np.empty((len(rows), depth), np.int64), np.empty((len(rows), depth), np.float32)
    for part, more in by_filters(filters):
        known = None if queries is None else queries[part]
        found = ranker.search_side(corpus.sides["test"], depth + min(more, most), rows[part], known)
        ids[part], scores[part] = drop_filtered(*found, filters.subset(part), depth)
    return ids, scores


def by_filters(filters: Ragged) -> Iterator[tuple[np.ndarray, int]]:
    """Yield rows of similar numbers of filter pairs, and a number that none exceeds: a few have many more than most."""
    most = 2 ** np.ceil(np.log2(np.maximum(filters.lengths, 1))).astype(np.int64)
    for more in np.unique(most):
        yield np.flatnonzero(most == more), int(more)
