"""What the dispatcher of a server's workers does with what it sees in one turn."""

import errno
import os
import socket
import subprocess
import time
from types import SimpleNamespace

import psutil
import pytest

from serving.workers.dispatcher import BATCH, Dispatcher
from serving.workers.shared_status import Board, WorkerLoad
from serving.workers.worker_process import Worker


@pytest.fixture
def dispatcher():
    """One with a worker that answers and takes nothing out of its channel, told to stop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = Dispatcher(listener, Board(1), lambda: None, notice=0.0, patience=60.0)
        made.board.post_load(0, WorkerLoad(0, 1000, time.monotonic(), os.getpid()))
        made.workers[0].channel, theirs = socket.socketpair()
        made._stop_at = time.monotonic()
        with made.workers[0].channel, theirs:
            yield made


def test_a_worker_that_ends_as_it_says_something_does_not_end_the_server():
    """Both are seen in one turn, and what it said is read with its end."""
    worker = Worker(0)
    Dispatcher._taken(None, worker)
    assert worker.channel is None


def test_it_sleeps_while_its_workers_end(dispatcher, monkeypatch):
    waits = []
    monkeypatch.setattr(dispatcher, "_turn_once", waits.append)
    for _ in range(3):
        dispatcher._step()
    assert waits == [0.25] * 3


@pytest.mark.parametrize("call", ["os.fork", "socket.socketpair", "os.pidfd_open"])
def test_a_worker_that_the_system_has_nothing_for_is_started_later(dispatcher, monkeypatch, caplog, call):
    def fail(*_):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    dispatcher._stop_at, worker = float("inf"), dispatcher.workers[0]
    monkeypatch.setattr(dispatcher, "_turn_once", lambda seconds: None)
    monkeypatch.setattr(call, fail)
    child = subprocess.Popen(["sleep", "60"])
    if call == "os.pidfd_open":    # it is forked already
        monkeypatch.setattr("os.fork", lambda: child.pid)
    held, began = os.listdir("/proc/self/fd"), time.monotonic()
    assert dispatcher._step() is None and worker.backoff.due >= began + 0.1
    assert "worker 0 cannot be started: Resource temporarily unavailable; again in 0.1 s" in caplog.text
    assert os.listdir("/proc/self/fd") == held and worker.pid == 0
    assert psutil.pid_exists(child.pid) == (call != "os.pidfd_open")
    child.kill()
    child.wait()


@pytest.mark.parametrize("number", [errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EPERM, errno.ECONNABORTED])
def test_a_connection_that_failed_before_it_was_accepted_ends_nothing(dispatcher, monkeypatch, number):
    listener, failures = dispatcher.listener, [OSError(number, os.strerror(number))]

    def accept():
        if failures:
            raise failures.pop()
        return listener.accept()

    monkeypatch.setattr(dispatcher, "listener", SimpleNamespace(accept=accept))
    with socket.create_connection(listener.getsockname()):
        assert not dispatcher._accept() and not failures
        (connection,) = dispatcher.workers[0].passed
        connection.close()


def test_all_connections_that_wait_at_the_end_are_answered(dispatcher):
    address = dispatcher.listener.getsockname()
    clients = [socket.create_connection(address) for _ in range(BATCH + 5)]
    dispatcher._close()
    assert len(dispatcher.workers[0].passed) == len(clients) and not dispatcher._held
    for each in (*clients, *dispatcher.workers[0].passed):
        each.close()
