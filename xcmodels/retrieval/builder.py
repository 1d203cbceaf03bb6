"""Builds a retriever from a trained method: proposers, scorer and folder.

Any method can be served in any of the ways that `serving_config` lists; training does not depend on it.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from xcmodels.data import seen_texts
from xcmodels.data.corpus import Corpus
from xcmodels.data.label_branches import Branches
from xcmodels.nn.encoders import QUERY, Encoder, encode_all, save_encoder
from xcmodels.retrieval import ann
from xcmodels.retrieval.calibration import Calibration, ScoredPairs, calibrate
from xcmodels.retrieval.examples import save_examples
from xcmodels.retrieval.folder import REMOVED, write_facts
from xcmodels.retrieval.fusion import InnerProductTerm, proposed_by
from xcmodels.retrieval.fusion_fit import fit_fusion
from xcmodels.retrieval.lexical import train_lexical
from xcmodels.retrieval.proposers import Proposer, candidates
from xcmodels.retrieval.scorers import InnerProduct, Scorer
from xcmodels.retrieval.serving_config import FUSED, SUM, ServingConfig

RowVectors = Callable[[np.ndarray], np.ndarray]    # makes the vectors (n, width) of rows of the training side
NearestLabels = Callable[[Proposer, RowVectors, np.ndarray, int], np.ndarray]    # (proposer, vectors, rows, k)
CALIBRATED_LABELS = 100    # of a validation query, scored to calibrate confidences where nothing is fused


@dataclass(frozen=True)
class Trained:
    """The trained parts of a method that can be served.

    labels: label vectors (L, d) by the name of their score. views: by the same names, the encoder heads whose vectors
    of a query they are multiplied with. proposing: the scores whose sum proposes labels to a fusion. queries: the
    vectors (N, d) of the training side by the heads of the first score, where already computed: label centroids are
    means of them.
    """

    encoder: Encoder
    labels: Mapping[str, np.ndarray]
    views: Mapping[str, tuple[str, ...]]
    proposing: tuple[str, ...]
    queries: np.ndarray | None = None

    def served(self, serve: str) -> tuple[str, ...]:
        """Return the names of the scores that are served."""
        return tuple(self.labels) if serve in (SUM, FUSED) else (serve,)


def build_retriever(trained: Trained, config: ServingConfig, corpus: Corpus, out: Path, *, method: str,
                    seed: int, nearest: NearestLabels) -> dict[str, float]:
    """Write a retriever to `out`, an empty folder; return the measurements of the fusion's fit.

    nearest: finds labels near to the training queries, which are negatives of the sparse view. seed: keys the draws of
    further negatives and of texts.
    """
    names, fused = trained.served(config.serve), config.serve == FUSED
    heads, offsets = _query_vector(trained, names, shares=fused)
    encoder, train = trained.encoder, corpus.sides["train"]
    encoder.layout = replace(encoder.layout, views={**encoder.layout.views, **trained.views, QUERY: heads})
    proposing = trained.proposing if fused else names
    assert offsets[proposing[0]] == 0, "an index reads a query vector from its first dimension on"
    parts = [trained.labels[name] for name in proposing]
    index = ann.build(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), config.index)
    proposer, depth, measured = Proposer(index), 0, dict[str, float]()
    scorer: Scorer = InnerProduct(index.vectors, {name: trained.labels[name].shape[1] for name in names})
    cached = trained.queries if heads == trained.views[next(iter(trained.labels))] else None

    def vectors(rows: np.ndarray) -> np.ndarray:
        return encode_all(encoder, train, QUERY, rows) if cached is None else cached[rows]

    def embedded() -> np.ndarray:
        return encode_all(encoder, train, names[0]) if trained.queries is None else trained.queries

    queries = vectors(corpus.validation)
    if fused:
        depth = config.fusion.shortlist
        terms = {name: InnerProductTerm(trained.labels[name], offsets[name]) for name in names}
        lexical = train_lexical(corpus, partial(nearest, proposer, vectors), config.fusion, seed)
        others = proposed_by(lexical.sparse, lexical.frequent, train.tokens(corpus.validation))
        scorer, measured, pairs = fit_fusion(
            corpus, queries, candidates([proposer], queries, depth, others=others), terms=terms, indexed=proposing,
            embedded=embedded, lexical=lexical, config=config.fusion)
    else:
        ids = candidates([proposer], queries, 0, min(CALIBRATED_LABELS, corpus.n_labels))
        pairs = ScoredPairs.of(ids, scorer(queries, ids))
    save_retriever(out, corpus, method=method, encoder=encoder, proposers={"labels": proposer}, shortlist=depth,
                   scorer=scorer, calibration=calibrate(corpus, pairs))
    return measured


def _query_vector(trained: Trained, names: tuple[str, ...], *, shares: bool) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the heads that make up a query vector, and for each score where in it its dimensions begin.

    shares: scores may share dimensions, as the terms of a fusion can.
    """
    heads: tuple[str, ...] = ()
    offsets = {}
    for name in names:
        view = trained.views[name]
        shared = shares and heads[:len(view)] == view
        offsets[name] = 0 if shared else sum(map(trained.encoder.head_width, heads))
        heads += () if shared else view
    return heads, offsets


def save_retriever(out: Path, corpus: Corpus, *, method: str, encoder: Encoder, proposers: Mapping[str, Proposer],
                   shortlist: int, scorer: Scorer, calibration: Calibration) -> None:
    """Write everything that a retriever needs to `out`, an empty folder.

    shortlist: labels that each proposer returns for a query, to be ranked by the scorer.
    """
    save_encoder(encoder.cpu(), out / "encoder")
    shutil.copytree(corpus.folder / "tokenizer", out / "tokenizer")
    for name, proposer in proposers.items():
        proposer.save(out / "index" / name)
    scorer.save(out)
    calibration.save(out)
    save_examples(corpus, out / "examples")
    np.save(out / REMOVED, ann.NO_IDS)
    np.save(out / seen_texts.FILE, seen_texts.trained_on(corpus))
    np.save(out / seen_texts.OF_LABELS, seen_texts.of_labels(corpus))
    for part in ("label.uid", "label.title"):
        for half in ("offsets", "values"):
            shutil.copy(corpus.folder / f"{part}.{half}.npy", out)
    Branches.copy(corpus.folder, out)
    write_facts(out, {"method": method, "data": corpus.name, "shortlist": shortlist, "labels": corpus.n_labels,
                      "proposers": list(proposers), "scorer": scorer.kind})
