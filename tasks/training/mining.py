"""The mine step: clusters, hard negatives and edges of a round, checked by contracts."""

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.check import check
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.tables import Tables
from tasks.core.step import METRICS_FILE, StepContext
from tasks.data.tables import contract_view
from tasks.training.dask_executor import executor_for
from tasks.training.embed import vectors_by
from tasks.training.mined_files import CLUSTERS, EDGES, NEGATIVES, SIDES
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Round, Stage, Vectors
from xcmodels.mining.hardness import hardness
from xcmodels.nn.devices import fast_products
from xcmodels.training.frozen_layers import with_states

SHARD, SHARD_VALUES = 1 << 20, 1 << 28   # rows and values of a shard of the tables that are checked, at most


@fast_products()
def mine(stage: Stage[Any], round_: Round, context: StepContext) -> None:
    """Mine what a round trains on, write it, and check it against its contract."""
    corpus = with_states(Corpus(context.inputs["corpus"]), context.inputs.get("states"))
    executor = executor_for(context, corpus)
    if "vectors" in context.inputs:
        vectors: Vectors = {name: partial(np.load, context.inputs["vectors"] / f"{name}.npy", "r") for name in SIDES}
    else:
        vectors = vectors_by(executor, stage, corpus, context.inputs.get("start"))
    vectors = {name: cache(make) for name, make in vectors.items()}
    mined = stage.mine(vectors, corpus, round_, executor)
    metrics = mined.measured | hardness(mined, vectors, corpus, seeds.generator(stage.seed, "hardness", round_.name))
    (context.out / METRICS_FILE).write_text(json.dumps([{"epoch": round_.first, **metrics}]) + "\n")
    context.say(", ".join(f"{name} {value:.3g}" for name, value in metrics.items()))
    rows = corpus.training_rows()
    if (clusters := mined.clusters) is not None:
        executor.save(context.out / CLUSTERS, clusters)
        _check(context, "clusters", rows, partial(_slice, clusters))
        context.say(f"{len(rows):,} queries in {int(clusters.max(initial=-1)) + 1:,} clusters of {round_.cluster_size}")
    if (negatives := mined.negatives) is not None:
        executor.save(context.out / NEGATIVES, negatives)
        _check(context, "negatives", rows, lambda part: _lists(negatives[rows[part]]), negatives.shape[1])
        context.say(f"{len(rows):,} queries with {negatives.shape[1]} hard negatives each")
    for name, kept in mined.kept.items():
        np.save(context.out / f"{EDGES}{name}.npy", kept)
        graph, _, side = name.rpartition(".")
        edges = corpus.graphs[graph].edges[side]
        nodes, ends = np.repeat(np.arange(len(edges)), edges.lengths)[kept], edges.values[kept].astype(np.int64)
        _check(context, f"pruned.{name}", nodes, partial(_slice, ends))
        context.say(f"{kept.sum():,} of {len(kept):,} edges of {name} kept")


def _check(context: StepContext, table: str, rows: np.ndarray, column: Callable[[slice], pa.Array],
           width: int = 1) -> None:
    """Check what was mined for `rows`, `width` values each, against its contract, with the tables that it refers to."""
    shard = max(1, min(SHARD, SHARD_VALUES // max(width, 1)))    # Arrow counts the values of a list column in int32
    folder = context.scratch / "mined" / table
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, max(len(rows), 1), shard)):
        part = slice(start, start + shard)
        pq.write_table(pa.table([rows[part], column(part)], schema=SCHEMAS[kind_of(table)]),
                       folder / f"part-{number:05d}.parquet")
    anchors = {f"anchors.{table.split('.')[1]}"} if table.startswith("pruned") else set()
    referenced = {name: context.inputs["tables"] for name in {"queries.train", "labels", "positives.train"} | anchors}
    view = contract_view(context.scratch / "view", {table: folder.parent, **referenced})
    check(Tables(view), only=[table]).raise_for_failure()


def _slice(values: np.ndarray, part: slice) -> pa.Array:
    return pa.array(values[part])


def _lists(ids: np.ndarray) -> pa.Array:
    """Return (n, k) ids as n lists, without the -1 that pad them."""
    valid = ids >= 0
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(valid.sum(1))]), pa.int32()),
                                    pa.array(ids[valid], pa.int32()))
