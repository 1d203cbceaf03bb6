"""The Dask workers of a run: an embedded cluster started when first needed, or an existing scheduler."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from data_contracts.errors import ProjectError, ServerError

STARTS = 3    # attempts at starting the embedded workers
KEPT = 1 << 28    # bytes freed that a worker keeps


class Workers:
    """Dask workers, started at the first use: a run that reuses every step starts none.

    address: of a scheduler that runs already, "tcp://host:8786"; None for an embedded cluster of `count` processes, of
    which 0 means none: this process does it all.
    processes: how many train together, on this machine and beside the workers (`tasks.training.launcher`).
    """

    def __init__(self, address: str | None = None, count: int = 2, *, processes: int = 1) -> None:
        self.address, self.count, self.processes = address, count, processes
        self._client: Any = None
        self._cluster: Any = None

    @property
    def client(self) -> Any:
        """The distributed.Client."""
        if self._client is None:
            self._start()
        return self._client

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]],
            name: Callable[[tuple[Any, ...]], str] = str) -> Iterator[Any]:
        """Yield the results of `function(*job)` as they come, in no order; a job whose worker dies is run again.

        `function` must be idempotent. Raises ProjectError naming the job that killed its workers four times; a worker
        that is heard of no more for minutes (distributed.scheduler.worker-ttl) counts as killed. ServerError where the
        scheduler went away.
        """
        if self.address is None and not self.count:
            yield from (function(*job) for job in jobs)
            return
        from distributed import CancelledError, KilledWorker, as_completed

        futures = {self.client.submit(function, *job, pure=False, retries=0): job for job in jobs}
        for future in as_completed(list(futures)):
            try:
                result = future.result()
            except KilledWorker as error:
                raise ProjectError(f"{name(futures[future])} killed the worker that ran it four times",
                                   hint="give the workers more memory, or look into that shard") from error
            except CancelledError as error:
                raise ServerError(f"the Dask scheduler at {self.address or 'this run'} stopped answering",
                                  hint="start it again where it was yours; the same command resumes") from error
            future.release()
            yield result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)` as a worker computes it; as `map` does for one job."""
        return next(self.map(function, [arguments], lambda job: function.__name__))

    def close(self) -> None:
        """Stop what was started; who waits for a result gets an error."""
        for each in (self._client, self._cluster):
            if each is not None:
                each.close()
        self._client = self._cluster = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.ERROR)
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)    # what it loses is raised
        if self.address is None:
            self._cluster = self._embedded()
            self._client = Client(self._cluster)
            self._client.register_plugin(_quiet())
            return
        try:
            self._client = Client(self.address, timeout=10)
        except (OSError, ValueError) as error:    # ValueError: it cannot be an address
            raise ServerError(f"no Dask scheduler answers at {self.address}",
                              hint="start one with: dask scheduler, and give tcp://HOST:8786; or leave --dask out"
                              ) from error
        try:
            self._client.run_on_scheduler(_here)
        except Exception as error:
            raise ServerError(f"the Dask scheduler at {self.address} cannot run xcflow: {type(error).__name__}",
                              hint="install the same version where the scheduler and its workers run") from error


    def _embedded(self) -> Any:
        """Start a cluster in this process; a worker that dies while it starts takes the whole of it along."""
        import dask
        from distributed import LocalCluster

        # What is mined while a GPU trains may have all the cores but one; Dask's own choice is a single one.
        # By Dask's own choice a worker gives memory back 64 KB at a time, and faults it in anew for the next array.
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in (
            ("OMP_NUM_THREADS", max(1, (os.cpu_count() or 2) - 1)),
            ("MALLOC_TRIM_THRESHOLD_", KEPT), ("MALLOC_MMAP_THRESHOLD_", KEPT))})
        # A worker tokenises by one thread: there are as many workers as are wanted. Said here, as the run's own
        # environment says otherwise and would go before what the configuration says.
        own = {"TOKENIZERS_PARALLELISM": "false"}
        failed = 0
        while True:
            try:
                return LocalCluster(n_workers=self.count, threads_per_worker=1, env=own,
                                    dashboard_address="127.0.0.1:0")
            except (RuntimeError, OSError) as error:
                failed += 1
                if failed == STARTS:
                    raise ProjectError(f"the Dask workers did not start, {STARTS} times: {error}",
                                       hint="the same command resumes; fewer workers need less: --workers 1") from error


def _here() -> bool:
    """Return True where this package can be imported, which sending it there needs."""
    return True


def _quiet() -> Any:
    """Return a plugin that silences an embedded worker: what fails, or is interrupted, is raised here and said once."""
    from distributed import WorkerPlugin

    class Quiet(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C reaches all of a terminal; the run ends its workers

    return Quiet()
