"""A method from its first round to its retriever in one process, with nothing published: for experiments and tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Method, Mined, Round, Stage
from xcmodels.nn.row_table import Model
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import Watch, device, fast_products, train_round
from xcmodels.training.steps import EMBED, MINE, training_steps

UNWATCHED = Watch()


@dataclass(frozen=True)
class Trial:
    """A method trained round by round: what each round was given and left, and the retriever made of it."""

    corpus: Corpus
    method: Method
    retriever: Path
    mined: dict[str, Mined] = field(default_factory=dict)
    starts: dict[str, Path | None] = field(default_factory=dict)
    befores: dict[str, Path | None] = field(default_factory=dict)
    outs: dict[str, Path] = field(default_factory=dict)
    metrics: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def rounds(self) -> dict[str, Round]:
        """The rounds by name."""
        return {round_.name: round_ for round_ in self.method.rounds}

    @property
    def models(self) -> dict[str, Path]:
        """The folder of each stage's last checkpoint."""
        return {stage.name: self.outs[stage.rounds[-1].name] for stage in self.method.stages}


def train_all(corpus: Corpus, method: Method, folder: Path, watch: Watch = UNWATCHED) -> Trial:
    """Mine, train and embed into `folder`, and build the retriever: the steps that a run publishes one by one."""
    made = Trial(corpus, method, folder / "retriever")
    mined: dict[str, Mined] = {}
    *steps, _ = training_steps(method)
    for step in steps:
        stage = method.stage(step.stage)
        if step.kind == EMBED:
            made.vectors.update(embed(corpus, stage, made.outs[step.needs["model"]]))
            continue
        assert step.round is not None
        if step.kind == MINE:
            mined[step.name] = _mine(made, stage, step.round, step.needs)
            continue
        name, given = step.name, mined.get(step.needs.get("mined", ""), Mined())
        made.mined[name] = replace(given, vectors=dict(made.vectors) if "vectors" in step.needs else {})
        made.starts[name] = made.outs.get(step.needs.get("start", ""))
        made.befores[name] = made.outs.get(step.needs.get("before", ""))
        made.outs[name], made.metrics[name] = run_round(
            corpus, stage, step.round, made.mined[name], folder / name.replace(" ", "-"), start=made.starts[name],
            before=made.befores[name], watch=watch)
    made.retriever.mkdir(parents=True)
    made.measured.update(method.build_retriever(corpus, made.models, made.vectors, made.retriever))
    return made


def run_round(corpus: Corpus, stage: Stage[Any], round_: Round, mined: Mined, folder: Path, *,
              start: Path | None = None, before: Path | None = None,
              watch: Watch = UNWATCHED) -> tuple[Path, list[dict[str, float]]]:
    """Train a round from its beginning or from `folder`'s step checkpoint; return its result's folder and metrics."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    model = stage.build(corpus, mined.vectors)
    return out, train_round(stage, model, corpus, round_, mined, start=start, before=before,
                            scratch=folder / "scratch", out=out, watch=watch)


@fast_products()
def embed(corpus: Corpus, stage: Stage[Any], folder: Path) -> dict[str, np.ndarray]:
    """Return the vectors of each side by the model of a round's folder."""
    return {side: make() for side, make in stage.vectors(read_model(corpus, stage, folder), corpus).items()}


def read_model(corpus: Corpus, stage: Stage[Any], folder: Path) -> Model:
    """Return the model of a round's folder, where the accelerator is."""
    model: Model = stage.build(corpus, {})
    load_model(model, folder)
    return model.to(device())


@fast_products()
def _mine(made: Trial, stage: Stage[Any], round_: Round, needs: Mapping[str, str]) -> Mined:
    """Return what is mined for a round, from the vectors that there are or by the model of an earlier round."""
    known = made.vectors if "vectors" in needs else embed(made.corpus, stage, made.outs[needs["start"]])
    return stage.mine({side: partial(known.__getitem__, side) for side in known}, made.corpus, round_)
