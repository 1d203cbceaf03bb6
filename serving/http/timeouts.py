"""HTTP on the wire: uvicorn's, with an end to waiting, and problems where it answers plain text or not at all."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.http.guard import SECONDS, Problem

CHUNKS = 4096    # parts of a chunked body: h11 takes 15 microseconds for each, in which nobody else is answered
CROWDED = Problem(503, "connections", "too many connections are open", headers={"Retry-After": "1"})
MALFORMED = Problem(400, "http", "this is not well-formed HTTP/1.1")


def on_the_wire(problem: Problem) -> bytes:
    """Return a whole answer that tells a problem and ends the connection."""
    body = problem.body()
    head = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "Content-Type: application/problem+json",
            f"Content-Length: {len(body)}", "Connection: close",
            *(f"{name}: {value}" for name, value in problem.headers.items())]
    return "\r\n".join([*head, "", ""]).encode() + body


class Strict(h11.Connection):
    """h11's reading of a connection, which refuses what h11 lets pass.

    A body whose length is told in two ways may end elsewhere for a proxy before us than for us, and a request be hidden
    in it (RFC 9112, 6.1); so may one of HTTP/1.0 that comes in chunks, which that version does not know.
    """

    chunks = 0

    def next_event(self) -> Any:
        """Return what h11 does, but for the end of what the other side sends: it is what `their_state` says then."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = 0
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version != b"1.1"):
                raise h11.RemoteProtocolError("the length of the body is not told in one way")
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            if self.chunks > CHUNKS:
                raise h11.RemoteProtocolError(f"the body comes in more than {CHUNKS} chunks")
        elif isinstance(event, h11.ConnectionClosed):
            return h11.NEED_DATA    # uvicorn would ask again, for ever
        return event


class TimeoutProtocol(H11Protocol):
    """Waits SECONDS for a request's headers, and for an answer to be read, where uvicorn would for ever.

    `most` connections are answered at once; more are told so, before the process runs out of descriptors.
    refused: is called with the code of what is refused here, before there is a request for the app.
    """

    most = 1000
    refused: Callable[[str], None] = staticmethod(lambda code: None)
    _due: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = Strict(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._due = self.loop.call_later(1 if len(self.connections) > self.most else SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the wait is over with the last of a request's headers."""
        if len(self.connections) > self.most and self.cycle is None:
            self._tell(CROWDED)
            return
        if self._due is None and (self.cycle is None or self.cycle.response_complete):
            self._due = self.loop.call_later(SECONDS, self._late)
        super().data_received(data)
        if self._due is not None and self.cycle is not None and not self.cycle.response_complete:
            self._due.cancel()
            self._due = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked whole by who sends no more, then close; -> whether there is something to answer."""
        self.data_received(b"")
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the wait."""
        if self._due is not None:
            self._due.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose answer is not read."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        """Go on with the next request, or close, also where the answer is not read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer is on its way already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._tell(MALFORMED)
        else:
            self.transport.close()

    def _late(self) -> None:
        """Close; who has sent a part of a request, and is not merely idle, is refused with it."""
        if self.conn.trailing_data[0]:
            self.refused("slow")
        self.transport.abort()

    def _tell(self, problem: Problem) -> None:
        self.refused(problem.code)
        self.transport.write(on_the_wire(problem))
        self.transport.close()
        self.loop.call_later(SECONDS, self.transport.abort)
