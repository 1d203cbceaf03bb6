"""OpenAPI description of the HTTP API: examples, possible errors, and a page of both."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from pydantic import BaseModel

from serving.http.guard import CONTAINERS, VALUES
from serving.schemas import EXAMPLE, EXPLAINED, LABELS, LISTED, TEXT, TEXTS, ProblemDetails

# The error statuses of each operation, and the problem codes of each status.
CODES: Mapping[tuple[str, str], Mapping[int, tuple[str, ...]]] = {
    ("/predict", "post"): {400: ("json", "depth", "http"), 401: ("token",), 403: ("origin",), 408: ("slow",),
                           413: ("body", "text", "values"), 415: ("content-type",), 421: ("host",),
                           422: ("invalid", "explain", "unknown-label", "no-branches"), 500: ("internal", "version"),
                           503: ("queue-full", "timeout", "no-model", "connections")},
    ("/model", "get"): {401: ("token",), 421: ("host",), 503: ("no-model",)},
    ("/healthz", "get"): {421: ("host",)},
    ("/readyz", "get"): {421: ("host",), 503: ("no-model", "draining")},
    ("/metrics", "get"): {401: ("token",), 421: ("host",)}}
MEANING = {
    "json": "The body is not JSON.", "depth": "The body nests too deep.", "http": "This is not well-formed HTTP/1.1.",
    "token": "The server asks for a token: send Authorization: Bearer TOKEN.",
    "origin": "A page of another origin asks; only the server's own page may.",
    "values": f"The body's JSON has too many values: {VALUES:,} at most, of which {CONTAINERS:,} may be lists and "
              f"objects, and {TEXTS} texts.",
    "slow": "The body did not come in time.", "body": "The body is too large: 1 MiB at most.",
    "text": f"A text is too long: {TEXT:,} bytes at most.", "content-type": "Send Content-Type: application/json.",
    "host": "The Host header names another server: xc serve --allow-host NAME.",
    "invalid": f"A field is missing, unknown or out of bounds: 1 to {TEXTS} texts, k from 1 to {LABELS}, "
               f"threshold from 0 to 1, {LISTED:,} labels in a list.",
    "unknown-label": "An entry of only or without names no label: /model tells which version answers.",
    "no-branches": "A branch is named, and the version was trained on data without a broader relation.",
    "explain": f"Too many labels are to be explained at once: {EXPLAINED} at most, k of each text.",
    "version": "The version that answers is damaged, or failed at this question; /model tells how.",
    "internal": "The server failed; its log tells why.",
    "queue-full": "Too many texts wait; ask again after Retry-After seconds.",
    "timeout": "There was no answer in time; ask again after Retry-After seconds.",
    "no-model": "No version could be loaded yet.", "connections": "Too many connections are open.",
    "draining": "The server is about to stop.", "route": "There is nothing at this address, or not by this method."}
_MODEL = {"name": "wordnet", "version": "3", "digest": "6" * 64, "data": "f" * 64}
_CAT = {"id": 21284, "uid": "n02130460", "text": "big cat, cat", "score": 1.88658, "confidence": 0.081672}
_EXPLANATION = {"parts": {"encoder": 0.519936, "classifier": 0.603358, "similar texts": 0.516418, "words": 0.044549,
                          "sparse": 0.009098, "trees": 0.193221},
                "words": {"large": 0.133991, "cat": -0.123475}, "frequency": 6, "nearest": [
    {"text": "leopard, Panthera pardus", "similarity": 0.420658,
     "labels": ["big cat, cat", "Panthera, genus Panthera"]}]}
ANSWERS: Mapping[str, Any] = {
    "/predict": {"model": _MODEL, "results": [{"labels": [_CAT | _EXPLANATION]}]},
    "/model": {**_MODEL, "labels": 67892, "examples": [EXAMPLE], "fault": ""},
    "/healthz": "ok", "/readyz": "ok", "/metrics": 'xc_model_info{name="wordnet",version="3"} 1.0\n'}
BODIES = {"one": {"summary": "One text", "value": {"texts": [EXAMPLE], "k": 3}},
          "sure": {"summary": "Only labels that are likely right", "value": {"texts": [EXAMPLE], "threshold": 0.5}},
          "chosen": {"summary": "Two labels to choose from, and a branch that is left out", "value": {
              "texts": [EXAMPLE], "only": ["n02130460", "n02127275"], "without": [{"under": "n02085998"}]}},
          "explained": {"summary": "Why these labels", "value": {"texts": [EXAMPLE], "k": 3, "explain": True}}}


def document(path: str, method: str, body: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return FastAPI's arguments for an operation: its problems, and examples of its requests and responses."""
    kind = "application/json" if isinstance(ANSWERS[path], dict) else "text/plain"
    responses: dict[int | str, Any] = {200: {"content": {kind: {"example": ANSWERS[path]}}}}
    for status, codes in CODES[path, method].items():
        responses[status] = {"model": ProblemDetails, "description": " ".join(MEANING[code] for code in codes),
                             "content": {"application/problem+json": {"examples": {code: {"value": {
                                 "type": "about:blank", "title": "…", "status": status, "detail": MEANING[code],
                                 "code": code, "link": f"/docs#{code}"}} for code in codes}}}}
    extra = {"requestBody": {"required": True, "content": {"application/json": {
        "schema": body.model_json_schema(), "examples": BODIES}}}} if body else {}
    return {"responses": responses, "openapi_extra": extra}


def described(openapi: dict[str, Any]) -> dict[str, Any]:
    """Move each error's schema to its own media type: FastAPI puts it under that of the operation's answers."""
    for operations in openapi["paths"].values():
        for operation in operations.values():
            for content in (response["content"] for response in operation["responses"].values()):
                if (problems := content.get("application/problem+json")) is not None:
                    [other] = content.keys() - {"application/problem+json"}
                    problems["schema"] = content.pop(other)["schema"]
    return openapi


def page_of(openapi: Mapping[str, Any]) -> str:
    """Return the description as a self-contained HTML page."""
    template = files("serving").joinpath("docs.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return environment.from_string(template).render(openapi=openapi, meaning=MEANING)
