"""uvicorn's HTTP/1.1 protocol with timeouts, limits, and errors as problem+json."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.http.guard import REQUEST_SECONDS, Problem

CHUNKS = 4096    # parts of a chunked body: h11 takes 15 microseconds for each, and blocks other requests
CROWDED = Problem(503, "connections", "too many connections are open", headers={"Retry-After": "1"})
MALFORMED = Problem(400, "http", "this is not well-formed HTTP/1.1")


def raw_response(problem: Problem) -> bytes:
    """Return a problem as the bytes of a whole HTTP response that ends the connection."""
    body = problem.body()
    head = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "Content-Type: application/problem+json",
            f"Content-Length: {len(body)}", "Connection: close",
            *(f"{name}: {value}" for name, value in problem.headers.items())]
    return "\r\n".join([*head, "", ""]).encode() + body


class Strict(h11.Connection):
    """An h11 connection that refuses request smuggling and too many chunks, which h11 lets pass.

    A body whose length is given in two ways may end elsewhere for a proxy in front of us than for us, and hide a second
    request (RFC 9112, 6.1); so may a chunked body in HTTP/1.0, which has no chunks.
    """

    chunks = 0

    def next_event(self) -> Any:
        """Return h11's next event; NEED_DATA once the client sends no more, which `their_state` shows."""
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
            return h11.NEED_DATA    # uvicorn would ask for the next event for ever
        return event


class TimeoutProtocol(H11Protocol):
    """Waits REQUEST_SECONDS for a request's headers, and for an answer to be read, where uvicorn would wait for ever.

    most: connections that are served at once; more get an error, before the process runs out of descriptors. refused:
    called with the problem's code of what is refused here, before the app sees a request.
    """

    most = 1000
    refused: Callable[[str], None] = staticmethod(lambda code: None)
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None    # runs while the client reads nothing of what waits to be sent

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Strict(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a request's headers."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(1 if len(self.connections) > self.most else REQUEST_SECONDS, self._time_out)

    def data_received(self, data: bytes) -> None:
        """Take bytes; stop the timer once a request's headers are complete."""
        if len(self.connections) > self.most and self.cycle is None:
            self._refuse(CROWDED)
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._time_out)
        super().data_received(data)
        if self._timer is not None and self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()
            self._timer = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a complete request of a client that sends no more, then close; return whether there is one."""
        self.data_received(b"")
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Write no more for now, and close if the client has not read on after REQUEST_SECONDS."""
        super().pause_writing()
        self._unread = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client does not read the answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        """Go on with the next request, or close, even if the client does not read the answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, unless an answer is already being sent."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(MALFORMED)
        else:
            self.transport.close()

    def _time_out(self) -> None:
        """Close; count a refusal where a part of a request had come, and the client was not merely idle."""
        if self.conn.trailing_data[0]:
            self.refused("slow")
        self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        self.refused(problem.code)
        self.transport.write(raw_response(problem))
        self.transport.close()
        self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
