"""A method from its first round to its retriever in one process, with nothing published: for experiments and tests."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from xcmodels import metrics
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method, Mined, Round
from xcmodels.nn.row_table import Model
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import Watch, device, fast_products, train_round

UNWATCHED = Watch()


@dataclass(frozen=True)
class Trial:
    """A method trained round by round: what each round was given and left, and the retriever made of it."""

    corpus: Corpus
    method: Method
    rounds: dict[str, Round]
    mined: dict[str, Mined]
    starts: dict[str, Path | None]
    befores: dict[str, Path | None]
    outs: dict[str, Path]
    metrics: dict[str, list[dict[str, float]]]
    vectors: dict[str, np.ndarray]
    retriever: Path
    measured: dict[str, float]


def train_all(corpus: Corpus, method: Method, folder: Path, watch: Watch = UNWATCHED) -> Trial:
    """Mine, train and embed round by round into `folder`, as `tasks.training.rounds` does by steps."""
    made = Trial(corpus, method, {round_.name: round_ for round_ in method.rounds()}, {}, {}, {}, {}, {}, {},
                 folder / "retriever", {})
    frozen = {stage.name for stage in method.stages() if stage.frozen}
    newest: dict[str, Path] = {}
    for name, round_ in made.rounds.items():
        begins = round_.stage not in newest
        made.starts[name] = newest.get(round_.stage)
        before = made.befores[name] = list(newest.values())[-1] if begins and newest else None
        if before and (round_.stage in frozen or (round_.mines and round_.source < 0)):
            made.vectors.update(embed(corpus, method, list(newest)[-1], before))
        made.mined[name] = replace(_mined(made, round_), vectors=dict(made.vectors))
        newest[round_.stage], made.metrics[name] = run_round(
            corpus, method, round_, made.mined[name], folder / name.replace(" ", "-"), start=made.starts[name],
            before=made.befores[name], watch=watch)
        made.outs[name] = newest[round_.stage]
    made.retriever.mkdir(parents=True)
    made.measured.update(method.retriever(newest, corpus, made.vectors, made.retriever))
    return made


def run_round(corpus: Corpus, method: Method, round_: Round, mined: Mined, folder: Path, *, start: Path | None = None,
              before: Path | None = None, watch: Watch = UNWATCHED) -> tuple[Path, list[dict[str, float]]]:
    """Train a round from its beginning or from `folder`'s step checkpoint; return its result's folder and metrics."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    model = method.build(corpus, round_.stage, mined.vectors)
    return out, train_round(method, model, corpus, round_, mined, start=start, before=before,
                            scratch=folder / "scratch", out=out, watch=watch)


@fast_products()
def embed(corpus: Corpus, method: Method, stage: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the vectors of each side by the model of a round's folder."""
    return {side: make() for side, make in method.vectors(read_model(corpus, method, stage, folder), corpus).items()}


def read_model(corpus: Corpus, method: Method, stage: str, folder: Path) -> Model:
    """Return the model of a round's folder."""
    model = method.build(corpus, stage, {})
    load_model(model, folder)
    return model.to(device())


def predict(retriever: Retriever, corpus: Corpus, depth: int,
            rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the best labels of every test query, or of `rows`, and their scores, (n, depth), less its filter pairs."""
    rows = np.arange(len(corpus.sides["test"])) if rows is None else rows
    filters = corpus.filters["test"].subset(rows)
    ids = np.full((len(rows), depth + int(filters.lengths.max(initial=0))), -1, dtype=np.int64)
    scores = np.full(ids.shape, -np.inf, dtype=np.float32)
    # As deep as a query's own filter pairs go, or twice: by the most of all, few queries would make all twice as long.
    doubled = 2 ** np.ceil(np.log2(np.maximum(filters.lengths, 1))).astype(np.int64)
    for most in np.unique(doubled):
        part, k = np.flatnonzero(doubled == most), min(depth + int(most), ids.shape[1])
        ids[part, :k], scores[part, :k] = retriever.search_side(corpus.sides["test"], k, rows[part])
    return metrics.drop_filtered(ids, scores, filters, depth)


@fast_products()
def _mined(made: Trial, round_: Round) -> Mined:
    """Return what a round is given, mined now unless a round of the same source has it."""
    if not round_.mines:
        return Mined()
    for name, other in made.rounds.items():
        if name in made.mined and (other.stage, other.source, other.mines) == (round_.stage, round_.source, True):
            return made.mined[name]
    known = made.vectors or embed(made.corpus, made.method, round_.stage,
                                  made.outs[f"{round_.stage} round {round_.source}"])
    return made.method.mine({side: partial(known.__getitem__, side) for side in known}, made.corpus, round_)
