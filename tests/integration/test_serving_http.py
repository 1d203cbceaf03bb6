"""The HTTP API over real sockets: what is bad gets the promised 4xx, and the next good request an answer."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from serving.http.guard import MAX_BODY, MAX_DEPTH
from serving.schemas import MAX_TEXT
from tasks.registry.fetch import fetch
from tests.support import tiny
from tests.support.ports import free_port
from tests.support.running_server import Reply, problem

GOOD = {"texts": ["a wolf that lives in the mountains"], "k": 3}


def test_labels_and_who_gave_them(server, models):
    reply = server.ask("/predict", {"texts": ["a wolf", " \t\n", "日本語 and ünïcode", "\u0000\u202e"], "k": 4})
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    answer = reply.json()
    assert answer["model"] == {"name": "xc", "version": "1", "digest": models.digest(), "data": "d" * 64}
    assert [len(each["labels"]) for each in answer["results"]] == [4, 0, 4, 4]
    first = answer["results"][0]["labels"]
    assert set(first[0]) == {"id", "uid", "text", "score", "confidence"}
    assert [each["score"] for each in first] == sorted((each["score"] for each in first), reverse=True)
    assert all(math.isfinite(each["score"]) for each in first) and first[0]["score"] > first[-1]["score"]
    assert 1 >= first[0]["confidence"] > first[-1]["confidence"] >= 0


@pytest.mark.parametrize("explain", [False, True])
def test_a_threshold_leaves_the_labels_that_are_as_sure(server, explain):
    texts = ["a wolf", "an oak of the forest", " "]
    every = server.ask("/predict", {"texts": texts, "k": 8, "explain": explain}).json()["results"]
    for least in (0, 0.5, every[0]["labels"][3]["confidence"], 1):
        asked = {"texts": texts, "k": 8, "threshold": least, "explain": explain}
        found = [each["labels"] for each in server.ask("/predict", asked).json()["results"]]
        assert [[label["id"] for label in labels] for labels in found] == [
            [label["id"] for label in each["labels"] if label["confidence"] >= least] for each in every]
        assert least < 1 or found == [[], [], []]


def test_mlflows_own_server_answers_the_same(server, models, tmp_path):
    """`mlflow models serve` of the champion as it was fetched, where the project is not on the path."""
    fetch(models.tracker, "xc@champion", tmp_path / "model")
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (tmp_path / "log").open("w") as log:
        theirs = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "models", "serve", "-m", "model", "--env-manager", "local",
             "--port", str(port)], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**environment,
                 "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"})
        try:
            texts = [text for text in tiny.QUERIES if text]
            body = json.dumps({"inputs": texts, "params": {"k": 5}}).encode()
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", body,
                                           {"Content-Type": "application/json"})
            found = json.loads(answer_of(asked, theirs, tmp_path / "log"))["predictions"]
        finally:
            os.killpg(theirs.pid, signal.SIGKILL)
            theirs.wait()
    ours = server.ask("/predict", {"texts": texts, "k": 5}).json()["results"]
    for each, row in zip(ours, found, strict=True):
        for field, column in (("id", "ids"), ("uid", "uids"), ("text", "labels")):
            assert [label[field] for label in each["labels"]] == row[column]
        for field, column in (("score", "scores"), ("confidence", "confidences")):
            assert [label[field] for label in each["labels"]] == pytest.approx(row[column], abs=1e-5)


def answer_of(asked: urllib.request.Request, process: subprocess.Popen, log: Path, seconds: float = 120) -> bytes:
    """Ask until a server that starts is there."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(asked, timeout=30) as reply:
                return reply.read()
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.3)
    raise AssertionError(log.read_text()[-2000:])


def test_why_a_label_fits(server):
    labels = server.labels("a wolf of the sea", k=6, explain=True)
    assert len(labels) == 6
    for label in labels:
        assert sum(label["parts"].values()) == pytest.approx(label["score"], abs=1e-5)
        assert {"encoder", "classifier"} <= label["parts"].keys()
        assert label["frequency"] == label["id"] % 10
        assert len(label["nearest"]) == min(3, label["frequency"])
        assert all(label["text"] in near["labels"] and -1 <= near["similarity"] <= 1.00001 and near["text"]
                   for near in label["nearest"])
        assert [near["similarity"] for near in label["nearest"]] == sorted(
            (near["similarity"] for near in label["nearest"]), reverse=True)
    reply = server.ask("/predict", {"texts": ["an oak", " "], "k": 2, "explain": True})
    assert [len(each["labels"]) for each in reply.json()["results"]] == [2, 0]


