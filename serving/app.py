"""The FastAPI app: /predict, /model, /healthz, /readyz, /metrics and the HTML pages."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from serving import schemas
from serving.annif import add_annif
from serving.answers import ModelService
from serving.feedback import FeedbackKeeper
from serving.http.guard import INTERNAL, Access, Guard, Problem, json_response, read_json
from serving.model_watcher import AliasFollower
from serving.openapi import CODES, described, document, page_of
from serving.prometheus import ServerMetrics
from serving.workers.shared_status import Peers


def create_app(follower: AliasFollower, access: Access, keeper: FeedbackKeeper | None,
               metrics: Callable[[frozenset[str]], ServerMetrics] = ServerMetrics,
               peers: Peers | None = None) -> tuple[Guard, ModelService]:
    """Return the guarded app and its prediction service; the follower starts and stops with the app.

    keeper: of the feedback that it takes; None = it takes none. metrics: counts, by routes. peers: what the other
    workers of the server say.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        follower.start()
        yield
        await service.batcher.close()
        await asyncio.to_thread(follower.stop)

    app = FastAPI(title="xcflow", version="1", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None,
                  redirect_slashes=False, description="Tags short texts with the few right labels out of very many.")
    counters = metrics(frozenset({"/", "/docs", "/openapi.json", *(path for path, _ in CODES)}))
    service = ModelService(follower, counters, peers)

    def refuse(problem: Problem) -> Response:
        counters.refused(problem.code)
        return problem.response()

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        details = {404: "there is nothing at this address", 405: "this address takes another method"}
        headers = dict(error.headers or {})
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"    # see Guard
        return refuse(Problem(error.status_code, "route", details.get(error.status_code, "this cannot be answered"),
                              headers=headers))

    async def problem(request: Request, error: Exception) -> Response:
        return refuse(error if isinstance(error, Problem) else INTERNAL)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)    # nobody reads it; no refusal, and no error of the server

    for kind, handler in ((HTTPException, unknown), (Problem, problem), (ClientDisconnect, gone), (Exception, problem)):
        app.add_exception_handler(kind, handler)
    _operations(app, service, counters, keeper)
    add_annif(app, service, keeper)
    _pages(app)

    async def predict(scope: Scope, receive: Receive, send: Send) -> None:
        response = await _predicted(service, Request(scope, receive))
        await response(scope, receive, send)

    return Guard(app, access, counters.request, counters.refused, {("POST", "/predict"): predict}), service


async def _predicted(service: ModelService, request: Request) -> Response:
    return json_response(await service.predict(schemas.checked(await read_json(request))))


def _operations(app: FastAPI, service: ModelService, counters: ServerMetrics, keeper: FeedbackKeeper | None) -> None:
    @app.post("/predict", response_model=schemas.Answers, **document("/predict", "post", body=schemas.PredictRequest))
    async def predict(request: Request) -> Response:
        """Return the best labels of each text."""
        return await _predicted(service, request)

    @app.post("/feedback", response_model=schemas.Kept, **document("/feedback", "post", body=schemas.FeedbackRequest))
    async def feedback(request: Request) -> Response:
        """Keep what a reviewer decided on a text's labels; answered once it is on the disk."""
        if keeper is None:
            raise Problem(403, "feedback", "this server takes no feedback: xc serve --feedback refuse")
        decision = schemas.checked_feedback(await read_json(request))
        kept = await keeper.keep(decision, service.answering(), request.client.host if request.client else "")
        return json_response({name: len(getattr(kept, name)) for name in schemas.Kept.model_fields})

    @app.get("/model", response_model=schemas.ModelFacts, **document("/model", "get"))
    async def model() -> Response:
        """Return which version answers at present, or why none does."""
        served = service.current(service.fault)
        return json_response({**served.named(), "labels": len(served.retriever), "examples": served.examples,
                              "calibrated": served.retriever.calibration.queries > 0, "fault": service.fault,
                              "feedback": keeper is not None})

    @app.get("/healthz", response_class=PlainTextResponse, **document("/healthz", "get"))
    async def healthz() -> str:
        """Answer as long as the process does; the model is not asked."""
        return "ok"

    @app.get("/readyz", response_class=PlainTextResponse, **document("/readyz", "get"))
    async def readyz() -> Response:
        """Answer 200 once a prediction was made, until the server stops.

        "degraded" where the alias cannot be followed, or the version that answers failed at a question, and with 503
        where its files were changed, so that nothing is answered. /model says what is wrong.
        """
        if service.draining:
            raise Problem(503, "draining", "the server is about to stop", headers={"Retry-After": "2"})
        refused = service.current().watch.damage or service.peers.refuses
        return PlainTextResponse("degraded" if service.fault else "ok", 503 if refused else 200)

    @app.get("/metrics", response_class=PlainTextResponse, **document("/metrics", "get"))
    async def metrics() -> Response:
        """Return what Prometheus reads."""
        text = counters.text(service.follower.current, service.fault, service.batcher.length)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _pages(app: FastAPI) -> None:
    """Add the routes of the web page, the OpenAPI description, and the documentation page made from it."""
    openapi = described(app.openapi())
    page, documentation = files("serving").joinpath("page.html").read_text(encoding="utf-8"), page_of(openapi)

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return json_response(openapi)

    for path, html in (("/", page), ("/docs", documentation)):
        app.add_api_route(path, _page(html), include_in_schema=False)


def _page(html: str) -> Any:
    headers = {"Content-Security-Policy": policy(html)}

    async def page() -> Response:
        return Response(html, 200, headers, "text/html; charset=utf-8")

    return page


def policy(html: str) -> str:
    """Return a page's Content-Security-Policy: only its own script and style, and requests only to this server."""
    def sources(tag: str) -> str:
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
                  for part in re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)]
        return " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"

    return (f"default-src 'none'; script-src {sources('script')}; style-src {sources('style')}; connect-src 'self'; "
            "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'")
