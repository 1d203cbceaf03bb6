"""How long does a refresh take where the device embeds and searches exactly, block by block?

Vectors are unit and random: an exact search does the same work whatever they are. "recall": of what was found on the
device, against the processor's exact search of some queries. The refresh is that of LF-AmazonTitles-1.3M's 2,248,619
queries, extrapolated from those searched.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.scale import Scale
from benchmarks.gpu.steps import first_stage, tried
from benchmarks.gpu.tables import Row
from benchmarks.synthetic import AMAZON_TITLES_1_3M
from xcmodels.mining.gpu_index import GpuIndex
from xcmodels.nn.autograd import normalise
from xcmodels.nn.devices import device, fast_products
from xcmodels.retrieval import ann

DEEP, COMPARED = 100, 32             # nearest labels; queries whose recall is measured


@fast_products()
def search(scale: Scale, labels: int, width: int) -> dict[str, Any]:
    """Return what searching all labels for the queries takes."""
    rng = np.random.default_rng(0)
    queries, targets = (normalise(rng.standard_normal((n, width), np.float32)) for n in
                        (scale.sizes.queries, labels))
    index = GpuIndex(ann.build(targets, "exact"), scale.device)
    recall = ann.recall(index.nearest(queries[:COMPARED], DEEP), targets, queries[:COMPARED], DEEP)
    scale.forget_memory()
    seconds = scale.seconds(lambda: index.nearest(queries, DEEP), 3) / len(queries)
    return {"us a query": 1e6 * seconds, "TFLOP a second": 2 * labels * width / seconds / 1e12,
            "recall@100, %": 100 * recall, "GB": scale.peak_memory(),
            "2.2 M queries, s": AMAZON_TITLES_1_3M.queries * seconds}


@fast_products()
def embedding(scale: Scale, size: str) -> dict[str, Any]:
    """Return how many texts a second a transformer of one of the sizes embeds."""
    corpus = scale.synthetic("corpus", scale.sizes.corpus)
    stage = first_stage("ngame", str(scale.encoder(size)), scale.sizes.rows, {})
    vectors = stage.vectors(stage.build(corpus, {}).to(device()), corpus)
    scale.forget_memory()
    seconds = scale.seconds(vectors["queries"], 1) / len(corpus.sides["train"])
    return {"us a query": 1e6 * seconds, "GB": scale.peak_memory(),
            "2.2 M queries, s": AMAZON_TITLES_1_3M.queries * seconds}


def rows(scale: Scale) -> Iterator[Row]:
    """Yield a row for each search, and one for embedding by each size of encoder."""
    for labels in scale.sizes.labels:
        for width in scale.sizes.widths:
            yield {"what": "exact search", "labels": labels, "width": width,
                   **tried(lambda labels=labels, width=width: search(scale, labels, width))}
    for size in scale.sizes.encoders:
        yield {"what": f"embedding, {size}", **tried(lambda size=size: embedding(scale, size))}
