"""A worker's uvicorn server: its connections come from the dispatcher, not from a port."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.answers import ModelService
from serving.http.protocol import TimeoutProtocol
from serving.workers.shared_status import BoardPeers, WorkerLoad, WorkerStatus

TAKEN = 64    # connections taken in one turn of the event loop


class WorkerProtocol(TimeoutProtocol):
    """Reports each connection as soon as it closes, because the dispatcher chooses the worker with the fewest.

    closed: called then.
    """

    closed: Callable[[], None] = staticmethod(lambda: None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection has closed."""
        super().connection_lost(exc)
        self.closed()


class WorkerServer(uvicorn.Server):
    """Serves the connections that come through `channel` until it ends, then answers what is open and returns.

    most: connections that it takes at most; more wait at the dispatcher.
    """

    def __init__(self, config: uvicorn.Config, service: ModelService, peers: BoardPeers, channel: socket.socket,
                 most: int) -> None:
        super().__init__(config)
        self.service, self.peers, self.channel, self.most = service, peers, channel, most
        self._opening = set[asyncio.Task[Any]]()
        WorkerProtocol.closed = staticmethod(self._count)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take connections."""
        await super().startup([])
        self.channel.setblocking(False)
        self._post()
        asyncio.get_running_loop().add_reader(self.channel, self._take)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave signals to the dispatcher, which gets those of a terminal or a service manager too."""

    async def on_tick(self, counter: int) -> bool:
        """Tell the other workers how this one is; return whether it is time to stop."""
        self.service.draining = self.peers.draining
        self._post()
        return await super().on_tick(counter)

    def _take(self) -> None:
        taken = 0
        while taken < TAKEN:
            try:
                word, files, _, _ = socket.recv_fds(self.channel, 1, 1)
            except BlockingIOError:
                break
            except OSError:
                word, files = b"", []
            if not word:
                asyncio.get_running_loop().remove_reader(self.channel)
                self.should_exit = True
                break
            for file in files:
                self._open(socket.socket(fileno=file))
            taken += 1
        self._count()
        with suppress(OSError):    # the dispatcher has ended
            self.channel.send(bytes(taken))

    def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        opening = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: "asyncio.Task[Any]") -> None:
        self._opening.discard(opening)
        opening.exception()    # a client that is gone already is no error

    def _protocol(self) -> asyncio.Protocol:
        """Return what uvicorn makes for a connection that it accepts by itself."""
        config: Any = self.config
        protocol: asyncio.Protocol = config.http_protocol_class(config=config, server_state=self.server_state,
                                                                app_state=self.lifespan.state)
        return protocol

    def _post(self) -> None:
        served, fault = self.service.follower.current, self.service.follower.fault
        self.peers.board.post_status(self.peers.number, WorkerStatus(
            served.name if served else "", served.version if served else "", fault,
            bool(served and served.watch.damage), self.service.batcher.length))
        self._count()

    def _count(self) -> None:
        count = len(self.server_state.connections) + len(self._opening)
        self.peers.board.post_load(self.peers.number, WorkerLoad(count, self.most, time.monotonic(), os.getpid()))


class ConnectionBalancer:
    """An ASGI app that closes a kept-alive connection after its answer, where another worker has fewer of them.

    The client connects anew, and the dispatcher gives it to that worker. Without this, a worker that was started again
    would get nothing to do from clients that keep their connections.
    """

    def __init__(self, app: ASGIApp, peers: BoardPeers) -> None:
        self.app, self.peers = app, peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self.peers.should_give_up_connection():
                message["headers"] = [*(pair for pair in message["headers"] if pair[0].lower() != b"connection"),
                                      (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, send_closing if scope["type"] == "http" else send)
