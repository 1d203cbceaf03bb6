"""How fast are the random walks against a numba kernel of the same walk, and what does a second Dask worker gain?

    pip install numba
    python -m benchmarks.bench_walks [nodes] [edges] [walked nodes]

The graph is synthetic: by default a million nodes, as many anchors, 20 million edges; 400 hops, restart .8. The kernel
takes the hops one by one, from the same random draws, and its result must be equal. Memory is what a worker uses beyond
the graph, which it maps.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import scipy.sparse as sp

from benchmarks.arguments import Count, run
from benchmarks.measuring import timed
from tasks.core.dask_workers import Workers
from tasks.data.walks import WalkSettings, walk
from xcmodels.mining.graph import Edges, WalkGraph, random_walks, walk_graph

try:
    from numba import njit
except ModuleNotFoundError:
    sys.exit("this benchmark needs numba: pip install numba")

HOPS, RESTART, TOP, SEED = 400, 0.8, 10, 0
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def synthetic_graph(nodes: int, edges: int) -> sp.csr_array:
    """Return a graph of nodes and as many anchors, with edges of weight 1 and anchors of unequal degree."""
    rng = np.random.default_rng(0)
    ends = (nodes * rng.random(edges) ** 1.2).astype(np.int64)
    drawn = np.ones(edges, np.float32), (rng.integers(nodes, size=edges), ends)
    matrix = sp.csr_array(drawn, shape=(nodes, nodes))
    matrix.data[:] = 1    # an edge that was drawn twice has 2
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
def _most_visited(nodes, starts, ends, back_starts, back_ends, hops, restart, top, seed):  # noqa: PLR0917
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
        hop = 0
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
        weights[place] = counts / counts.sum()
    return ids, weights


def kernel_walks(graph: WalkGraph, nodes: np.ndarray) -> Edges:
    """Return what `random_walks` returns, computed by the kernel."""
    ids, weights = _most_visited(nodes, graph.anchors.indptr, graph.anchors.indices, graph.nodes.indptr,
                                 graph.nodes.indices, HOPS, RESTART, TOP, SEED)
    row, slot = np.nonzero(ids >= 0)
    return nodes[row], ids[row, slot], weights[row, slot]


def main(nodes: Count = 1_000_000, edges: Count = 20_000_000, walked: Count = 20_000) -> None:
    """Print a table of one core against the kernel, and one of Dask workers."""
    matrix = synthetic_graph(nodes, edges)
    graph = walk_graph(matrix)
    rows = np.random.default_rng(1).permutation(nodes)[:walked]
    kernel_walks(graph, rows[:10])    # compiles
    our_seconds, kernel_seconds = list[float](), list[float]()
    for _ in range(3):
        ours, seconds = timed(lambda: random_walks(graph, rows, hops=HOPS, restart=RESTART, top=TOP, seed=SEED))
        our_seconds.append(seconds)
        kernels, seconds = timed(lambda: kernel_walks(graph, rows))
        kernel_seconds.append(seconds)
    assert all(np.array_equal(a, b) for a, b in zip(ours, kernels, strict=True)), "the kernel's walks differ"
    our_us, kernel_us = (1e6 * min(seconds) / len(rows) for seconds in (our_seconds, kernel_seconds))
    print(f"{nodes:,} nodes, {edges:,} edges, {HOPS} hops from each of {len(rows):,} nodes, one core")
    print(f"{'ours us/node':>14}{'kernel us/node':>16}{'ratio':>8}")
    print(f"{our_us:>14.1f}{kernel_us:>16.1f}{our_us / kernel_us:>8.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        print(f"walks from every node, with preparing the graph\n"
              f"{'workers':>14}{'seconds':>16}{'speed-up':>10}{'MB a worker':>14}")
        one_worker = 0.0
        for count in (1, 2):
            workers = Workers(count=count)
            client = workers.client
            client.run(lambda: __import__("xcmodels.mining.graph"))
            out = Path(scratch) / f"walks-{count}"
            _, seconds = timed(lambda workers=workers, out=out: walk(workers, matrix, out, WalkSettings(SEED),
                                                                     partitions=8))
            memory = max(client.run(lambda: psutil.Process().memory_full_info().uss).values()) / 1e6
            workers.close()
            one_worker = one_worker or seconds
            print(f"{count:>14}{seconds:>16.1f}{one_worker / seconds:>10.2f}{memory:>14.0f}", flush=True)


if __name__ == "__main__":
    run(main, __doc__)
