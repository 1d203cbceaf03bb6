"""Access checks, body limits and error responses; no error repeats what was sent, plain words excepted.

Errors are problem+json (RFC 9457): type, title, status, detail, code, link, and pointers to the fields.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20         # bytes of a body
MAX_DEPTH = 32             # of its JSON
MAX_VALUES = 1 << 16       # in its JSON, keys not counted
MAX_CONTAINERS = 1024      # of those, lists and objects
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
REQUEST_SECONDS = 10.0        # that a request's headers may take to come, and its body
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
PATHS_WITHOUT_TOKEN = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz"})    # need no token
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
           "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cache-Control": "no-store"}
HEADER_BYTES = {name.lower().encode(): (name.encode(), value.encode()) for name, value in HEADERS.items()}
_log = logging.getLogger("serving")


class Problem(Exception):
    """An error response; it may repeat nothing that was sent, except plain words.

    errors: (JSON pointer to a field, what is wrong with it).
    """

    def __init__(self, status: int, code: str, detail: str, *, errors: Sequence[tuple[str, str]] = (),
                 headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.errors, self.headers = status, code, detail, errors, headers or {}

    def body(self) -> bytes:
        """Return the problem as JSON."""
        fields: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status,
                                  "detail": self.detail, "code": self.code, "link": f"/docs#{self.code}"}
        if self.errors:
            fields["errors"] = [{"pointer": pointer, "detail": detail} for pointer, detail in self.errors]
        return orjson.dumps(fields)

    def response(self) -> Response:
        """Return the problem as an HTTP response."""
        return Response(self.body(), self.status, dict(self.headers), "application/problem+json")


INTERNAL = Problem(500, "internal", "the server failed; its log has the request under its X-Request-ID")


def json_response(value: Any) -> Response:
    """Return a value as an HTTP response in JSON."""
    return Response(orjson.dumps(value), media_type=JSON)


@dataclass(frozen=True)
class Access:
    """Who may send requests: the server's host names, and the token that is required, "" for none."""

    hosts: frozenset[str] = LOOPBACK
    token: str = field(default="", repr=False)

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise Problem for another host's name, another origin's page, or a missing token."""
        host = headers.get("host", "")
        if re.sub(r":\d*$", "", host).lower() not in self.hosts:
            raise Problem(421, "host", "send a name of this server as Host; xc serve --allow-host NAME adds one")
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2] != host:
            raise Problem(403, "origin", "pages of other origins may not ask this server")
        if self.token and path not in PATHS_WITHOUT_TOKEN:
            given = token_of(headers.get("authorization", ""))
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                raise Problem(401, "token", "send the server's token: Authorization: Bearer TOKEN",
                              headers={"WWW-Authenticate": "Bearer"})


def token_of(authorization: str) -> str:
    """Return the token in an Authorization header, "" where there is none: Bearer TOKEN, or Basic with it for password.

    Clients that know of no tokens, as Annif, send what stands for the host in ~/.netrc, by Basic.
    """
    kind, _, given = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(given.strip(), validate=True).decode("latin-1").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return given.strip() if kind.lower() == "bearer" else ""


class Guard:
    """An ASGI app in front of another: checks access, gives each request an id, and turns exceptions into problems.

    direct: apps that are called directly for a (method, path). They bypass the other's routing and layers, which would
    double the time of a short request.

    on_request: called with (path, method, status, seconds) of each request; where a route was found, its path, in which
    a parameter has its name instead of its value. on_refusal: with the code of each problem.
    """

    def __init__(self, app: ASGIApp, access: Access, on_request: Callable[[str, str, int, float], None],
                 on_refusal: Callable[[str], None], direct: Mapping[tuple[str, str], ASGIApp]) -> None:
        self.app, self.access, self._on_request, self._on_refusal, self.direct = (
            app, access, on_request, on_refusal, direct)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        sent_id = headers.get("x-request-id", "")
        request_id = sent_id if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", sent_id) else uuid.uuid4().hex
        clock, status = asyncio.get_running_loop().time, 0
        began = clock()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {key.lower() for key, _ in message["headers"]}
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *(
                    header for name, header in HEADER_BYTES.items() if name not in present)]
            await send(message)

        problem = None
        # HEAD is answered as GET, by the same code; the protocol leaves the body out.
        app_scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            self.access.admit(scope["method"], scope["path"], headers)
            answering = self.direct.get((scope["method"], scope["path"]), self.app)
            await answering(app_scope, receive, send_with_headers)
        except Problem as error:
            problem = error
        except ClientDisconnect:
            status = 499
        except Exception:
            _log.exception("request %s failed", request_id)
            problem = INTERNAL
        if problem is not None and not status:
            self._on_refusal(problem.code)
            await problem.response()(scope, receive, send_with_headers)
        route = app_scope.get("route")
        self._on_request(route.path if route else scope["path"], scope["method"], status, clock() - began)


async def read_json(request: Request) -> Any:
    """Return a request's body as JSON: at most MAX_BODY bytes within REQUEST_SECONDS, at most MAX_DEPTH deep."""
    return parsed(await read_body(request, JSON))


