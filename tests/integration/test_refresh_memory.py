"""What a refresh of a size holds, told beforehand, against what searches and clusterings of that size hold."""

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.measuring import in_new_process, peak_memory
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.grouped_index import GroupedIndex
from xcmodels.mining.int8_products import largest_entry
from xcmodels.resources import DASK_WORKERS, GROUP_SHARE, HOST, REFRESH, Size, estimate, with_width

LABELS = 200_000


def told(size, width=64):
    method = METHODS["unidec"].make(with_width(resolve("unidec", "cpu", {"index": "grouped"}).method, width))
    return {part.what: part.size for part in estimate(method, size, {}).held(HOST, REFRESH)}


def added(action):
    """Return the bytes that a call adds, at its peak, to what this process holds (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    action()
    return peak_memory() - before


def together(threads, method):
    """Return a method that, the first time, lets all threads go on at once: with what each of them holds there."""
    barrier = threading.Barrier(threads)

    def call(*given, **named):
        found = method(*given, **named)
        with suppress(threading.BrokenBarrierError):    # once it is broken, nobody waits
            barrier.wait(60)
            barrier.abort()
        return found

    return call


def search_bytes(threads, width):
    """Return the bytes that a search of LABELS by groups adds, with enough groups for all threads.

    A thread holds most with the scores of its groups, or with the codes of one. On a busy machine one may be done with
    all before another begins, so they wait for each other there.
    """
    torch.set_num_threads(threads)
    rng, most = np.random.default_rng(0), largest_entry(width)
    codes, centres = (rng.integers(-most, most + 1, (count, width), dtype=np.int8) for count in (LABELS, 16 * threads))
    queries, vectors = rng.standard_normal((50 * threads, width), np.float32), np.ones((LABELS, width), np.float32)
    GroupedIndex(vectors[:2000], codes[:2000], centres, GROUP_SHARE).nearest(queries[:20], 10)    # what is there once
    for name in ("_centre_scores", "_candidates"):
        setattr(GroupedIndex, name, together(threads, getattr(GroupedIndex, name)))
    return added(lambda: GroupedIndex(vectors, codes, centres, GROUP_SHARE).nearest(queries, 10))


@pytest.mark.parametrize(("threads", "width"), [(2, 64), (4, 64), (2, 384)])
def test_a_search_holds_what_is_told_by_threads_and_width(monkeypatch, threads, width):
    """One figure, of two threads and 64 dimensions, was told for all: a ninth with eight threads and 384."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    part = told(Size(LABELS, 1000), width)[f"the search, by {threads} threads"]
    # glibc lets go at once of what is freed: else each thread may keep as much again as it holds
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert part / 2 < in_new_process(search_bytes, threads, width) < part    # not all that is told is held at once


def cluster_bytes(points):
    """Return the bytes that clusters of so many queries of 64 dimensions add."""
    torch.set_num_threads(1)
    queries, rows = np.random.default_rng(0).standard_normal((points, 64), np.float32), np.arange(points)
    balanced_kmeans(queries[:5000], 8, seed=0)
    return added(lambda: balanced_kmeans(queries, 8, seed=0, rows=rows))


def test_clusters_hold_what_is_told():
    """A copy of all vectors was told, which is no longer made: 81.6 MB of 300,000 queries."""
    part = told(Size(1000, 300_000))["their order by clusters"]
    assert in_new_process(cluster_bytes, 300_000) == pytest.approx(part, rel=0.2, abs=10e6)


def test_dask_workers_have_a_thread_each_and_a_run_on_gpus_all_of_the_machine(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    shared, own = (told(Size(300_000, 400_000, gpus=gpus)) for gpus in (0, 1))
    workers = shared[f"the search, by {DASK_WORKERS} threads"]
    assert own["the search, by 16 threads"] == 16 / DASK_WORKERS * workers
