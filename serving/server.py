"""`xc serve`: a free address, who may ask, the version that answers, and a process that ends as it should."""

import asyncio
import errno
import logging
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import uvicorn

from data_contracts.errors import ServerError, UsageError
from serving.answers import WAIT, Service
from serving.app import create_app
from serving.http.guard import LOOPBACK, SECONDS, Access
from serving.http.timeouts import TimeoutProtocol
from serving.model_watcher import Follower, Registry
from tasks.tracking.tracker import Tracker

NOTICE = 1.0            # seconds between saying that the server stops and stopping
BACKLOG = 256           # connections taken at once
SPARE = BACKLOG + 100   # descriptors for those, and to load a version beside the one that answers
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
TOKEN = 16              # characters that a token has at least
_log = logging.getLogger("serving")


def serve(home: Path, mlflow: str, model: str, *, host: str, port: int, access: Access, wait: bool) -> None:
    """Serve what `model` names in the registry until SIGTERM or Ctrl-C, which answer first what was asked.

    wait: begin although there is no such model yet. Raises ServerError where the address cannot be had, and what
    prevents the first version from being loaded.
    """
    _log_to_stderr()
    with listener(host, port) as sock:
        registry = Registry(Tracker(home, mlflow or None), model or None)
        follower = Follower(registry.look, registry.load)
        forbid_pickle()
        if wait:
            follower.step()    # where there is a model, the first question finds it loaded
        else:
            follower.first()
        app, service = create_app(follower, access)
        free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - psutil.Process().num_fds() - SPARE
        TimeoutProtocol.most = max(8, min(TimeoutProtocol.most, free))
        TimeoutProtocol.refused = staticmethod(service.measures.refused)
        address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"
        serving = f"{follower.current.name} version {follower.current.version}" if follower.current else "what comes"
        _log.warning("serving %s on %s", serving, address)
        # Its own signal handlers end by raising the signal again; these take it then, so that the exit code is 0.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        Server(uvicorn.Config(
            app, http=TimeoutProtocol, ws="none", lifespan="on", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, backlog=BACKLOG, timeout_graceful_shutdown=int(WAIT + SECONDS)), service).run([sock])


class Server(uvicorn.Server):
    """uvicorn's server, which says that it stops before it does, so that a balancer can send nobody any more."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service, self.until = service, float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        asyncio.get_running_loop().set_exception_handler(Shortage())
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop: after NOTICE seconds at SIGTERM, at once at Ctrl-C or the second signal."""
        if sig == signal.SIGTERM and not self.service.draining:
            self.service.draining, self.until = True, time.monotonic() + NOTICE
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether the time has come."""
        self.should_exit = self.should_exit or time.monotonic() >= self.until
        return await super().on_tick(counter)


class Shortage:
    """Handles an event loop's errors: a lack of descriptors or memory is told once a second, in a line.

    asyncio would write six lines for each of 256 tries to take a connection, several times a second.
    """

    def __init__(self) -> None:
        self.next = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take note of an error."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in SHORTAGES:
            loop.default_exception_handler(context)
        elif loop.time() >= self.next:
            self.next = loop.time() + 1
            _log.warning("connections wait: %s", error.strerror)


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens; ServerError names the process that has the port already."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"{where} is in use by {holder(port)}",
                              hint="stop it, or choose another: --port") from error
        raise ServerError(f"cannot listen on {where}: {error.strerror or error}",
                          hint="choose another --host or --port") from error


def holder(port: int) -> str:
    """Return the process that listens on a port: its id and command."""
    try:
        found = next(each.pid for each in psutil.net_connections("tcp")
                     if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid)
        return f"process {found}: {' '.join(psutil.Process(found).cmdline())[:200]}"
    except (psutil.Error, StopIteration, OSError):
        return "a process of another user"


def make_access(host: str, token_file: Path | None, names: Collection[str]) -> Access:
    """Return who may ask; UsageError for an address beyond this machine without a token and names."""
    token = read_token(token_file) if token_file else ""
    if host not in {"127.0.0.1", "localhost", "::1"} and not (token and names):
        raise UsageError(f"{host} can be reached from other machines",
                         hint="add --token-file FILE and --allow-host NAME for each name that the server goes by")
    return Access(LOOPBACK | {name.lower() for name in names}, token)


def read_token(path: Path) -> str:
    """Return the token in a file that its owner alone can read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}",
                         hint=f"(umask 077; openssl rand -hex 32 > {path})") from error
    if mode & 0o077:
        raise UsageError(f"{path} can be read by others, its mode is {mode:04o}", hint=f"chmod 600 {path}")
    if len(token) < TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"the token in {path} is not {TOKEN} or more plain characters",
                         hint=f"(umask 077; openssl rand -hex 32 > {path})")
    return token


def forbid_pickle() -> None:
    """Have this process refuse to unpickle any object, whoever asks for it; this cannot be taken back."""
    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            raise RuntimeError(f"a pickle asks for {arguments[0]}.{arguments[1]}; the server reads no pickles")

    sys.addaudithook(refuse)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.propagate = False
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
