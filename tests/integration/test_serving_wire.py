"""HTTP on the wire, by raw sockets: what is malformed, slow or half closed harms nobody and is answered as promised."""

import asyncio
import json
import socket
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from serving.app import create_app
from serving.feedback import FeedbackKeeper
from serving.http.guard import FORM, MAX_VALUES, REQUEST_SECONDS, Access, Problem, count_values, parsed, read_body
from serving.http.protocol import CHUNKS
from serving.prometheus import ServerMetrics
from tests.support.running_server import ServedModels, problem, running

GOOD = {"texts": ["a wolf that lives in the mountains"], "k": 3}
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = ServedModels(tmp_path_factory.mktemp("wire") / "home")
    models.add(titles=[f"{'a long name ' * 80}{number}" for number in range(50)])    # no answer fits into a socket
    with running(models.home) as server:
        yield server


def test_chunked_and_lying_bodies(server):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    good = json.dumps(GOOD).encode()
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    assert server.send(chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(good), good)).status == 200
    huge = chunked + b"".join(b"10000\r\n%s\r\n" % (b"a" * 65536) for _ in range(40)) + b"0\r\n\r\n"
    problem(server.send(huge), 413, "body")
    problem(server.send(chunked + b"zz\r\n" + good), 400, "http")
    problem(server.send(head + b"Content-Length: 999999999999999999\r\n\r\n"), 413, "body")
    problem(server.send(head + b"Content-Length: 99999999999999999999999\r\n\r\n"), 400, "http")
    problem(server.send(head + b"Content-Length: -5\r\n\r\n"), 400, "http")
    problem(server.send(head + b"Content-Length: 5, 6\r\n\r\n"), 400, "http")
    problem(server.send(head + b"Content-Length: 5\r\n\r\n" + good), 400, "json")    # more came than was said
    assert server.send(head + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % len(good)
                       ).status == 400
    assert server.fine()


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100 + b"\r\n\r\n", b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", b"GET /" + b"a" * (1 << 17) + b" HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"x%d: %s\r\n" % (n, b"y" * 99) for n in range(2000))])
def test_what_is_not_http_is_refused(server, data):
    assert server.send(data).status == 400
    assert server.fine()


