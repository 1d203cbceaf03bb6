"""How far are the walks from a numba kernel of the same walk, and what do two workers bring?

    pip install numba
    python -m benchmarks.bench_walks [nodes] [edges] [walked]

The graph is made up: by default a million nodes on as many anchors, twenty edges each; hops are 400, restarts .8. The
kernel takes one hop after the other, from the same draws; what it finds is compared. Memory is what a worker holds
beyond the graph that it maps.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import scipy.sparse as sp

from benchmarks.asked import Count, answer
from tasks.core.dask_workers import Workers
from tasks.data.walks import WalkSettings, walk
from xcmodels.mining.graph import Edges, WalkGraph, random_walks, walk_graph

try:
    from numba import njit
except ModuleNotFoundError:
    sys.exit("this question wants numba beside the project: pip install numba")

HOPS, RESTART, TOP, SEED = 400, 0.8, 10, 0
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def graph(nodes: int, edges: int) -> sp.csr_array:
    """Return a graph of equal weights; anchors fall off in degree."""
    rng = np.random.default_rng(0)
    ends = (nodes * rng.random(edges) ** 1.2).astype(np.int64)
    drawn = np.ones(edges, np.float32), (rng.integers(nodes, size=edges), ends)
    matrix = sp.csr_array(drawn, shape=(nodes, nodes))
    matrix.data[:] = 1    # an edge that was drawn twice is one
    return matrix


@njit
def _mix(bits):
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@njit
def _uniform(start, counter):
    return (_mix(start + (np.uint64(counter) + np.uint64(1)) * GOLDEN) >> np.uint64(11)) * 2.0**-53


@njit
def _most_visited(nodes, starts, ends, back_starts, back_ends, hops, restart, top, seed):  # noqa: C901, PLR0917
    ids, weights = np.full((len(nodes), top), -1), np.zeros((len(nodes), top), np.float32)
    visits = np.empty(hops, np.int32)
    begin = _mix(np.uint64(seed))
    for place in range(len(nodes)):
        node = nodes[place]
        if starts[node] == starts[node + 1]:
            continue
        start = _mix(begin + (np.uint64(node) + np.uint64(1)) * GOLDEN)
        at = node
        for hop in range(hops):
            first = starts[at]
            anchor = ends[first + int(_uniform(start, 2 * hop) * (starts[at + 1] - first))]
            visits[hop] = anchor
            onward = _uniform(start, 2 * hop + 1)
            if onward < restart:
                at = node
            else:
                first = back_starts[anchor]
                onward = (onward - restart) / (1 - restart)
                at = back_ends[first + int(onward * (back_starts[anchor + 1] - first))]
        ordered = np.sort(visits)
        total, hop = 0, 0
        counts = np.zeros(top, np.int64)
        while hop < hops:
            after = hop + 1
            while after < hops and ordered[after] == ordered[hop]:
                after += 1
            slot = top
            while slot > 0 and counts[slot - 1] < after - hop:
                slot -= 1
            if slot < top:
                for lower in range(top - 1, slot, -1):
                    counts[lower], ids[place, lower] = counts[lower - 1], ids[place, lower - 1]
                counts[slot], ids[place, slot] = after - hop, ordered[hop]
            hop = after
        total = counts.sum()
        for slot in range(top):
            weights[place, slot] = counts[slot] / total
    return ids, weights


def kernel(prepared: WalkGraph, nodes: np.ndarray) -> Edges:
    """Walk as `random_walks` does, by the kernel."""
    ids, weights = _most_visited(nodes, prepared.anchors.indptr, prepared.anchors.indices, prepared.nodes.indptr,
                                 prepared.nodes.indices, HOPS, RESTART, TOP, SEED)
    row, slot = np.nonzero(ids >= 0)
    return nodes[row], ids[row, slot], weights[row, slot]


def timed(nodes: np.ndarray, walks: object, prepared: WalkGraph) -> tuple[Edges, float]:
    """Return what was found, and the seconds that it took."""
    began = time.perf_counter()
    found = walks(prepared, nodes)  # type: ignore[operator]
    return found, time.perf_counter() - began


def ours(prepared: WalkGraph, nodes: np.ndarray) -> Edges:
    """Walk by the project's own function."""
    return random_walks(prepared, nodes, hops=HOPS, restart=RESTART, top=TOP, seed=SEED)


def main(nodes: Count = 1_000_000, edges: Count = 20_000_000, walked: Count = 20_000) -> None:
    """Print one table a question."""
    matrix = graph(nodes, edges)
    prepared = walk_graph(matrix)
    rows = np.random.default_rng(1).permutation(nodes)[:walked]
    kernel(prepared, rows[:10])    # compiles
    took: dict[str, list[float]] = {"ours": [], "kernel": []}
    for _ in range(3):
        mine, seconds = timed(rows, ours, prepared)
        took["ours"].append(seconds)
        theirs, seconds = timed(rows, kernel, prepared)
        took["kernel"].append(seconds)
    assert all(np.array_equal(one, two) for one, two in zip(mine, theirs, strict=True)), "the kernel walks elsewhere"
    best = {name: 1e6 * min(each) / walked for name, each in took.items()}
    print(f"{nodes:,} nodes, {edges:,} edges, {HOPS} hops from each of {walked:,} nodes, one core")
    print(f"{'ours us/node':>14}{'kernel us/node':>16}{'ratio':>8}")
    print(f"{best['ours']:>14.1f}{best['kernel']:>16.1f}{best['ours'] / best['kernel']:>8.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        of = Path(scratch) / "graph"
        of.mkdir()
        for name, values in (("indptr", matrix.indptr), ("indices", matrix.indices), ("weights", matrix.data)):
            np.save(of / f"{name}.npy", values)
        print(f"every node, preparing the graph included\n{'workers':>14}{'seconds':>16}{'gain':>8}{'MB a worker':>14}")
        alone = 0.0
        for count in (1, 2):
            workers = Workers(count=count)
            client = workers.client
            client.run(lambda: __import__("xcmodels.mining.graph"))
            began = time.perf_counter()
            walk(workers, of, nodes, Path(scratch) / f"walks-{count}", WalkSettings(SEED), partitions=8)
            seconds = time.perf_counter() - began
            held = max(client.run(lambda: psutil.Process().memory_full_info().uss).values()) / 1e6
            workers.close()
            alone = alone or seconds
            print(f"{count:>14}{seconds:>16.1f}{alone / seconds:>8.2f}{held:>14.0f}", flush=True)


if __name__ == "__main__":
    answer(main, __doc__)
