"""Malformed and hostile requests by the hundred, made from the description of the API: a 4xx each, and no crash.

XC_FUZZ=10000 asks as many.
"""

import json
import os
import string
from typing import Any
from urllib.parse import quote_plus

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

REQUESTS = int(os.environ.get("XC_FUZZ", "400"))
ANNIF = "/v1/projects/xc/suggest", "/v1/projects/xc/suggest-batch"
LONGEST = 300     # values of a list, at most
GROWTH = 150e6    # bytes that serving may take on top of what it has after its first requests
MARKS = ("\x00", "\r\n", "../", "%2e%2e", "%00", "<script>", "\u202e", "\ud800", "\xff", "'", '"', "{{7*7}}", "${x}",
         "A" * 9000)
FIELDS = ("Host", "Content-Type", "Content-Length", "Connection", "Origin", "Authorization", "X-Request-ID", "Expect",
          "Upgrade", "Transfer-Encoding", "Content-Encoding", "Accept", "Cookie")


def numbers() -> st.SearchStrategy[str]:
    """Numbers as JSON has them, and as it must not."""
    return st.one_of(
        st.integers(-2**70, 2**70).map(str), st.floats().map(str), st.sampled_from(
            ["NaN", "Infinity", "-Infinity", "1e400", "-0", "01", "1.", ".5", "0x10", "1_000", "5.0", '"5"', "true"]))


def texts() -> st.SearchStrategy[str]:
    """Texts of any characters, halves of pairs among them, as a JSON string."""
    plain = st.text(st.characters(codec=None), max_size=60).map(json.dumps)
    raw = st.text(max_size=40).map(lambda text: f'"{text}"')
    return plain | raw | st.sampled_from([json.dumps(mark) for mark in MARKS] + [f'"{mark}"' for mark in MARKS])


