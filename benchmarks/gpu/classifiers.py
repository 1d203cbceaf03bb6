"""What do a million classifiers cost: ASTRA's sampled step against one over all labels, and tables of fewer bits?

"sampled" and "all" are the classifiers' step alone: gather, score, binary cross-entropy, backward, SGD; memory is what
a step adds to table and moments. "training" is the whole step of ASTRA's preset `minilm` by the loop, encoder included,
with its table held as named.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.bench_classifier_step import BATCH, dense_step, sampled_step
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.steps import TABLES, first_stage, loop_figures, tried
from benchmarks.gpu.tables import Row
from benchmarks.measuring import mined_at_random
from benchmarks.synthetic import CorpusShape
from xcmodels.nn.devices import fast_products
from xcmodels.nn.row_optimisers import RowSGD
from xcmodels.nn.row_table import RowTable

POINTS, POSITIVES = 20_000, 5.0    # of the corpus that is trained on: the classifiers' number alone matters


@fast_products()
def step_alone(scale: Scale, labels: int, width: int, kind: str) -> dict[str, Any]:
    """Return the milliseconds of the classifiers' step, "sampled" or "all", and the gigabytes that it adds."""
    rng = np.random.default_rng(0)
    queries = F.normalize(torch.randn(BATCH, width, device=scale.device), dim=1)
    weight = torch.randn(labels, width, device=scale.device).mul_(0.02)
    if kind == "sampled":
        table = RowTable(weight).train()
        sgd = RowSGD(table, momentum=0.9, weight_decay=1e-4)

        def step() -> None:
            sampled_step(table, sgd, queries, rng)
    else:
        weight.requires_grad_()

        def step() -> None:
            dense_step(weight, queries)

    scale.forget_memory()
    before = torch.cuda.memory_allocated() / 1e9 if scale.peak_memory() is not None else 0.0
    seconds, peak = scale.seconds(step, 5), scale.peak_memory()
    return {"ms": 1000 * seconds, "adds GB": None if peak is None else peak - before}


def training(scale: Scale, labels: int, table: dict[str, str]) -> dict[str, Any]:
    """Return the milliseconds of a step of ASTRA's training on so many labels, and the peak of memory."""
    shape = CorpusShape(min(POINTS, labels), labels, POSITIVES, 6.0 if scale.small else 14.0,
                        scale.sizes.corpus.vocabulary)
    corpus = scale.synthetic(f"labels-{labels}", shape)
    stage = first_stage("astra", str(scale.encoder("MiniLM-sized")), scale.sizes.rows, table)
    seconds, memory = loop_figures(scale, stage, corpus, mined_at_random(stage, corpus))
    return {"ms": 1000 * seconds, "GB": memory}


def rows(scale: Scale) -> Iterator[Row]:
    """Yield a row for each number of labels, width and kind of step."""
    for labels in scale.sizes.labels:
        for width in scale.sizes.widths:
            for kind in ("sampled", "all"):
                yield {"labels": labels, "width": width, "step": kind, "table": "float32",
                       **tried(lambda labels=labels, width=width, kind=kind: step_alone(scale, labels, width, kind))}
        for name, table in TABLES.items():
            width = scale.sizes.encoders["MiniLM-sized"]["dim"]
            yield {"labels": labels, "width": width, "step": "training", "table": name,
                   **tried(lambda labels=labels, table=table: training(scale, labels, table))}
