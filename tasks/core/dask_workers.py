"""The Dask workers of a run: an embedded cluster, or those of an existing scheduler."""

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

from data_contracts.errors import ProjectError, ServerError
from tasks.core.machines import Machines
from tasks.core.signals import handled, interrupted_later

# What jobs import, 200 MB and two seconds of a processor: once, by the process that all workers are forked from.
IMPORTED = ["distributed", "pandas", "pyarrow.compute", "pyarrow.parquet", "scipy.sparse", "tokenizers", "torch"]
EMBEDDED = "xcflow embedded"    # metadata of a scheduler that a run started
STARTS = 3    # attempts at starting the embedded workers
RESTART_SECONDS = 10    # the longest that a close waits for the process of a worker that died
CACHED_BYTES = 1 << 28    # bytes of freed memory that a worker keeps


class Workers:
    """Dask workers, started at the first use: a run that reuses every step starts none.

    address: of a running scheduler, "tcp://host:8786"; None for an embedded cluster of `count` processes, where 0 means
    that this process does everything.
    processes: how many train together on this machine, apart from the workers (`tasks.training.launcher`).
    machines: those that train together; None for this one alone.
    """

    def __init__(self, address: str | None = None, count: int = 2, *, processes: int = 1,
                 machines: Machines | None = None) -> None:
        self.address, self.count, self.processes, self.machines = address, count, processes, machines
        self._client: Any = None
        self._cluster: Any = None

    @classmethod
    @contextmanager
    def of_this_job(cls) -> Iterator["Workers"]:
        """Yield the cluster that runs the calling job, so that the job can submit jobs.

        While it waits for them, its worker may run one more.
        """
        from distributed import worker_client

        with worker_client() as client:
            workers = cls(client.scheduler.address)
            workers._client = client
            yield workers

    @property
    def is_serial(self) -> bool:
        """Whether no two jobs run at once."""
        count = self.count if self.address is None else len(self.client.scheduler_info()["workers"])
        return count < 2

    @property
    def are_embedded(self) -> bool:
        """Whether a run started them, on the machine on which it trains."""
        return self.address is None or bool(self.client.get_metadata(EMBEDDED, False))

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
        that does not answer for minutes (distributed.scheduler.worker-ttl) counts as killed. ServerError where the
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
                                   hint="give the workers more memory: the job named above may need more than one has"
                                   ) from error
            except CancelledError as error:
                raise ServerError(f"the Dask scheduler at {self.address or 'this run'} stopped answering",
                                  hint="start it again where it was yours; the same command resumes") from error
            future.release()
            yield result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`, computed by a worker as one job of `map`."""
        return next(self.map(function, [arguments], lambda job: function.__name__))

    def everywhere(self, function: Callable[[], Any]) -> None:
        """Call a function in every worker, beside its jobs; in this process where it does the jobs."""
        if self.address is None and not self.count:
            function()
        else:
            self.client.run(function, on_error="ignore")

    def close(self) -> None:
        """Stop what was started; callers that wait for a result get an error."""
        if self._cluster is not None:
            self._cluster.sync(_end_restarts, self._cluster)
        for started in (self._client, self._cluster):
            if started is not None:
                started.close()
        self._client = self._cluster = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.ERROR)
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)    # lost connections are raised as errors
        if self.address is None:
            with interrupted_later():
                self._cluster = self._local_cluster()
                self._client = Client(self._cluster)
                self._client.register_plugin(_silence_plugin())
                self._client.set_metadata(EMBEDDED, True)
            return
        try:
            self._client = Client(self.address, timeout=10)
        except (OSError, ValueError) as error:    # ValueError: not an address
            raise ServerError(f"no Dask scheduler answers at {self.address}",
                              hint="start one with: dask scheduler, and give tcp://HOST:8786; or leave --dask out"
                              ) from error
        try:
            self._client.run_on_scheduler(_can_import)
        except Exception as error:
            raise ServerError(f"the Dask scheduler at {self.address} cannot run xcflow: {type(error).__name__}",
                              hint="install the same version where the scheduler and its workers run") from error

    def _local_cluster(self) -> Any:
        """Start an embedded cluster; tried again, as one worker that dies at the start ends all of it."""
        import dask
        from distributed import LocalCluster
        from distributed.utils import get_mp_context

        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
        get_mp_context()    # its first call names what Dask would import
        multiprocessing.set_forkserver_preload(IMPORTED)
        with handled(signal.SIG_IGN, signal.SIGINT):    # Ctrl-C reaches the server of forks, which inherits this, too
            forkserver.ensure_running()
        # Workers share the cores and leave one to the process that trains on a GPU; Dask's default is one thread for
        # each worker. By default malloc returns freed memory in pieces of 64 KB, and the next array faults it in again.
        cores = os.cpu_count() or 2
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in (
            ("OMP_NUM_THREADS", max(1, min(cores // max(self.count, 1), cores - 1))),
            ("MALLOC_TRIM_THRESHOLD_", CACHED_BYTES), ("MALLOC_MMAP_THRESHOLD_", CACHED_BYTES))})
        # A worker tokenises with one thread. Set here, since the environment of the run, which sets it otherwise,
        # would override the configuration.
        environment = {"TOKENIZERS_PARALLELISM": "false"}
        failed = 0
        while True:
            try:
                # No limit of memory: Dask counts pages of mapped files, which the kernel drops where memory is short,
                # and would pause workers that map the same vectors for ever.
                return LocalCluster(n_workers=self.count, threads_per_worker=1, env=environment, memory_limit=0,
                                    dashboard_address="127.0.0.1:0")
            except (RuntimeError, OSError) as error:
                failed += 1
                if failed == STARTS:
                    raise ProjectError(f"the Dask workers did not start, {STARTS} times: {error}",
                                       hint="the same command resumes; fewer workers need less: --workers 1") from error


async def _end_restarts(cluster: Any) -> None:
    """Let no worker that dies be started again, and wait for those that are being started.

    distributed 2026.8 takes the greeting of a worker that died at once for that of the next one, which has no process
    yet; to close the cluster then is an AssertionError, and leaves that process.
    """
    nannies = list(cluster.workers.values())
    for nanny in nannies:
        nanny.close_gracefully(reason="xc-close")
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        await asyncio.sleep(.02)    # first of all: a restart that was decided on has its process in the next turn
        workers = [nanny.process for nanny in nannies if nanny.process is not None]
        if time.monotonic() > deadline or all(worker.process is None or worker.process.pid for worker in workers):
            return


def _can_import() -> bool:
    """Return True; the scheduler can only run this where it can import this package."""
    return True


def _silence_plugin() -> Any:
    """Return a plugin that silences an embedded worker: its errors are raised, and shown once, by the run."""
    from distributed import WorkerPlugin

    class Quiet(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C reaches them too; the run ends them

    return Quiet()
