"""Prometheus metrics of the HTTP server."""

from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from serving.model_watcher import Served

SECONDS = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64)
METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class ServerMetrics:
    """The metrics of one app; a path that is not among its `routes` counts as "other"."""

    def __init__(self, routes: frozenset[str]) -> None:
        disable_created_metrics()    # a second time series for each metric, which nobody reads
        self.routes, self.registry = routes, CollectorRegistry()
        common: dict[str, Any] = {"registry": self.registry}
        names = ("route", "method", "status")
        self.seconds = Histogram("xc_request_duration_seconds", "From a request's headers to the end of its answer",
                                 names, buckets=SECONDS, **common)
        self.requests = Counter("xc_requests_total", "Requests answered", names, **common)
        self.batch = Histogram("xc_batch_size", "Texts answered together", buckets=SIZES, **common)
        self.length = Gauge("xc_queue_length", "Texts that wait", **common)
        self.wait = Histogram("xc_queue_wait_seconds", "How long the first text of a batch waited", buckets=SECONDS,
                              **common)
        self.rejected = Counter("xc_rejected_total", "Requests refused, by a problem's code", ("reason",), **common)
        self.model = Gauge("xc_model_info", "1 for the version that answers", ("name", "version"), **common)
        self.labels = Gauge("xc_labels", "Labels of the version that answers", **common)
        self.recall = Gauge("xc_index_recall_ratio", "Recall of each index against exact search, as measured when the "
                            "version was evaluated", ("index",), **common)
        self.degraded = Gauge("xc_degraded", "1 while the alias cannot be followed, or what answers is damaged",
                              **common)
        ProcessCollector(**common)

    def refused(self, code: str) -> None:
        """Count a refusal by its problem's code."""
        self.rejected.labels(code).inc()

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request; a client's input never becomes a label value."""
        values = (path if path in self.routes else "other", method if method in METHODS else "other",
                  f"{status // 100}xx")
        self.seconds.labels(*values).observe(seconds)
        self.requests.labels(*values).inc()

    def batch_begun(self, size: int, waited: float) -> None:
        """Record a batch of `size` texts whose first one waited `waited` seconds."""
        self.batch.observe(size)
        self.wait.observe(waited)

    def text(self, served: Served | None, fault: str, waiting: int) -> bytes:
        """Return all metrics and the present state in Prometheus' text format."""
        self.update(served, fault, waiting)
        return generate_latest(self.registry)

    def update(self, served: Served | None, fault: str, waiting: int) -> None:
        """Set the gauges to the present state."""
        self.model.clear()
        self.recall.clear()
        if served is not None:
            self.model.labels(served.name, served.version).set(1)
            self.labels.set(len(served.retriever))
            for index, ratio in served.recall.items():
                self.recall.labels(index).set(ratio)
        self.degraded.set(bool(fault))
        self.length.set(waiting)