def test_slow_and_endless_connections_are_closed(server):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    kinds = {"nothing": (b"", b""), "headers": (b"GET / HTTP/1.1\r\n", b"x: y\r\n"),
             "body": (head + b"Content-Length: 1000\r\n\r\n", b" "),
             "after the answer": (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", b" ")}
    took: dict[str, tuple[float, int]] = {}

    def drip(name, first, more):
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            began = time.monotonic()
            connection.sendall(first)
            connection.settimeout(0.5)
            data = b""
            while time.monotonic() < began + 3 * REQUEST_SECONDS:
                try:
                    connection.sendall(more)
                    if not (part := connection.recv(1 << 16)):
                        break
                    data += part
                except TimeoutError:
                    continue
                except OSError:
                    break
            took[name] = (time.monotonic() - began, int(data.split()[1]) if data else 0)

    threads = [threading.Thread(target=drip, args=(name, *each)) for name, each in kinds.items()]
    for name, header, requests in (("unread", b"Connection: close\r\n", 1), ("unread, more to come", b"", 2)):
        threads.append(threading.Thread(target=lambda name=name, header=header, requests=requests: took.update(
            {name: (unread(server, header, requests), 0)})))
    for thread in threads:
        thread.start()
    assert server.fine()    # nobody else waits
    for thread in threads:
        thread.join()
    assert {name: status for name, (_, status) in took.items()} == {
        "unread": 0, "unread, more to come": 0, "nothing": 0, "headers": 0, "body": 408, "after the answer": 405}
    assert all(REQUEST_SECONDS - 2 < seconds < 2 * REQUEST_SECONDS for seconds, _ in took.values()), took
    assert server.fine()


def unread(server, header, requests):
    """Ask for large answers on one connection, and read nothing of them; -> seconds until it is closed."""
    process, body = psutil.Process(server.process.pid), json.dumps({"texts": ["an oak"] * 256, "k": 100}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall((POST + header + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)) * requests)
        port, began = connection.getsockname()[1], time.monotonic()
        for there in (True, False):
            while there != (port in {each.raddr.port for each in process.net_connections("tcp") if each.raddr}
                            ) and time.monotonic() < began + 3 * REQUEST_SECONDS:
                time.sleep(0.2)
        return time.monotonic() - began


@pytest.mark.parametrize("path", ["/predict", "/feedback", "/v1/projects/xc/suggest-batch"])
def test_who_hangs_up_within_a_body_is_no_error_of_the_server(tmp_path, path):
    counters = ServerMetrics(frozenset())
    app, _ = create_app(SimpleNamespace(), Access(), FeedbackKeeper(tmp_path), lambda routes: counters)

    async def hang_up():
        return {"type": "http.disconnect"}

    async def send(message):
        assert message.get("status", 499) == 499

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(app(scope, hang_up, send))
    value = counters.registry.get_sample_value
    assert value("xc_rejected_total", {"reason": "internal"}) is None
    assert value("xc_requests_total", {"route": "other", "method": "POST", "status": "4xx"}) == 1


def test_who_hangs_up_harms_nobody(server):
    body = json.dumps({"texts": ["an oak"] * 200, "k": 100}).encode()
    head = (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body))
    for cut in (10, len(head), len(head) + 20, len(head) + len(body)):
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall((head + body)[:cut])
    assert server.fine()


def test_a_body_whose_length_is_told_in_two_ways_ends_the_connection(server):
    """A proxy that goes by the other length would take the rest for a request of its own (RFC 9112, 6.1)."""
    chunked, good = b"Transfer-Encoding: chunked\r\n", json.dumps(GOOD).encode()
    body = b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(good), good)
    hidden = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    for head in (POST + chunked + length, POST + length + chunked,
                 (POST + chunked).replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n"):
        answers = conversation(server, head + body + hidden)
        assert answers.count(b"HTTP/1.1 ") == 1 and answers.startswith(b"HTTP/1.1 400 ") and b'"code":"http"' in answers
    assert server.send(POST + chunked + body).status == 200


def conversation(server, sent, end=False):
    """Send bytes, and `end` with them; -> all that is answered up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(sent)
        if end:
            connection.shutdown(socket.SHUT_WR)
        answers = b""
        while part := connection.recv(1 << 16):
            answers += part
        return answers


def test_who_ends_its_side_after_asking_is_answered(server):
    good = json.dumps(GOOD).encode()
    post = POST + b"Content-Length: %d\r\n\r\n%s" % (len(good), good)
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = conversation(server, post, end=True)
    assert answer.startswith(b"HTTP/1.1 200 ") and len(json.loads(answer.partition(b"\r\n\r\n")[2])["results"]) == 1
    answers = conversation(server, get + post + get, end=True)
    assert answers.count(b"HTTP/1.1 200 OK") == 3 and answers.count(b"HTTP/1.1 ") == 3
    for part in (post[:-4], post[:40], get[:-2]):    # a request that never came whole is none
        answer = conversation(server, part, end=True)
        assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400 ")
    assert conversation(server, b"", end=True) == b""
    assert server.fine()


def test_head_is_answered_wherever_get_is(server):
    paths = ("/", "/docs", "/openapi.json", "/model", "/healthz", "/readyz", "/metrics", "/predict", "/nothing")
    for path in paths:
        replies = [server.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                   for method in ("HEAD", "GET")]
        assert replies[0].body == b"" and replies[1].body
        own = [(reply.status, reply.headers.keys(), reply.headers.get("allow"), reply.headers["content-type"])
               for reply in replies]
        assert own[0] == own[1], path
        assert path == "/metrics" or len({reply.headers["content-length"] for reply in replies}) == 1
    assert replies[0].status == 404
    assert server.send(b"PUT /model HTTP/1.1\r\nHost: localhost\r\n\r\n").headers["allow"] == "GET, HEAD"


def test_a_body_of_very_many_chunks_is_refused(server):
    """Each takes microseconds in which nobody else is answered, and a megabyte has room for as many as bytes."""
    def sent(chunks):
        body = json.dumps(GOOD).encode().ljust(chunks)
        parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        return POST + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"

    assert server.send(sent(CHUNKS)).status == 200
    problem(server.send(sent(CHUNKS + 1)), 400, "http")
    assert server.fine()


@pytest.mark.parametrize("body", [
    b'{"texts": [' + b",".join([b"[]"] * 349_000) + b"]}", b"[" * 30 + b",".join([b"{}"] * 349_000) + b"]" * 30,
    b"{" + b",".join(b'"%d":1' % number for number in range(90_000)) + b"}", b"[" * 5000,
    json.dumps({"texts": ["a"] * (MAX_VALUES - 1)}).encode(), b'{"texts": ["\\\\", ' + b'"\\"", ' * MAX_VALUES])
def test_json_of_very_many_values_is_refused_before_it_is_made(server, body):
    """The last is no JSON, which nobody finds out: making values until then is what holds the others up."""
    told = problem(server.ask("/predict", body), 413, "values")
    assert f"{MAX_VALUES:,}" in told["detail"]
    assert server.fine()


def test_marks_in_strings_are_no_values(server):
    text = 'a, [b], {c}: "d" \\ ' * 3000
    assert server.ask("/predict", {"texts": [text], "k": 1}).status == 200
    assert parsed(json.dumps({"texts": ["a"] * (MAX_VALUES - 3), "k": 1}).encode())["k"] == 1
    with pytest.raises(Problem, match="at most"):
        parsed(json.dumps({"texts": ["a"] * MAX_VALUES}).encode())


@pytest.mark.parametrize(("body", "said"), [
    (b'{"k": 1e400}', "line 1, column 7: number is infinity"),
    (b'{"texts": ["\\ud800"]}', "line 1, column 13: no low surrogate"),
    (b'{"texts":["caf\xe9"]}', "the body is not UTF-8, from byte 15 on")])
def test_json_that_cannot_be_read_is_told_with_why(body, said):
    with pytest.raises(Problem, match=said):
        parsed(body)


def test_a_compressed_body_is_refused():
    headers = [(b"content-type", FORM.encode()), (b"content-encoding", b"gzip")]
    with pytest.raises(Problem, match="without Content-Encoding") as caught:
        asyncio.run(read_body(Request({"type": "http", "headers": headers}), FORM))
    assert caught.value.status == 415


JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**63, 2**63) | st.text('a,[]{}:"\\\n\u00e9', max_size=8),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=60)


@given(JSON, st.sampled_from([(",", ":"), (" , ", " : ")]), st.booleans())
def test_values_are_counted_as_if_they_were_made(value, separators, escaped):
    body = json.dumps(value, separators=separators, ensure_ascii=escaped).encode()
    values, empty = counted(value)
    assert count_values(body) == (values + empty, containers(value))


def containers(value):
    if not isinstance(value, list | dict):
        return 0
    return 1 + sum(map(containers, value.values() if isinstance(value, dict) else value))


def counted(value):
    """Return (values, empty lists and objects) of what JSON stands for."""
    if not isinstance(value, list | dict):
        return 1, 0
    each = [counted(inner) for inner in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(values for values, _ in each), (not each) + sum(empty for _, empty in each)


def refusals(server, reason):
    families = text_string_to_metric_families(server.ask("/metrics").body.decode())
    return sum(sample.value for family in families for sample in family.samples
               if sample.name == "xc_rejected_total" and sample.labels == {"reason": reason})


def test_what_is_refused_before_it_is_a_request_is_counted(server):
    before = {reason: refusals(server, reason) for reason in ("http", "slow")}
    assert server.send(b"nonsense\r\n\r\n").status == 400
    assert refusals(server, "http") == before["http"] + 1
    with socket.create_connection(("127.0.0.1", server.port), 30) as slow, \
            socket.create_connection(("127.0.0.1", server.port), 30) as idle:
        slow.sendall(b"GET / HTTP/1.1\r\nx: ")
        slow.settimeout(3 * REQUEST_SECONDS)
        idle.settimeout(3 * REQUEST_SECONDS)
        assert slow.recv(1) == idle.recv(1) == b""
    assert refusals(server, "slow") == before["slow"] + 1, "one that asks for nothing is not refused"
