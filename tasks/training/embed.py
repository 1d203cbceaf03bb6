"""The embed step: a trained encoder's vectors of every training query and label."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.step import StepContext
from tasks.training.dask_shards import shards_of
from tasks.training.mined_files import SIDES
from xcmodels.data.corpus import Corpus
from xcmodels.data.shards import IN_PROCESS, Part, Shards, every
from xcmodels.method import SideVectors, Stage, Vectors
from xcmodels.training.checkpoint import read_model
from xcmodels.training.loop import device, fast_products

EMBEDDED = 1 << 14    # rows embedded at once on a worker: whole batches of most encoders


def vectors_of(stage: Stage[Any], corpus: Corpus, checkpoint: Path | None) -> Mapping[str, SideVectors]:
    """Return functions that compute, by side, the vectors of a stage's model in a checkpoint, None = untrained."""
    return stage.vectors(read_model(stage, corpus, checkpoint).to(device()), corpus)


def vectors_by(shards: Shards, stage: Stage[Any], corpus: Corpus, checkpoint: Path | None) -> Vectors:
    """Return what `vectors_of` does, computed by `shards`."""
    if shards is IN_PROCESS:    # with one model for all sides
        return vectors_of(stage, corpus, checkpoint)
    sizes = {"queries": len(corpus.sides["train"]), "labels": corpus.n_labels,
             **{f"anchors.{name}": len(graph.anchors) for name, graph in corpus.graphs.items()}}
    return {name: partial(shards.rows, f"vectors of {name}", _embedded, every(EMBEDDED, size), stage, corpus,
                          checkpoint, name) for name, size in sizes.items()}


def _embedded(stage: Stage[Any], corpus: Corpus, checkpoint: Path | None, name: str) -> Part:
    return vectors_of(stage, corpus, checkpoint)[name].part


@fast_products()
def embed(stage: Stage[Any], context: StepContext) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever use."""
    corpus = Corpus(context.inputs["corpus"])
    shards = shards_of(context, corpus)
    compute = vectors_by(shards, stage, corpus, context.inputs["model"])
    for name in SIDES:
        vectors = compute[name]()
        shards.save(context.out / f"{name}.npy", vectors)
        context.say(f"{len(vectors):,} {name}")
