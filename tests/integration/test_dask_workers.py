"""Dask workers of a run, or of an existing scheduler: those that die, stand still or go away."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import ProjectError, ServerError
from tasks.core.dask_workers import Workers
from tests.conftest import ROOT
from tests.support.fatal_jobs import kill_worker, kill_worker_once, stop_worker
from tests.support.long_tests import at_length
from tests.support.ports import free_port


def test_a_worker_tokenises_by_one_thread_whatever_the_run_does(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    with Workers(count=1) as workers:
        assert workers.call(os.getenv, "TOKENIZERS_PARALLELISM") == "false"


def test_a_lost_worker_does_not_lose_the_run(tmp_path):
    with Workers(count=2) as workers:
        jobs = [(tmp_path / "marker" if job == 3 else tmp_path, job) for job in range(8)]
        assert sorted(workers.map(kill_worker_once, jobs)) == list(range(8))
    assert (tmp_path / "marker").exists()


def test_a_job_that_kills_its_workers_is_named():
    with Workers(count=2) as workers, pytest.raises(ProjectError, match="shard 7 killed the worker"):
        list(workers.map(kill_worker, [(7,)], name=lambda job: f"shard {job[0]}"))


def test_workers_are_closed_while_one_that_died_starts_again(monkeypatch):
    """As a worker that dies right after its greeting leaves it: its nanny calls the next one running too early."""
    from distributed.core import Status
    from distributed.process import AsyncProcess

    start, starting = AsyncProcess.start, threading.Event()

    async def start_late(process: AsyncProcess) -> None:
        starting.set()
        await asyncio.sleep(.5)
        await start(process)

    workers = Workers(count=1)
    (nanny,) = workers.client.cluster.workers.values()
    monkeypatch.setattr(AsyncProcess, "start", start_late)
    os.kill(nanny.pid, signal.SIGKILL)
    assert starting.wait(60)
    worker = nanny.process
    worker.status = Status.running
    workers.close()
    assert nanny.status == Status.closed and not worker.is_alive()


def test_a_worker_that_dies_while_workers_are_closed_does_not_start_again(monkeypatch):
    workers = Workers(count=1)
    (nanny,) = workers.client.cluster.workers.values()
    close, worker = workers.client.close, nanny.process

    def close_late() -> None:
        os.kill(nanny.pid, signal.SIGKILL)
        while nanny.pid is not None:
            time.sleep(.001)
        time.sleep(.2)    # as long as the nanny needs to start another, where it does
        close()

    monkeypatch.setattr(workers.client, "close", close_late)
    started = []
    monkeypatch.setattr(type(worker), "start", lambda worker: started.append(worker) or asyncio.sleep(0))
    workers.close()
    assert not started and not worker.is_alive()


@pytest.mark.parametrize("elsewhere", [True, False], ids=["without the package", "with it"])
def test_a_scheduler_without_the_package_is_told_apart(tmp_path, elsewhere):
    """A scheduler of an environment where `tasks` cannot be imported, and one of ours."""
    with scheduler(tmp_path, "import sys; sys.modules['tasks'] = None; " if elsewhere else "") as (address, _):
        refused = pytest.raises(ServerError, match="cannot run xcflow: ModuleNotFoundError")
        with Workers(address=address) as workers, refused if elsewhere else nullcontext():
            assert workers.client.scheduler.address == address


def test_a_scheduler_that_goes_away_is_named(tmp_path):
    with scheduler(tmp_path) as (address, process), Workers(address=address) as workers:
        assert workers.client.scheduler.address == address
        threading.Timer(1, process.kill).start()
        with pytest.raises(ServerError, match=f"scheduler at {address} stopped answering") as caught:
            list(workers.map(time.sleep, [(60,)]))
        assert caught.value.exit_code == 5 and "the same command resumes" in caught.value.hint


@at_length("waits for four workers")
def test_a_job_whose_worker_stands_still_is_named():
    import dask

    with dask.config.set({"distributed.scheduler.worker-ttl": "10s"}), Workers(count=2) as workers, \
            pytest.raises(ProjectError, match="shard 7 killed the worker"):
        list(workers.map(stop_worker, [(7,)], name=lambda job: f"shard {job[0]}"))


@contextmanager
def scheduler(folder: Path, before: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a Dask scheduler on loopback, after some Python of its own; yield its address and process."""
    address = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", f"{before}from distributed.cli.dask_scheduler import main; main()", "--port",
               address.rpartition(":")[2], "--host", "127.0.0.1", "--no-dashboard"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if address in line)
            yield address, process
        finally:
            process.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_waits_until_what_starts_can_be_closed(monkeypatch, number):
    closed = []

    def starting(name, *_):
        if name == "cluster":
            signal.raise_signal(number)
        return SimpleNamespace(close=lambda: closed.append(name), sync=lambda *_: None, register_plugin=lambda _: None,
                               set_metadata=lambda *_: None)

    monkeypatch.setattr(Workers, "_local_cluster", partial(starting, "cluster"))
    monkeypatch.setattr("distributed.Client", partial(starting, "client"))
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Workers() as workers:
            workers.call(print)
    finally:
        signal.signal(number, before)
    assert closed == ["client", "cluster"]
