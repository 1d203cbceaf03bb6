"""HTTP on the wire: uvicorn's, with an end to waiting, and problems where it answers plain text or not at all."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.http import SECONDS, Problem

CROWDED = Problem(503, "connections", "too many connections are open", headers={"Retry-After": "1"})
MALFORMED = Problem(400, "http", "this is not HTTP/1.1")


def on_the_wire(problem: Problem) -> bytes:
    """Return a whole answer that tells a problem and ends the connection."""
    body = problem.body()
    head = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "Content-Type: application/problem+json",
            f"Content-Length: {len(body)}", "Connection: close",
            *(f"{name}: {value}" for name, value in problem.headers.items())]
    return "\r\n".join([*head, "", ""]).encode() + body


class Patient(H11Protocol):
    """Waits SECONDS for a request's headers, and for an answer to be read, where uvicorn would for ever.

    `most` connections are answered at once; more are told so, before the process runs out of descriptors.
    refused: is called with the code of what is refused here, before there is a request for the app.
    """

    most = 1000
    refused: Callable[[str], None] = staticmethod(lambda code: None)
    _due: asyncio.TimerHandle | None = None

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

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the wait."""
        if self._due is not None:
            self._due.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose answer is not read."""
        super().timeout_keep_alive_handler()
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
