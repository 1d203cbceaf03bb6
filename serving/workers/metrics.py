"""Prometheus metrics of all workers on one page, whichever answers.

Each worker counts in files of its own, which outlive it (prometheus_client's multi-process mode); the page sums them.
Gauges come from the worker that answers and from the board.
"""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, Metric, generate_latest, multiprocess, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from serving.model_watcher import Served
from serving.prometheus import ServerMetrics
from serving.workers.shared_status import BoardPeers
from tasks.core.disk_room import take_room
from tasks.core.files import explained

ROOM = 1 << 20    # bytes of each file: of all series that there can be
KINDS = ("counter", "histogram", "gauge_all")    # files of a worker, as prometheus_client names them


class SummedMetrics(ServerMetrics):
    """The metrics of a worker's app, and the page of all workers; folder: where all workers of the server count."""

    def __init__(self, routes: frozenset[str], peers: BoardPeers, folder: Path) -> None:
        self.peers, self.folder = peers, folder
        with explained("count what the workers answer", folder):
            for kind in KINDS:    # prometheus_client maps these files
                take_room(folder / f"{kind}_{peers.number}.db", ROOM)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        # by the number of the worker, not of its process: one that is started again counts on
        values.ValueClass = values.MultiProcessValue(lambda: peers.number)
        # of gauges, which the page takes from this process's memory and not from those files
        warnings.filterwarnings("ignore", "Clearing labels", UserWarning)
        super().__init__(routes)

    def text(self, served: Served | None, fault: str, waiting: int) -> bytes:
        """Return all metrics of the server in Prometheus' text format; the arguments are those of the base class."""
        statuses = list(self.peers.statuses())
        self.update(served, fault, waiting + sum(status.waiting for status in statuses))
        for status in statuses:
            if status.version:
                self.model.labels(status.name, status.version).set(1)
        page = CollectorRegistry(auto_describe=False)
        page.register(self)
        return generate_latest(page)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all workers."""
        yield from (metric for metric in self.registry.collect()
                    if metric.type == "gauge" and not metric.name.startswith("process_"))
        # a worker that has just been started has made its files, but written nothing
        counted = [str(path) for kind in ("counter", "histogram") for path in sorted(self.folder.glob(f"{kind}_*.db"))
                   if path.stat().st_size]
        yield from multiprocess.MultiProcessCollector.merge(counted)
        yield from _processes()
        yield GaugeMetricFamily("xc_workers", "Processes that answer", value=1 + sum(
            self.peers.board.responsive(number) for number in range(self.peers.board.count)
            if number != self.peers.number))


def _processes() -> Iterable[Metric]:
    """Yield what prometheus_client says of a process, for the dispatcher and its workers together."""
    dispatcher = psutil.Process(os.getppid())
    seconds, memory, virtual, files, most = 0.0, 0, 0, 0, 0
    for process in (dispatcher, *dispatcher.children(recursive=True)):
        try:
            with process.oneshot():
                times, shared = process.cpu_times(), process.memory_full_info()
                # of the dispatcher also those of workers that have ended, so that the sum never falls
                seconds += times.user + times.system + times.children_user + times.children_system
                memory, virtual, files = memory + shared.pss, virtual + shared.vms, files + process.num_fds()
                most += process.rlimit(psutil.RLIMIT_NOFILE)[0]
        except psutil.Error:    # it has ended meanwhile
            continue
    yield CounterMetricFamily("process_cpu_seconds", "Processor time of all processes of the server", value=seconds)
    yield GaugeMetricFamily("process_resident_memory_bytes", "Memory of all processes, shared pages counted once",
                            value=memory)
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Address space of all processes", value=virtual)
    yield GaugeMetricFamily("process_open_fds", "Open files of all processes", value=files)
    yield GaugeMetricFamily("process_max_fds", "Files that all processes may open", value=most)
    yield GaugeMetricFamily("process_start_time_seconds", "Start of the server, in seconds since 1970",
                            value=dispatcher.create_time())
