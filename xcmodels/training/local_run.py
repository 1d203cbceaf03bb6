"""Training of a whole method in one process, without a run: for experiments and tests."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Method, Mined, Round, Stage
from xcmodels.nn.devices import fast_products
from xcmodels.nn.encoders import encoders_on_device
from xcmodels.training.checkpoint import read_model
from xcmodels.training.frozen_layers import with_states, write_states
from xcmodels.training.loop import Watch, train_round
from xcmodels.training.step_graph import EMBED, FROZEN, MINE, training_steps

UNWATCHED = Watch()


@dataclass(frozen=True)
class TrainedMethod:
    """A trained method: the inputs and results of each round by its name, and the retriever.

    starts: the checkpoint that a round goes on from; befores: the last one of the stage before; outs: its own.
    """

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
        return {round_.name: round_ for round_ in self.method.rounds}

    @property
    def models(self) -> dict[str, Path]:
        """The folder of each stage's last checkpoint."""
        return {stage.name: self.outs[stage.rounds[-1].name] for stage in self.method.stages}


def train_all(corpus: Corpus, method: Method, folder: Path, watch: Watch = UNWATCHED) -> TrainedMethod:
    """Mine, train and embed into `folder`, and build the retriever: the steps of a run, without publishing them."""
    mined: dict[str, Mined] = {}
    *steps, _ = training_steps(method)
    corpus = with_states(corpus, None)
    if method.encoder.keeps_states:
        corpus = run_frozen_layers(corpus, method, folder / "states")
    trained = TrainedMethod(corpus, method, folder / "retriever")
    for step in steps:
        if step.kind == FROZEN:
            continue
        stage = method.stage(step.stage)
        if step.kind == EMBED:
            trained.vectors.update(embed(corpus, stage, trained.outs[step.needs["model"]]))
            continue
        assert step.round is not None
        if step.kind == MINE:
            mined[step.name] = _mine(trained, stage, step.round, step.needs)
            continue
        name, result = step.name, mined.get(step.needs.get("mined", ""), Mined())
        trained.mined[name] = replace(result, vectors=dict(trained.vectors) if "vectors" in step.needs else {})
        trained.starts[name] = trained.outs.get(step.needs.get("start", ""))
        trained.befores[name] = trained.outs.get(step.needs.get("before", ""))
        trained.outs[name], trained.metrics[name] = run_round(
            corpus, stage, step.round, trained.mined[name], folder / name.replace(" ", "-"), start=trained.starts[name],
            before=trained.befores[name], watch=watch)
    trained.retriever.mkdir(parents=True)
    trained.measured.update(method.build_retriever(corpus, trained.models, trained.vectors, trained.retriever))
    return trained


@fast_products()
def run_frozen_layers(corpus: Corpus, method: Method, folder: Path) -> Corpus:
    """Return the corpus with what frozen layers make of its texts, written to `folder`."""
    shutil.rmtree(folder, ignore_errors=True)    # of a run that was killed
    folder.mkdir(parents=True)
    write_states(corpus, method.encoder, folder, graphs=method.needs_graphs)
    return with_states(corpus, folder)


def run_round(corpus: Corpus, stage: Stage[Any], round_: Round, mined: Mined, folder: Path, *,
              start: Path | None = None, before: Path | None = None,
              watch: Watch = UNWATCHED) -> tuple[Path, list[dict[str, float]]]:
    """Train a round, or resume it from `folder`'s step checkpoint; return the folder of its result, and its metrics."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    model = stage.build(corpus, mined.vectors)
    return out, train_round(stage, model, corpus, round_, mined, start=start, before=before,
                            scratch=folder / "scratch", out=out, watch=watch)


@fast_products()
def embed(corpus: Corpus, stage: Stage[Any], folder: Path | None) -> dict[str, np.ndarray]:
    """Return the vectors of each side by the model in a round's folder, None = before any training."""
    model = encoders_on_device(read_model(stage, corpus, folder))
    return {side: make() for side, make in stage.vectors(model, corpus).items()}


@fast_products()
def _mine(trained: TrainedMethod, stage: Stage[Any], round_: Round, needs: Mapping[str, str]) -> Mined:
    """Return the mining result for a round, with fixed vectors, the model of an earlier round or the untrained one."""
    vectors = trained.vectors if "vectors" in needs else embed(
        trained.corpus, stage, trained.outs[needs["start"]] if "start" in needs else None)
    return stage.mine({side: partial(vectors.__getitem__, side) for side in vectors}, trained.corpus, round_)