@pytest.mark.parametrize(("body", "status", "code", "pointer"), [
    (b'{"texts": ["a"], "k": NaN}', 400, "json", None),
    (b'{"texts": ["a"], "k": 1e400}', 400, "json", None),
    (b'{"texts": ["a"], "k": Infinity}', 400, "json", None),
    (b'{"texts": ["\\ud800"]}', 400, "json", None),
    (b'{"texts": ["\xed\xa0\x80"]}', 400, "json", None),
    (b'{"texts": ["\xff"]}', 400, "json", None),
    (b"", 400, "json", None),
    (b"{", 400, "json", None),
    (b'{"texts": ["a"]} {}', 400, "json", None),
    (b'{"texts": ["a" , ]}', 400, "json", None),
    (b"[" * 900 + b"]" * 900, 400, "depth", None),
    (b"[" * 1000 + b"]" * 1000, 400, "depth", None),
    (b'{"texts": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", 400, "depth", None),
    (b'{"texts": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", 422, "invalid", "/texts/0"),
    (b"null", 422, "invalid", ""),
    (b"[]", 422, "invalid", ""),
    (b'"texts"', 422, "invalid", ""),
    (b"{}", 422, "invalid", "/texts"),
    (b'{"texts": "a"}', 422, "invalid", "/texts"),
    (b'{"texts": null}', 422, "invalid", "/texts"),
    (b'{"texts": []}', 422, "invalid", "/texts"),
    (b'{"texts": [1]}', 422, "invalid", "/texts/0"),
    (b'{"texts": ["a", null]}', 422, "invalid", "/texts/1"),
    (b'{"texts": ["a"], "threshold": NaN}', 400, "json", None),
    (b'{"texts": ["a"], "threshold": 1.01}', 422, "invalid", "/threshold"),
    (b'{"texts": ["a"], "threshold": -0.1}', 422, "invalid", "/threshold"),
    (b'{"texts": ["a"], "threshold": "0.5"}', 422, "invalid", "/threshold"),
    (b'{"texts": ["a"], "threshold": true}', 422, "invalid", "/threshold"),
    (b'{"texts": ["a"], "threshold": null}', 422, "invalid", "/threshold"),
    (b'{"texts": ["a"], "k": 0}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": -1}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": 101}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": 1000000000}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": 99999999999999999999999}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": "5"}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": 5.0}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": true}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "k": null}', 422, "invalid", "/k"),
    (b'{"texts": ["a"], "explain": 1}', 422, "invalid", "/explain"),
    (b'{"texts": ["a"], "explain": "yes"}', 422, "invalid", "/explain"),
    (b'{"texts": ["a"], "secret<script>": 1}', 422, "invalid", ""),
    (b'{"texts": ["a"], "\\u001b[2Jsecret": 1}', 422, "invalid", ""),
    (b'{"texts": ["a"], "' + b"secret" * 9 + b'": 1}', 422, "invalid", ""),
    (b'{"texts": ["a"], "top_k": 3}', 422, "invalid", "/top_k"),
    (json.dumps({"texts": ["a"] * 257}).encode(), 422, "invalid", "/texts"),
    (json.dumps({"texts": ["a"] * 11, "explain": True}).encode(), 422, "explain", "/explain"),
    (json.dumps({"texts": ["b", "a" * (MAX_TEXT + 1)]}).encode(), 413, "text", "/texts/1"),
    (json.dumps({"texts": ["é" * (MAX_TEXT // 2 + 1)]}).encode(), 413, "text", "/texts/0"),
    (b'{"texts": ["' + b"a" * MAX_BODY + b'"]}', 413, "body", None),
    (b"x" * (10 << 20), 413, "body", None),
])
def test_a_bad_body_is_refused_with_a_pointer(server, body, status, code, pointer):
    reply = server.ask("/predict", body)
    told = problem(reply, status, code)
    assert [each["pointer"] for each in told.get("errors", [])][:1] == ([] if pointer is None else [pointer])
    assert b"secret" not in reply.body and len(reply.body) < 2000
    assert server.fine()


@pytest.mark.parametrize("body", [b"[]", b"null", b'"texts"', b"1"])
def test_a_body_that_is_no_object_is_told_so(server, body):
    told = problem(server.ask("/predict", body), 422, "invalid")
    assert told["detail"] == "the body: it is no JSON object"


def test_unknown_fields_are_named(server):
    told = problem(server.ask("/predict", {"text": "a wolf", "top_k": 3, "<b>": 1}), 422, "invalid")
    assert told["errors"] == [
        {"pointer": "/texts", "detail": "Field required"},
        {"pointer": "/text", "detail": "unknown field, did you mean texts?"},
        {"pointer": "/top_k", "detail": "unknown field"},
        {"pointer": "", "detail": "an unknown field, whose name is not a plain word"}]
    assert told["detail"].startswith("/texts: Field required; /text: unknown field, did you mean texts?; /top_k: ")
    assert told["detail"].endswith("; the fields are texts, k, threshold, only, without, explain")
    told = problem(server.ask("/predict", {f"field_{number}": 1 for number in range(900)}), 422, "invalid")
    assert len(told["errors"]) == 8 and "; and 893 more; the fields are" in told["detail"]


def test_the_largest_that_is_allowed_is_answered(server):
    assert server.ask("/predict", {"texts": ["a" * MAX_TEXT], "k": 1}).status == 200
    reply = server.ask("/predict", {"texts": ["an oak"] * 256, "k": 100})
    assert reply.status == 200
    assert [len(each["labels"]) for each in reply.json()["results"]] == [50] * 256    # there are no more


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp",
                                  "multipart/form-data; boundary=x"])
def test_another_kind_of_body_is_refused(server, kind):
    problem(server.ask("/predict", json.dumps(GOOD).encode(), Content_Type=kind), 415, "content-type")
    assert server.ask("/predict", GOOD, Content_Type="Application/JSON; charset=utf-8").status == 200


@pytest.mark.parametrize("path", [
    "/predict/", "//predict", "/../predict", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/%252e%252e/etc/passwd",
    "/model/%00", "/static/../app.py", "/page.html", "/docs/../serving", "/model;x=1", "/.git/config", "/redoc",
    "/objects/../../x", "/MODEL", "/\\..\\..", "/%c0%ae%c0%ae/"])
def test_other_addresses_are_not_there(server, path):
    problem(server.ask(path), 404, "route")


def test_other_methods_are_refused(server):
    for method, path in (("DELETE", "/model"), ("PUT", "/predict"), ("POST", "/healthz"), ("TRACE", "/"),
                         ("GET", "/predict"), ("OPTIONS", "/predict"), ("NONSENSE", "/predict")):
        reply = server.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        problem(reply, 405, "route")
        assert reply.headers["allow"]
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1",
                                  "localhost@evil.example", "[::2]:80"])
def test_a_name_that_is_not_ours_is_refused(server, host):
    assert "--allow-host" in problem(server.ask("/healthz", Host=host), 421, "host")["detail"]
    assert server.ask("/healthz", Host="LocalHost:1234").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
def test_a_page_of_another_origin_is_refused(server, origin):
    problem(server.ask("/predict", GOOD, Origin=origin), 403, "origin")
    own = f"http://127.0.0.1:{server.port}"
    assert server.ask("/predict", GOOD, Origin=own).status == 200


@pytest.mark.parametrize("path", ["/predict", "/v1/projects/xc/suggest-batch", "/v1/projects/xc/learn"])
def test_texts_of_marks_alone_hold_nobody_up(server, path):
    text = "a" + "\u0301" * 16000 + "\u0316" * 16000
    documents = [{"text": text, "subjects": [{"uri": "tiny:0"}]}] * 15
    body = {"texts": [text] * 15} if path == "/predict" else documents
    body = {"documents": [{"text": text}] * 15} if path.endswith("batch") else body
    asked = threading.Thread(target=server.ask, args=(path, json.dumps(body, ensure_ascii=False).encode()))
    asked.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert server.ask("/healthz").status == 200
    assert time.monotonic() < began + 5
    asked.join()


def test_a_crowd_gets_503_when_the_queue_is_full(server):
    replies: list[Reply] = []
    body = {"texts": [f"text {row} of a crowd" * 20 for row in range(256)], "k": 100}
    crowd = [threading.Thread(target=lambda: replies.append(server.ask("/predict", body))) for _ in range(40)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert {reply.status for reply in replies} == {200, 503}
    refused = next(reply for reply in replies if reply.status == 503)
    problem(refused, 503, "queue-full")
    assert int(refused.headers["retry-after"]) >= 1
    assert server.fine()