async def read_body(request: Request, kind: str) -> bytes:
    """Return a request's body of a media type: at most MAX_BODY bytes within REQUEST_SECONDS."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Problem(415, "content-type", f"send Content-Type: {kind}")
    if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise Problem(415, "content-type", "send the body as it is, without Content-Encoding")
    # The rest of a body that is too large is read and dropped before the connection is closed: closing it at once would
    # reset it, and the client could not read the answer.
    too_large = Problem(413, "body", f"a body has at most {MAX_BODY:,} bytes")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise Problem(408, "slow", f"the body did not come within {REQUEST_SECONDS:g} seconds",
                      headers={"Connection": "close"}) from None
    return bytes(body)


def parsed(body: bytes) -> Any:
    """Parse JSON; raise Problem where it is invalid, has too many values or nests too deep."""
    marks = body.count(b"[") + body.count(b"{")    # those in strings, too
    if marks > MAX_CONTAINERS or marks + body.count(b",") >= MAX_VALUES:
        values, containers = count_values(body)
        if values > MAX_VALUES or containers > MAX_CONTAINERS:
            raise Problem(413, "values", f"the body's JSON has at most {MAX_VALUES:,} values, "
                                         f"{MAX_CONTAINERS:,} of them lists and objects")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            body.decode()    # orjson says neither that it is not UTF-8 nor where
        except UnicodeDecodeError as bad:
            raise Problem(400, "json", f"the body is not UTF-8, from byte {bad.start + 1} on") from None
        raise Problem(400, "json", f"the body cannot be read as JSON, line {error.lineno}, column {error.colno}: "
                                   f"{error.msg}") from None    # msg repeats nothing of the body
    if marks <= MAX_DEPTH:
        return value
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level if isinstance(parent, dict | list)
                 for child in (parent.values() if isinstance(parent, dict) else parent)]
        if not level:
            return value
    if any(isinstance(child, dict | list) for child in level):
        raise Problem(400, "depth", f"the body's JSON nests at most {MAX_DEPTH} deep")
    return value


def count_values(body: bytes) -> tuple[int, int]:
    """Estimate how many values JSON has, and how many lists and objects, by brackets and commas outside of strings.

    It takes a millisecond a megabyte, while parsing hundreds of thousands of values would block every other request for
    most of a second.
    """
    plain = body.replace(rb"\\", b"").replace(rb'\"', b"")    # each quotation mark left begins or ends a string
    strings = plain.count(b'"') // 2
    if strings > 2 * MAX_VALUES:    # a value has a key at most and is a string at most
        return strings // 2, 0
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    return 1 + outside.count(b",") + containers, containers
