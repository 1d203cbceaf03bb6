"""What the server says of itself: the API's description, its page, metrics, headers."""

import json
import re
from urllib.parse import urlencode

import jsonschema
from prometheus_client.parser import text_string_to_metric_families

from serving.openapi import ANSWERS
from tests.support.running_server import problem


def test_every_answer_has_a_name_and_the_headers_that_protect(server):
    for path in ("/", "/docs", "/model", "/nothing", "/healthz"):
        headers = server.ask(path).headers
        assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"])
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'") and "server" not in headers
        assert "unsafe" not in headers["content-security-policy"]
    assert server.ask("/healthz", X_Request_ID="mine-1.2_3").headers["x-request-id"] == "mine-1.2_3"
    assert server.ask("/healthz", X_Request_ID="<script>").headers["x-request-id"] != "<script>"


def asked_of_tiny(bodies):
    """Return examples of requests, with labels of the tiny model in place of WordNet's."""
    return json.loads(re.sub(r'"n\d{8}"', lambda uid: f'"tiny:{int(uid[0][-3:-1]) % 50}"', json.dumps(bodies)))


def errors_are_described(operation, schemas):
    for status in operation["responses"].keys() - {"200", "204"}:
        content = operation["responses"][status]["content"]["application/problem+json"]
        for code, example in content["examples"].items():
            jsonschema.validate(example["value"], content["schema"] | schemas)
            assert (example["value"]["code"], str(example["value"]["status"])) == (code, status)


def test_the_description_is_true(server):
    description = server.ask("/openapi.json").json()
    assert set(description["paths"]) == {
        "/predict", "/feedback", "/model", "/healthz", "/readyz", "/metrics", "/v1/", "/v1/projects",
        "/v1/projects/{project_id}", "/v1/projects/{project_id}/suggest", "/v1/projects/{project_id}/suggest-batch",
        "/v1/projects/{project_id}/learn"}
    assert {*description["components"]["securitySchemes"]} == {"bearer", "basic"}
    schemas = {"components": description["components"]}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            [(sent_as, bodies)] = operation.get("requestBody", {}).get("content", {"": {"examples": {}}}).items()
            asked = [each["value"] for each in bodies["examples"].values()]
            assert bool(asked) == (method == "post")
            for body in asked:
                jsonschema.validate(body, bodies["schema"])
            address = path.replace("{project_id}", "xc")
            replies = [server.ask(address, urlencode(body).encode() if "form" in sent_as else body,
                                  Content_Type=sent_as) for body in asked_of_tiny(asked)] or [server.ask(address)]
            errors_are_described(operation, schemas)
            assert ("security" in operation) == ("401" in operation["responses"])
            for response in operation["responses"].values():
                assert "X-Request-ID" in response["headers"]
            if path.endswith("/learn"):
                assert [(reply.status, reply.body) for reply in replies] == [(204, b"")]
                continue
            [(kind, told)] = operation["responses"]["200"]["content"].items()
            for body, reply in zip(asked or [None], replies, strict=True):
                if body and "only" in body:    # the labels of another model
                    problem(reply, 422, "unknown-label" if reply.json()["code"] == "unknown-label" else "no-branches")
                    continue
                assert reply.status == 200 and reply.headers["content-type"].startswith(kind)
                if kind == "application/json":
                    jsonschema.validate(reply.json(), told["schema"] | schemas)
                    jsonschema.validate(told["example"], told["schema"] | schemas)
                    assert told["example"] == ANSWERS[path], "with its nulls"


def test_the_documentation_needs_nothing_else(server):
    reply = server.ask("/docs")
    page = reply.body.decode()
    assert reply.status == 200 and not re.search(r'(src|href)="(https?:)?//', page)
    assert "text=On+cats+and+other+pets&amp;limit=3&amp;threshold=0.2" in page, "a form as it is sent"
    assert "POST /predict" in page and 'id="queue-full"' in page
    linked = {server.ask("/predict", body).json()["link"] for body in (b"{", {"texts": []})}
    assert all(f'id="{link.partition("#")[2]}"' in page for link in linked)


def test_the_metrics_are_prometheus(server):
    server.fine()
    problem(server.ask("/predict", b"{"), 400, "json")
    for project in ("xc", "other", "third"):
        server.ask(f"/v1/projects/{project}/suggest", b"text=a", Content_Type="application/x-www-form-urlencoded")
    server.send(b"WEIRD /some/secret/path HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reply = server.ask("/metrics")
    found = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
    wanted = {"xc_request_duration_seconds", "xc_requests", "xc_batch_size", "xc_queue_length",
              "xc_queue_wait_seconds", "xc_rejected", "xc_model_info", "xc_labels", "xc_index_recall_ratio",
              "process_resident_memory_bytes"}
    assert wanted <= found.keys()
    assert all(found[name].documentation for name in wanted)
    assert {sample.labels.get("route") for sample in found["xc_requests"].samples} <= {
        "/", "/docs", "/openapi.json", "other", *server.ask("/openapi.json").json()["paths"]}
    assert found["xc_model_info"].samples[0].labels == {"name": "xc", "version": "1"}
    assert found["xc_labels"].samples[0].value == 50
    assert found["xc_index_recall_ratio"].samples[0].value == 0.995
    assert any(sample.labels == {"reason": "json"} and sample.value >= 1 for sample in found["xc_rejected"].samples)
