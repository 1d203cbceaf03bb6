"""`xc serve`: listen, load the model version, run uvicorn, and stop gracefully."""

import asyncio
import errno
import fcntl
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch
import uvicorn
from starlette.types import ASGIApp

from data_contracts.errors import ServerError
from serving.answers import WAIT, ModelService
from serving.app import create_app
from serving.feedback import FeedbackKeeper
from serving.http.guard import REQUEST_SECONDS, Access, Guard
from serving.http.protocol import TimeoutProtocol
from serving.model_watcher import AliasFollower, RegisteredModel
from serving.workers.dispatcher import SHORTAGES, Dispatcher
from serving.workers.metrics import SummedMetrics
from serving.workers.shared_status import Board, BoardPeers
from serving.workers.uvicorn_worker import ConnectionBalancer, WorkerProtocol, WorkerServer
from tasks.core.devices import port_holder
from tasks.registry.resolve import only_model
from tasks.tracking.mlflow_client import quiet_mlflow
from tasks.tracking.tracker import Tracker

BACKLOG = 256           # connections that may wait to be accepted
SPARE = BACKLOG + 100   # file descriptors for those, and to load a second version
END = 10.0              # seconds that a worker may take to end, beyond those for its last answers
_log = logging.getLogger("serving")


def serve(home: Path, mlflow: str, model: str, *, host: str, port: int, access: Access, wait: bool,
          feedback: bool, workers: int, notice: float) -> None:
    """Serve the model that `model` names in the registry until SIGTERM or Ctrl-C; open requests are answered first.

    wait: start even if there is no such model yet. feedback: take it, into the journal of the home. workers: processes
    that answer. notice: seconds between SIGTERM, from which /readyz says that it stops, and accepting no more. Raises
    ServerError where the address cannot be used, and any error that prevents loading the first version.
    """
    log_to_stderr()
    with listener(host, port) as sock:
        address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"

        def ready(name: str, version: str) -> None:
            what = f"serving {name} version {version}" if version else "no model yet; listening"
            _log.warning("%s on %s", what, address)

        def follow_model(known: str = "") -> AliasFollower:
            return open_follower(home, mlflow, model or known, wait)

        keeper = FeedbackKeeper(home) if feedback else None
        if workers > 1:
            _serve_by_workers(sock, workers, follow_model, partial(create_app, access=access, keeper=keeper), ready,
                              notice=notice)
            return
        follower = follow_model()
        app, service = create_app(follower, access, keeper)
        limit_connections(service)
        served, server = follower.current, Server(settings(app, TimeoutProtocol), service, notice)
        # From here on a signal counts. uvicorn, too, raises it again at the end, and then the exit code is 0.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        ready(*(served.name, served.version) if served else ("", ""))
        server.run([sock])


def _serve_by_workers(sock: socket.socket, count: int, follow_model: Callable[[str], AliasFollower],
                      make: Callable[..., tuple[Guard, ModelService]], ready: Callable[[str, str], None], *,
                      notice: float) -> None:
    """Serve by processes that are forked from this one, in which the libraries are in memory that they share.

    Each opens the registry and the version by itself: its files are mapped, and so shared too.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"    # its threads do not outlive a fork
    quiet_mlflow()
    # What a worker would import by itself as it opens a registry and an index.
    import faiss  # noqa: F401
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracking  # noqa: F401

    with temporary_folder() as counts:
        board = Board(count)
        worker = Dispatcher(sock, board, partial(_first_ready, board, ready), notice=notice,
                            patience=WAIT + REQUEST_SECONDS + END).run()
        if worker is None:    # the server has ended
            return
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
        peers = BoardPeers(board, worker.number)
        follower = follow_model(board.model)    # one that is started again serves it, whatever was registered since
        app, service = make(follower, metrics=partial(SummedMetrics, peers=peers, folder=counts), peers=peers)
        room = limit_connections(service)
        balanced = settings(ConnectionBalancer(app, peers), WorkerProtocol)
        WorkerServer(balanced, service, peers, worker.channel, room).run()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end, by this process and no fork of it."""
    folder, process = Path(tempfile.mkdtemp(prefix="xc-serve-")), os.getpid()
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)    # systemd-tmpfiles removes what is old and nobody has locked
    try:
        yield folder
    finally:
        os.close(held)
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


