"""The first process of `xc serve --workers N`: starts the workers, passes connections to them, and stops them.

It alone accepts connections and gives each to the worker with the fewest open ones, so that they spread evenly even if
a few clients keep theirs open. A connection that a worker has not taken before it ends goes to another. If workers
shared the port (SO_REUSEPORT), the kernel would choose at random, and connections queued at a worker would be lost with
it. This process has no threads, no model and no requests, so that it can fork at any time, and ends only when it is
told to.
"""

import errno
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from serving.workers.shared_status import Board
from serving.workers.worker_process import Worker, WorkerChannel, fork

RETRY = 0.02    # seconds until a connection that no worker could take is offered again
BATCH = 64      # connections accepted in one turn
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = logging.getLogger("serving")


class Dispatcher:
    """Runs the workers of a board on a listening socket.

    on_ready: called once, when the first worker answers. notice: seconds between SIGTERM and accepting no more.
    patience: seconds for the workers to end after that.
    """

    def __init__(self, listener: socket.socket, board: Board, on_ready: Callable[[], None], *, notice: float,
                 patience: float) -> None:
        self.listener, self.board, self._on_ready, self._notice, self._patience = (
            listener, board, on_ready, notice, patience)
        self.workers = [Worker(number) for number in range(board.count)]
        self._selector = selectors.DefaultSelector()
        self._held: deque[socket.socket] = deque()    # accepted, and no worker could take them yet
        self._turn = 0
        self._listening, self._stop_at, self._kill_at = False, float("inf"), float("inf")
        self._told = 0.0    # when a shortage or a failure was logged
        self._code = 0      # exit code of the worker that ended last
        self._woken, self._wake = socket.socketpair()

    def run(self) -> WorkerChannel | None:
        """Return a worker's channel in each process that is forked; None in this one, once all have ended.

        Raises SystemExit with the first worker's exit code if it ends before it answers; it has logged why.
        """
        self.listener.setblocking(False)
        for each in (self._woken, self._wake):
            each.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ, self._signalled)
        gc.collect()
        gc.freeze()    # a collection would write to the pages that all workers share
        if (forked := self._first()) is not None:
            return forked
        while any(worker.pid for worker in self.workers) or self._kill_at == float("inf"):
            if (forked := self._step()) is not None:
                return forked
        return None

    def _first(self) -> WorkerChannel | None:
        """Start the first worker, and wait until it answers."""
        first = self.workers[0]
        if (forked := self._watch(first, *fork())) is not None:
            return forked
        while first.pid and not self.board.responsive(0):
            self._turn_once(0.05)
            if self._stop_at < float("inf"):
                self._close()
            if time.monotonic() >= self._kill_at:
                self._kill()
        if not first.pid:
            sys.exit(self._code if self._kill_at == float("inf") else 0)
        self._on_ready()
        return None

    def _step(self) -> WorkerChannel | None:
        """Do what is due, and wait for more; in a process that was forked, return the channel of its worker."""
        now = time.monotonic()
        if now >= self._stop_at:
            self._close()
        if now >= self._kill_at:
            self._kill()
        if self._kill_at == float("inf"):
            for worker in self.workers:
                due = worker.backoff.due
                if due is not None and now >= due and (forked := self._start(worker)) is not None:
                    return forked
        self._listen()
        waits = [RETRY] if self._held else [worker.backoff.due - now for worker in self.workers
                                            if worker.backoff.due is not None]
        self._turn_once(max(0.0, min([0.25, self._stop_at - now, *waits])))
        return None

    def _turn_once(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()

    # Workers

    def _start(self, worker: Worker) -> WorkerChannel | None:
        """Fork a worker; where the system has nothing for it, try again later."""
        try:
            forked = fork()
        except OSError as error:
            now = time.monotonic()
            worker.backoff.start(now)
            worker.backoff.end(now)
            _log.warning("worker %d cannot be started: %s; again in %.1f s", worker.number, error.strerror,
                         worker.backoff.seconds)
            return None
        return self._watch(worker, *forked)

    def _watch(self, worker: Worker, pid: int, ended: int, channel: socket.socket) -> WorkerChannel | None:
        """Watch a worker that was forked; in its own process, return its channel."""
        if pid == 0:
            self._become_worker()
            return WorkerChannel(worker.number, channel)
        channel.setblocking(False)
        worker.pid, worker.ended, worker.channel = pid, ended, channel
        worker.backoff.start(time.monotonic())
        self._selector.register(worker.ended, selectors.EVENT_READ, partial(self._ended, worker))
        self._selector.register(channel, selectors.EVENT_READ, partial(self._taken, worker))
        return None

    def _become_worker(self) -> None:
        """Close the dispatcher's sockets and ignore signals: a worker ends when the dispatcher closes its channel."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._selector.close()
        for each in (self._woken, self._wake, self.listener, *self._held):
            each.close()
        for worker in self.workers:
            if worker.channel is not None:
                worker.channel.close()
                os.close(worker.ended)
                for connection in worker.passed:
                    connection.close()

    def _ended(self, worker: Worker) -> None:
        status = os.waitpid(worker.pid, 0)[1]
        self._code = os.waitstatus_to_exitcode(status)
        self._selector.unregister(worker.ended)
        os.close(worker.ended)
        assert worker.channel is not None
        self._taken(worker)
        self._selector.unregister(worker.channel)
        worker.channel.close()
        self.board.clear(worker.number)
        self._held += worker.passed
        worker.passed.clear()
        pid, worker.pid, worker.channel = worker.pid, 0, None
        if self._kill_at == float("inf"):
            worker.backoff.end(time.monotonic())
            if self._listening:
                how = signal.Signals(-self._code).name if self._code < 0 else f"exit code {self._code}"
                _log.warning("worker %d, process %d, ended by %s; it is started again in %.1f s", worker.number, pid,
                             how, worker.backoff.seconds)

    # Connections

    def _listen(self) -> None:
        """Accept connections while there is a worker for them; the others wait in the kernel's queue."""
        while self._held and (worker := self._free()) is not None and self._pass(self._held[0], worker):
            self._held.popleft()
        started = self._listening or not any(worker.pid and not self.board.load(worker.number).pid
                                             for worker in self.workers)
        free = self._free()
        if free is None and self._listening and any(worker.pid for worker in self.workers):
            self._tell("connections wait: no worker can take one")
        wanted = not self._held and started and self._kill_at == float("inf") and free is not None
        if wanted != (self.listener in self._registered()):
            if wanted:
                self._selector.register(self.listener, selectors.EVENT_READ, self._accept)
                self._listening = True
            else:
                self._selector.unregister(self.listener)

    def _registered(self) -> set[object]:
        return {key.fileobj for key in self._selector.get_map().values()}

    def _free(self) -> Worker | None:
        """Return the worker with the fewest connections of those that may take one more."""
        def load(worker: Worker) -> tuple[int, int]:
            return self.board.load(worker.number).open + len(worker.passed), worker.turn

        running = [worker for worker in self.workers if worker.channel is not None
                   and load(worker)[0] < self.board.load(worker.number).most]
        answering = [worker for worker in running if self.board.responsive(worker.number)]
        return min(answering, key=load, default=None)

    def _accept(self) -> bool:
        """Accept connections, at most BATCH; return whether more may wait that a worker can take."""
        for _ in range(BATCH):
            if self._held or (worker := self._free()) is None:
                return False
            try:
                connection = self.listener.accept()[0]
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in SHORTAGES:    # of this connection alone, which is gone, see accept(2)
                    self._tell(f"a connection failed: {error.strerror}")
                    continue
                self._tell(f"connections wait: {error.strerror}")
                time.sleep(RETRY)
                return False
            if not self._pass(connection, worker):
                self._held.append(connection)
        return True

    def _pass(self, connection: socket.socket, worker: Worker) -> bool:
        """Give a connection to a worker; return whether it could take it."""
        assert worker.channel is not None
        worker.turn = self._turn = self._turn + 1
        try:
            socket.send_fds(worker.channel, [b"c"], [connection.fileno()])
        except OSError:    # it has ended, or has too many to look at
            return False
        worker.passed.append(connection)
        return True

    def _taken(self, worker: Worker) -> None:
        """Close this process's copies of connections that a worker has; it sends a byte for each."""
        if worker.channel is None:    # its end was seen in the same turn, before
            return
        with suppress(OSError):
            for _ in worker.channel.recv(1 << 16):
                worker.passed.popleft().close()

    def _tell(self, what: str) -> None:
        """Log what becomes of connections, at most once a second."""
        if time.monotonic() >= self._told + 1:
            self._told = time.monotonic()
            _log.warning("%s", what)

    # The end

    def _signalled(self) -> None:
        for number in self._woken.recv(64):
            if number == signal.SIGTERM and not self.board.draining:
                self.board.drain()
                self._stop_at = time.monotonic() + self._notice
            elif self._kill_at == float("inf"):
                self.board.drain()
                self._stop_at = time.monotonic()
            else:
                self._kill_at = time.monotonic()

    def _close(self) -> None:
        """Accept what waits, then no more; the workers answer what they have, and end."""
        self._listen()
        while self._accept():
            pass
        self._stop_at, self._kill_at = float("inf"), time.monotonic() + self._patience
        self._listen()    # once more for one that is held, and from now on for none
        self.listener.close()
        for worker in self.workers:
            worker.backoff.due = None
            if worker.channel is not None:
                worker.channel.shutdown(socket.SHUT_WR)

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
