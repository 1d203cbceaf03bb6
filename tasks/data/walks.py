"""The walk step: random walks over metadata graphs, on Dask."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from data_contracts.check import check
from data_contracts.schemas import SCHEMAS
from data_contracts.tables import Tables
from tasks.core.dask_workers import Workers
from tasks.core.step import StepContext
from tasks.data.tables import SIDE_TABLES, contract_view, count_rows, shards, write_shard
from xcmodels.mining.graph import WalkGraph, random_walks, walk_graph

NODES_A_PART = 65_536


@dataclass(frozen=True)
class WalkSettings:
    """Settings of the random walks; see `xcmodels.mining.graph.random_walks` (RAMEN, Appendix A)."""

    seed: int
    hops: int = 400
    restart: float = 0.8
    top: int = 10
    max_degree: int = 500


def walk_all(anchors: tuple[str, ...], settings: WalkSettings, context: StepContext) -> None:
    """Walk every anchor graph from its training queries and its labels, and check the walks against their contract.

    Test queries get no walks: metadata is not available at inference (RAMEN, section 3.1).
    """
    tables = context.inputs["tables"]
    for anchor in anchors:
        n_anchors = count_rows(tables / f"anchors.{anchor}")
        for side in ("train", "label"):
            nodes, table = count_rows(tables / SIDE_TABLES[side]), f"walks.{anchor}.{side}"
            graph = edge_weights(tables / f"edges.{anchor}.{side}", nodes, n_anchors)
            written = walk(context.workers, graph, context.out / table, settings,
                           partitions=-(-nodes // NODES_A_PART) or 1)
            context.say(f"{table}: {sum(rows for _, rows in written):,} edges")
    names = [f"walks.{anchor}.{side}" for anchor in anchors for side in ("train", "label")]
    view = contract_view(context.scratch / "view", {"queries.train": tables, "labels": tables}
                         | {f"anchors.{anchor}": tables for anchor in anchors} | dict.fromkeys(names, context.out))
    check(Tables(view), only=names).raise_for_failure()


def edge_weights(edges: Path, nodes: int, anchors: int) -> sp.csr_array:
    """Return a table of edges as a matrix of weights. Raises ValueError for an edge outside (nodes, anchors)."""
    parts = [pq.read_table(shard, columns=["node", "anchor", "weight"]) for shard in shards(edges)]
    node, anchor, weight = (np.concatenate([part[name].to_numpy() for part in parts])
                            for name in ("node", "anchor", "weight"))
    graph = sp.csr_array((weight, (node, anchor)), shape=(nodes, anchors))
    graph.sort_indices()
    return graph


def walk(workers: Workers, graph: sp.csr_array, out: Path, settings: WalkSettings, *,
         partitions: int) -> list[tuple[str, int]]:
    """Walk from every node and write table `walks` to out/part-00000.parquet, ...; return each shard's path and rows.

    `graph` has the weights of edges, (nodes, anchors). It is prepared once next to `out` and mapped by workers, which
    all must be able to read and write there, so only paths and counts cross the scheduler. A lost worker's shards are
    written again, with the same rows: their concatenation does not depend on `partitions`. Raises ValueError for
    partitions below 1 and for shards in `out` that this call won't write.
    """
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, got {partitions}")
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"part-{i:05d}.parquet" for i in range(partitions)]
    if foreign := sorted({*shards(out)} - {*paths}):
        raise ValueError(f"{foreign[0]} is left of a run with more than {partitions} partitions; empty {out} first")
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as prepared:
        walk_graph(graph, settings.max_degree).save(Path(prepared))
        bounds = np.linspace(0, graph.shape[0], partitions + 1).astype(int).tolist()
        jobs = [(prepared, low, high, str(path), settings)
                for low, high, path in zip(bounds[:-1], bounds[1:], paths, strict=True)]
        return sorted(workers.map(_walk_range, jobs, name=lambda task: f"walking nodes {task[1]:,} to {task[2]:,}"))


def _walk_range(prepared: str, low: int, high: int, path: str, settings: WalkSettings) -> tuple[str, int]:
    """Write the walks of nodes low:high to `path` atomically. Runs on a worker."""
    columns = random_walks(WalkGraph.load(Path(prepared)), np.arange(low, high), hops=settings.hops,
                           restart=settings.restart, top=settings.top, seed=settings.seed)
    table = pa.table(list(columns), schema=SCHEMAS["walks"])
    write_shard(table, Path(path))
    return path, table.num_rows
