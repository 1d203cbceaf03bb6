"""What the serving app tells Prometheus."""

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


class Measures:
    """The metrics of one app; `routes` are its own, every other path counts as "other"."""

    def __init__(self, routes: frozenset[str]) -> None:
        disable_created_metrics()    # a second series for each, which nobody reads
        self.routes, self.registry = routes, CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        asked = ("route", "method", "status")
        self.seconds = Histogram("xc_request_duration_seconds", "From a request's headers to the end of its answer",
                                 asked, buckets=SECONDS, **made)
        self.requests = Counter("xc_requests_total", "Requests answered", asked, **made)
        self.batch = Histogram("xc_batch_size", "Texts answered together", buckets=SIZES, **made)
        self.length = Gauge("xc_queue_length", "Texts that wait", **made)
        self.wait = Histogram("xc_queue_wait_seconds", "How long the first text of a batch waited", buckets=SECONDS,
                              **made)
        self.rejected = Counter("xc_rejected_total", "Requests refused, by a problem's code", ("reason",), **made)
        self.model = Gauge("xc_model_info", "1 for the version that answers", ("name", "version"), **made)
        self.labels = Gauge("xc_labels", "Labels of the version that answers", **made)
        self.recall = Gauge("xc_index_recall_ratio", "Recall of each index against exact search, as measured when the "
                            "version was evaluated", ("index",), **made)
        self.degraded = Gauge("xc_degraded", "1 while the alias cannot be followed, or what answers is damaged", **made)
        ProcessCollector(**made)

    def refused(self, code: str) -> None:
        """Count a refusal by its problem's code."""
        self.rejected.labels(code).inc()

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request; what a stranger chooses never becomes a label's value."""
        known = (path if path in self.routes else "other", method if method in METHODS else "other",
                 f"{status // 100}xx")
        self.seconds.labels(*known).observe(seconds)
        self.requests.labels(*known).inc()

    def told(self, size: int, waited: float) -> None:
        """Take note of a batch."""
        self.batch.observe(size)
        self.wait.observe(waited)

    def text(self, served: Served | None, fault: str, waiting: int) -> bytes:
        """Return all of it, with what holds at present, as Prometheus reads it."""
        self.model.clear()
        self.recall.clear()
        if served is not None:
            self.model.labels(served.name, served.version).set(1)
            self.labels.set(len(served.retriever))
            for index, ratio in served.recall.items():
                self.recall.labels(index).set(ratio)
        self.degraded.set(bool(fault))
        self.length.set(waiting)
        return generate_latest(self.registry)