def values(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """JSON for a field: what its schema asks for, its bounds, and what it does not."""
    if "anyOf" in schema:
        return st.one_of([values(each) for each in schema["anyOf"]])
    own = {"null": st.just("null"), "object": texts().map(lambda text: f'{{"under": {text}}}'),
           "integer": st.sampled_from([str(schema.get("minimum", 0) - 1), str(schema.get("maximum", 0) + 1), "1"]),
           "number": st.floats(-0.5, 1.5).map(str), "boolean": st.sampled_from(["true", "false"]), "string": texts()}
    if schema["type"] == "array":
        several = st.lists(values(schema["items"]), max_size=5).map(lambda each: f"[{','.join(each)}]")
        longest = min(schema.get("maxItems", 9), LONGEST) + 3
        many = st.integers(0, longest).map(lambda n: "[" + ",".join(['"a"'] * n) + "]")
        of_kind = several | many
    else:
        of_kind = own[schema["type"]]
    deep = st.integers(1, 2000).map(lambda n: "[" * n + "]" * n)
    return of_kind | numbers() | texts() | deep | st.sampled_from(["null", "{}", "[]", '{"a": []}', "[null]", "["])


def bodies(schema: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Bodies like an operation's: its fields and others, left out, doubled, in a wrong type; or no JSON at all."""
    fields = schema["properties"]
    name = st.sampled_from([*fields, *fields, "K", "text", "__proto__", "", "\x00"])
    pair = name.flatmap(lambda key: st.tuples(st.just(json.dumps(key)),
                                              values(fields.get(key, {"type": "integer"}))).map(":".join))
    objects = st.lists(pair, max_size=5).map(lambda pairs: "{" + ",".join(pairs) + "}")
    valid = st.tuples(st.lists(texts(), min_size=1, max_size=3), st.integers(1, 30), st.booleans().map(json.dumps),
                      st.floats(0, 1)).map(lambda made: f'{{"texts": [{",".join(made[0])}], "k": {made[1]}, "explain": '
                                                        f'{made[2]}, "threshold": {made[3]}}}')    # but for its texts
    lists = values({"type": "array", "items": {"type": "string"}})
    as_bytes = (objects | valid | lists).map(lambda text: text.encode("utf-8", "surrogatepass"))
    cut = st.tuples(as_bytes, st.integers(0, 60)).map(lambda made: made[0][:made[1]])
    return as_bytes | as_bytes | cut | st.binary(max_size=200)


def forms() -> st.SearchStrategy[bytes]:
    """Forms as Annif's clients send them, and others."""
    names = st.sampled_from(["text", "text", "limit", "threshold", "language", "metadata_title", "project", "", "%"])
    quoted = st.text(max_size=60).map(quote_plus) | numbers() | st.sampled_from([*MARKS, "%4", "%E4", "+", "=", ";"])
    pairs = st.tuples(names, quoted).map("=".join)
    joined = st.lists(pairs, max_size=6).map("&".join).map(lambda text: text.encode("utf-8", "surrogatepass"))
    return joined | joined.map(lambda form: b"text=a&" + form) | st.binary(max_size=200)


TOKENS = st.text(string.ascii_letters + string.digits + "-_.~!$%&'*+^`|", min_size=1, max_size=20)
HEADER_TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=60) | st.sampled_from(MARKS)


@st.composite
def requests(draw: st.DrawFn, description: dict[str, Any]) -> bytes:
    """Draw a request as bytes: a right one but for its body, or off in its first line and headers, too."""
    right = draw(st.booleans())
    paths = list(description["paths"])
    path = draw(st.sampled_from([*paths, "/", "/docs", "/openapi.json"]) | st.text(max_size=30).map(lambda t: f"/{t}"))
    path += draw(st.sampled_from(["", "", "", "/", "?", "?k=NaN", "#x", "/../x", "/%2e%2e/", "%00", ";a", "//"]))
    method = draw(st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS"]) | TOKENS)
    if right:
        method, path = "POST", draw(st.sampled_from(["/predict", "/predict", "/feedback", *ANNIF]))
    operation = description["paths"]["/feedback" if path == "/feedback" else "/predict"]["post"]
    body = draw(forms() if path == ANNIF[0] else
                bodies(operation["requestBody"]["content"]["application/json"]["schema"]))
    if path == ANNIF[1]:
        body = body.replace(b'"texts"', b'"documents"')
    kind = "application/x-www-form-urlencoded" if path == ANNIF[0] else "application/json"
    headers = {"Host": "localhost", "Content-Type": kind, "Content-Length": str(len(body)),
               "Connection": "close"}
    for name in [] if right else draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
        headers[name] = draw(HEADER_TEXT | st.sampled_from(["", "0", "-1", "1e3", "chunked", "gzip", "100-continue",
                                                            "websocket", "close", "keep-alive", "99999999"]))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


@pytest.mark.timeout(7200)
def test_no_request_makes_the_server_fail(server):
    description = server.ask("/openapi.json").json()
    process, seen, most = psutil.Process(server.process.pid), dict[int, int](), [0, 0]

    @settings(max_examples=REQUESTS, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck), derandomize=REQUESTS == 400)
    @given(requests(description))
    def ask(request: bytes) -> None:
        reply = server.send(request, timeout=30)
        assert reply.status < 500, (request, reply)
        if reply.status >= 400 and not request.startswith(b"HEAD "):    # which has no body
            assert reply.json()["status"] == reply.status, (request, reply)
        seen[reply.status] = seen.get(reply.status, 0) + 1
        used = process.memory_info().rss
        most[sum(seen.values()) > REQUESTS // 10] = max(most[sum(seen.values()) > REQUESTS // 10], used)

    ask()
    assert server.process.poll() is None and server.fine()
    assert {200, 400, 404, 405, 422} <= seen.keys(), seen
    print(f"{sum(seen.values())} requests: {dict(sorted(seen.items()))}; memory {most[0] / 1e6:.0f} MB in the first "
          f"tenth, {most[1] / 1e6:.0f} MB after")
    assert most[1] < most[0] + GROWTH
    assert "Traceback" not in server.log.read_text()
