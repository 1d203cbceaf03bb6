"""The embed step: a trained encoder's vectors of every training query and label."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.step import StepContext
from tasks.training.dask_executor import executor_for
from tasks.training.mined_files import SIDES
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor, RowFunction, equal_cuts
from xcmodels.method import SideVectors, Stage, Vectors
from xcmodels.nn.devices import fast_products
from xcmodels.nn.encoders import encoders_on_device
from xcmodels.training.checkpoint import read_model
from xcmodels.training.frozen_layers import with_states

EMBEDDED = 1 << 14    # rows embedded at once on a worker: whole batches of most encoders


def vectors_of(stage: Stage[Any], corpus: Corpus, checkpoint: Path | None) -> Mapping[str, SideVectors]:
    """Return functions that compute, by side, the vectors of a stage's model in a checkpoint, None = untrained."""
    return stage.vectors(encoders_on_device(read_model(stage, corpus, checkpoint)), corpus)


def vectors_by(executor: Executor, stage: Stage[Any], corpus: Corpus, checkpoint: Path | None) -> Vectors:
    """Return what `vectors_of` does; executor: where the vectors are computed."""
    if executor is IN_PROCESS:    # with one model for all sides
        return vectors_of(stage, corpus, checkpoint)
    sizes = {"queries": len(corpus.sides["train"]), "labels": corpus.n_labels,
             **{f"anchors.{name}": len(graph.anchors) for name, graph in corpus.graphs.items()}}
    return {name: partial(executor.compute_rows, f"vectors of {name}", _embedded, equal_cuts(EMBEDDED, size), stage,
                          corpus, checkpoint, name) for name, size in sizes.items()}


def _embedded(stage: Stage[Any], corpus: Corpus, checkpoint: Path | None, name: str) -> RowFunction:
    return vectors_of(stage, corpus, checkpoint)[name].part


@fast_products()
def embed(stage: Stage[Any], context: StepContext) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever use."""
    corpus = with_states(Corpus(context.inputs["corpus"]), context.inputs.get("states"))
    executor = executor_for(context, corpus)
    compute = vectors_by(executor, stage, corpus, context.inputs["model"])
    for name in SIDES:
        vectors = compute[name]()
        executor.save(context.out / f"{name}.npy", vectors)
        context.say(f"{len(vectors):,} {name}")
