"""The embed step: a trained encoder's vectors of every training query and label."""

from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.step import StepContext
from tasks.training.mined_files import SIDES
from xcmodels.data.corpus import Corpus
from xcmodels.method import Stage, Vectors
from xcmodels.training.checkpoint import read_model
from xcmodels.training.loop import device, fast_products


def vectors_of(stage: Stage[Any], corpus: Corpus, checkpoint: Path | None) -> Vectors:
    """Return functions that compute, by side, the vectors of a stage's model in a checkpoint, None = untrained."""
    return stage.vectors(read_model(stage, corpus, checkpoint).to(device()), corpus)


@fast_products()
def embed(stage: Stage[Any], context: StepContext) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever use."""
    compute = vectors_of(stage, Corpus(context.inputs["corpus"]), context.inputs["model"])
    for name in SIDES:
        vectors = compute[name]()
        np.save(context.out / f"{name}.npy", vectors)
        context.say(f"{len(vectors):,} {name}")
