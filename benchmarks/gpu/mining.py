"""How long does a refresh take where the device embeds and searches exactly, block by block?

Vectors are unit and random: an exact search does the same work whatever they are. "recall": of what was found on the
device, against the processor's exact search of some queries. The refresh is that of LF-AmazonTitles-1.3M's 2,248,619
queries, extrapolated from those searched.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.gpu.scale import Scale
from benchmarks.gpu.steps import first_stage, tried
from benchmarks.gpu.tables import Row
from benchmarks.synthetic import AMAZON_TITLES_1_3M
from xcmodels.retrieval import ann
from xcmodels.training.loop import device, fast_products

DEEP, COMPARED = 100, 32             # nearest labels; queries whose recall is measured
QUERIES, LABELS = 2048, 131_072      # of a block: scores of 1 GB in float32


def nearest(queries: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Return the ids (n, k) of the labels (L, d) of highest inner product with queries (n, d), best first."""
    out = []
    for part in queries.split(QUERIES):
        best, ids = (torch.empty(len(part), 0, device=part.device, dtype=kind) for kind in (part.dtype, torch.int64))
        for start in range(0, len(labels), LABELS):
            block = labels[start:start + LABELS]
            top = (part @ block.T).topk(min(k, len(block)), dim=1)
            best, ids = torch.cat([best, top.values], 1), torch.cat([ids, top.indices + start], 1)
            best, order = best.topk(min(k, best.shape[1]), dim=1)
            ids = ids.gather(1, order)
        out.append(ids)
    return torch.cat(out)


def search(scale: Scale, labels: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return what searching all labels for the queries takes."""
    torch.manual_seed(0)
    queries, targets = (F.normalize(torch.randn(n, width, device=scale.device), dim=1) for n in
                        (scale.sizes.queries, labels))
    exact = ann.build(targets.cpu().numpy(), "exact").search(queries[:COMPARED].cpu().numpy(), DEEP)[1]
    low = queries.to(dtype), targets.to(dtype)
    found = nearest(low[0][:COMPARED], low[1], DEEP).cpu().numpy()
    recall = np.mean([len(np.intersect1d(*pair)) / DEEP for pair in zip(found, exact, strict=True)])
    scale.forget_memory()
    seconds = scale.seconds(lambda: nearest(*low, DEEP), 3) / len(queries)
    return {"us a query": 1e6 * seconds, "TFLOP a second": 2 * labels * width / seconds / 1e12,
            "recall@100, %": 100 * float(recall), "GB": scale.peak_memory(),
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
            for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
                yield {"what": "exact search", "labels": labels, "width": width, "type": name, **tried(
                    lambda labels=labels, width=width, dtype=dtype: search(scale, labels, width, dtype))}
    for size in scale.sizes.encoders:
        yield {"what": f"embedding, {size}", **tried(lambda size=size: embedding(scale, size))}
