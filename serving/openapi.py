"""OpenAPI description of the HTTP API: examples, possible errors, and a page of both."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from pydantic import BaseModel

from serving.http.guard import FORM, JSON, MAX_CONTAINERS, MAX_VALUES
from serving.schemas import EXAMPLE, MAX_EXPLAINED, MAX_LABELS, MAX_LISTED, MAX_TEXT, MAX_TEXTS, ProblemDetails

PROJECT = "/v1/projects/{project_id}"
_BODY_CODES = {401: ("token",), 403: ("origin",), 408: ("slow",), 415: ("content-type",), 421: ("host",),
               500: ("internal", "version")}
_SUGGEST = {**_BODY_CODES, 404: ("project",), 503: ("queue-full", "timeout", "no-model", "connections")}
# The error statuses of each operation, and the problem codes of each status.
CODES: Mapping[tuple[str, str], Mapping[int, tuple[str, ...]]] = {
    ("/predict", "post"): {**_BODY_CODES, 400: ("json", "depth", "http"), 413: ("body", "text", "values"),
                           422: ("invalid", "explain", "unknown-label", "no-branches"),
                           503: ("queue-full", "timeout", "no-model", "connections")},
    ("/feedback", "post"): {**_BODY_CODES, 400: ("json", "depth", "http"), 403: ("origin", "feedback"),
                            413: ("body", "text", "values"), 422: ("invalid",), 429: ("rate",),
                            503: ("disk", "journal", "no-model", "connections")},
    ("/model", "get"): {401: ("token",), 421: ("host",), 503: ("no-model",)},
    ("/healthz", "get"): {421: ("host",)},
    ("/readyz", "get"): {421: ("host",), 503: ("no-model", "draining")},
    ("/metrics", "get"): {401: ("token",), 421: ("host",)},
    ("/v1/", "get"): {401: ("token",), 421: ("host",)},
    ("/v1/projects", "get"): {401: ("token",), 421: ("host",), 503: ("no-model",)},
    (PROJECT, "get"): {401: ("token",), 404: ("project",), 421: ("host",), 503: ("no-model",)},
    (f"{PROJECT}/suggest", "post"): {**_SUGGEST, 400: ("form", "field", "http"), 413: ("body", "values")},
    (f"{PROJECT}/suggest-batch", "post"): {**_SUGGEST, 400: ("json", "depth", "field", "http"),
                                           413: ("body", "values")},
    (f"{PROJECT}/learn", "post"): {**_BODY_CODES, 400: ("json", "depth", "field", "http"), 403: ("origin", "feedback"),
                                   404: ("project",), 413: ("body", "values"), 429: ("rate",),
                                   503: ("disk", "journal", "no-model", "connections")}}
MEANING = {
    "json": "The body cannot be read as JSON.", "depth": "The body nests too deep.",
    "http": "This is not well-formed HTTP/1.1.",
    "token": "The server asks for a token: send Authorization: Bearer TOKEN, or Basic with it as the password.",
    "origin": "A page of another origin asks; only the server's own page may.",
    "values": f"The body has too many values: {MAX_VALUES:,} at most, of which {MAX_CONTAINERS:,} may be lists and "
              f"objects; a form has {MAX_CONTAINERS:,} fields at most.",
    "slow": "The body did not come in time.", "body": "The body is too large: 1 MiB at most.",
    "text": f"A text is too long: {MAX_TEXT:,} bytes at most.",
    "content-type": "Send the Content-Type that the address takes, and no Content-Encoding.",
    "host": "The Host header names another server, or is missing: xc serve --allow-host NAME.",
    "invalid": f"A field is missing, unknown or out of bounds: 1 to {MAX_TEXTS} texts, k from 1 to {MAX_LABELS}, "
               f"threshold from 0 to 1, {MAX_LISTED:,} labels in a list. Of feedback: a text that is not blank, a "
               "label at least, none both right and wrong, all known to the model.",
    "unknown-label": "An entry of only or without names no label, or no concept: /model tells which version answers.",
    "no-branches": "A branch is named, and the version was trained on data without a broader relation.",
    "feedback": "The server takes no feedback.", "rate": "Too much feedback from one address; send the rest later.",
    "disk": "The decision could not be written; send it again after Retry-After seconds.",
    "journal": "The journal of feedback is full; it must be moved away before more is taken.",
    "explain": f"Too many labels are to be explained at once: {MAX_EXPLAINED} at most, k of each text.",
    "form": "The body is not the form that an HTML page sends, in UTF-8 and each field once.",
    "field": "A field is missing, of the wrong type or out of bounds.",
    "project": "There is no such project; /v1/projects lists the one that there is.",
    "version": "The version that answers is damaged, or failed at this question; /model tells how.",
    "internal": "The server failed; its log tells why.",
    "queue-full": "Too many texts wait; ask again after Retry-After seconds.",
    "timeout": "There was no answer in time; ask again after Retry-After seconds.",
    "no-model": "No version could be loaded yet.", "connections": "Too many connections are open.",
    "draining": "The server is about to stop.", "route": "There is nothing at this address, or not by this method."}
_MODEL = {"name": "wordnet", "version": "3", "digest": "6" * 64, "data": "f" * 64}
_CAT = {"id": 21270, "uid": "n02127275", "text": "wildcat", "score": 2.400809, "confidence": 0.096318}
_EXPLANATION = {"parts": {"encoder": 0.536256, "classifier": 0.870689, "similar texts": 0.700061, "words": 0.108048,
                          "sparse": 0.038438, "frequent": 0.0, "name": 0.074797, "trees": 0.07252},
                "words": {"wild": 0.815516, "cat": 0.475325}, "frequency": 14, "nearest": [
    {"text": "European wildcat, catamountain, Felis silvestris", "similarity": 0.475528,
     "labels": ["Felis, genus Felis", "wildcat"]}]}
_PROJECT = {"project_id": "books", "name": "books version 3", "language": "und",
            "backend": {"backend_id": "xcflow ngame"},
            "vocab": {"vocab_id": "books", "languages": ["und"], "size": 23648, "loaded": True},
            "vocab_language": "und", "is_trained": True, "modification_time": "2026-05-19T16:42:42Z"}
_SUBJECT = {"uri": "http://www.yso.fi/onto/yso/p864", "label": "cats", "notation": None, "score": 0.725337}
_NAMED = {"X-Request-ID": {"description": "Name of the request in the log, and in feedback on the answer",
                           "schema": {"type": "string"}}}
_RETRY = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}}
ANSWERS: Mapping[str, Any] = {
    "/predict": {"model": _MODEL, "results": [{"labels": [_CAT | _EXPLANATION]}]},
    "/feedback": {"accepted": 1, "rejected": 0, "added": 0},
    "/model": {**_MODEL, "labels": 67892, "examples": [EXAMPLE], "calibrated": True, "fault": "",
               "feedback": True},
    "/v1/": {"title": "xcflow, in the shape of Annif's REST API", "version": "0.1.0"},
    "/v1/projects": {"projects": [_PROJECT]}, PROJECT: _PROJECT, f"{PROJECT}/suggest": {"results": [_SUBJECT]},
    f"{PROJECT}/suggest-batch": [{"results": [_SUBJECT], "document_id": "doc-1"},
                                 {"results": [], "document_id": "doc-2"}],
    f"{PROJECT}/learn": None,    # 204
    "/healthz": "ok", "/readyz": "ok", "/metrics": 'xc_model_info{name="wordnet",version="3"} 1.0\n'}
_LIMITED = {"text": "On cats and other pets", "limit": 3, "threshold": 0.2}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/predict": {
        "one": {"summary": "One text", "value": {"texts": [EXAMPLE], "k": 3}},
        "sure": {"summary": "Only labels that are likely right", "value": {"texts": [EXAMPLE], "threshold": 0.5}},
        "chosen": {"summary": "Two labels to choose from, and a branch that is left out", "value": {
            "texts": [EXAMPLE], "only": ["n02130460", "n02127275"], "without": [{"under": "n02085998"}]}},
        "explained": {"summary": "Why these labels", "value": {"texts": [EXAMPLE], "k": 3, "explain": True}}},
    "/feedback": {
        "judged": {"summary": "One label is right, one is wrong", "value": {
            "text": EXAMPLE, "accepted": ["n02130460"], "rejected": ["n02120997"], "request_id": "a3f1"}},
        "added": {"summary": "A label was missing", "value": {"text": EXAMPLE, "added": ["n02130460"]}}},
    f"{PROJECT}/suggest": {"one": {"summary": "One document, as a form", "value": _LIMITED}},
    f"{PROJECT}/suggest-batch": {"two": {"summary": "Two documents", "value": {"documents": [
        {"text": "On cats and other pets", "document_id": "doc-1"}, {"text": " ", "document_id": "doc-2"}]}}},
    f"{PROJECT}/learn": {"one": {"summary": "A document whose subjects are known", "value": [
        {"text": "On cats and other pets", "subjects": [{"uri": "http://www.yso.fi/onto/yso/p864"}]}]}}}


def document(path: str, method: str, body: type[BaseModel] | None = None, *, form: bool = False,
             query: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return FastAPI's arguments for an operation: its problems, and examples of its requests and responses.

    form: whether its body is a form, not JSON. query: the parameters in its address.
    """
    answer = ANSWERS[path]
    kind = "text/plain" if isinstance(answer, str) else JSON
    responses: dict[int | str, Any] = {} if answer is None else {200: {"content": {kind: {"example": answer}}}}
    for status, codes in sorted(CODES[path, method].items()):
        responses[status] = {"model": ProblemDetails, "description": " ".join(MEANING[code] for code in codes),
                             "content": {"application/problem+json": {"examples": {code: {"value": {
                                 "type": "about:blank", "title": "…", "status": status, "detail": MEANING[code],
                                 "code": code, "link": f"/docs#{code}"}} for code in codes}}}}
    parameters = [{"name": "project_id", "in": "path", "required": True, "schema": {"type": "string"},
                   "description": "The model's name"}] if "{project_id}" in path else []
    if query:
        parameters += [{"name": name, "in": "query", "required": False, "schema": schema,
                        "description": schema["description"]}
                       for name, schema in query.model_json_schema()["properties"].items()]
    extra: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if body:
        extra["requestBody"] = {"required": True, "content": {FORM if form else JSON: {
            "schema": _in_one(body.model_json_schema()), "examples": BODIES[path]}}}
    return {"responses": responses, "openapi_extra": extra}


def _in_one(schema: Any, definitions: Mapping[str, Any] | None = None) -> Any:
    """Return a JSON schema with its definitions in the places that refer to them."""
    if isinstance(schema, list):
        return [_in_one(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", definitions or {})
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **schema}
    return {key: _in_one(value, definitions) for key, value in schema.items() if key not in ("$defs", "$ref")}


def described(openapi: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's description with what it leaves out or gets wrong.

    Added are the token, where it is asked for, and the headers of answers. An error's schema is moved to its own media
    type from that of the operation's answers, and examples of answers get back their nulls.
    """
    openapi["components"]["securitySchemes"] = {kind: {"type": "http", "scheme": kind} for kind in ("bearer", "basic")}
    for path, operations in openapi["paths"].items():
        for operation in operations.values():
            if "401" in operation["responses"]:
                operation["security"] = [{}, {"bearer": []}, {"basic": []}]    # {}: a server may have no token
            for status, response in operation["responses"].items():
                response["headers"] = _NAMED | (_RETRY if status in ("429", "503") else {})
                content = response.get("content", {})
                if status == "200" and JSON in content:
                    content[JSON]["example"] = ANSWERS[path]
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