def _first_ready(board: Board, ready: Callable[[str, str], None]) -> None:
    status = board.status(0)
    ready(*(status.name, status.version) if status else ("", ""))


def open_follower(home: Path, mlflow: str, model: str, wait: bool) -> AliasFollower:
    """Return what follows a model's alias, with a version loaded; this process reads no pickle from then on.

    Raises what prevents loading it, unless the server may wait for a model; UsageError where there are several, and
    none is named.
    """
    tracker = Tracker(home, mlflow or None)
    registered = RegisteredModel(tracker, model or None)
    follower = AliasFollower(registered.look, registered.load)
    forbid_pickle()
    if wait:
        if not model:
            with suppress(ServerError):
                only_model(tracker)    # where there are several, none would ever answer
        follower.step()    # so that a model that exists is loaded before the first request
    else:
        follower.first()
    return follower


def limit_connections(service: ModelService) -> int:
    """Limit the connections of this process to what its descriptors allow; count those that are refused.

    Return how many may be open, those that are being refused included.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - psutil.Process().num_fds()
    TimeoutProtocol.most = max(8, min(TimeoutProtocol.most, descriptors - SPARE))
    TimeoutProtocol.refused = staticmethod(service.metrics.refused)
    return max(TimeoutProtocol.most, min(TimeoutProtocol.most + BACKLOG, descriptors - SPARE + BACKLOG))


def settings(app: ASGIApp, protocol: type[TimeoutProtocol]) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app, http=protocol, ws="none", lifespan="on", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, backlog=BACKLOG, timeout_graceful_shutdown=int(WAIT + REQUEST_SECONDS))


class Server(uvicorn.Server):
    """A uvicorn server that announces its stop on /readyz, so that a load balancer sends no more requests.

    notice: seconds between that and accepting no more.
    """

    def __init__(self, config: uvicorn.Config, service: ModelService, notice: float) -> None:
        super().__init__(config)
        self.service, self.notice, self.stop_at = service, notice, float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        asyncio.get_running_loop().set_exception_handler(Shortage())
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to stop: after `notice` seconds at SIGTERM, at once at Ctrl-C or the second signal."""
        if sig == signal.SIGTERM and not self.service.draining:
            self.service.draining, self.stop_at = True, time.monotonic() + self.notice
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to stop."""
        self.should_exit = self.should_exit or time.monotonic() >= self.stop_at
        return await super().on_tick(counter)


class Shortage:
    """Handles an event loop's errors: logs a lack of descriptors or memory in one line, at most once a second.

    asyncio would log six lines for each of 256 attempts to accept a connection, several times a second.
    """

    def __init__(self) -> None:
        self.next = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in SHORTAGES:
            loop.default_exception_handler(context)
        elif loop.time() >= self.next:
            self.next = loop.time() + 1
            _log.warning("connections wait: %s", error.strerror)


def listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ServerError naming the process that has the port already."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Each connection inherits it. asyncio leaves it out for a socket whose protocol is told as 0, and then the end
        # of an answer waits for the client to acknowledge its beginning: 40 ms on a kept-alive connection.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"{where} is in use by {port_holder(port)}",
                              hint="stop it, or choose another: --port") from error
        raise ServerError(f"cannot listen on {where}: {error.strerror or error}",
                          hint="choose another --host or --port") from error


def forbid_pickle() -> None:
    """Make this process refuse to unpickle any object, for all code and for good."""
    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            raise RuntimeError(f"a pickle asks for {arguments[0]}.{arguments[1]}; the server reads no pickles")

    sys.addaudithook(refuse)


def log_to_stderr() -> None:
    """Log the server's lines to stderr, and nothing of uvicorn's."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.propagate = False
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
