"""Annif's REST shape: what Annif's `http` backend and annif-client send, and what they read of the answers.

ANNIF=/path/to/annif asks with Annif itself, too; it cannot be installed beside this project's pinned packages.
"""

import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
import requests

from serving.schemas import MAX_LABELS, MAX_TEXT
from tasks.data.feedback.journal import FeedbackJournal
from tests.support import tiny
from tests.support.running_server import problem, running

FORM = "application/x-www-form-urlencoded"
ANNIF = os.environ.get("ANNIF", "")
TOKEN = "a-token-of-a-library"


def suggest(server, body, project="xc", kind=FORM):
    return server.ask(f"/v1/projects/{project}/suggest", body, Content_Type=kind)


def test_the_http_backend_of_annif(server):
    """Its requests as it sends them, and its readings of the answers."""
    endpoint = f"http://127.0.0.1:{server.port}/v1/projects/xc/suggest"
    headers = {"User-Agent": "Annif/1.4.3"}
    told = requests.get(endpoint.replace("/suggest", ""), headers=headers, timeout=30)
    told.raise_for_status()
    assert told.json()["is_trained"] is True and datetime.fromisoformat(told.json()["modification_time"]).year >= 2026
    data = {"text": "a wolf that lives\nin the mountains & höher", "metadata_title": "A wolf", "metadata_split": "test",
            "project": "dummy", "limit": 100}
    reply = requests.post(endpoint, data=data, headers=headers, timeout=30)
    reply.raise_for_status()
    results = reply.json()["results"]
    labels = server.labels(data["text"], k=100)
    assert [(each["uri"], each["label"], each["score"]) for each in results] == [
        (each["uid"], each["text"], each["confidence"]) for each in labels if each["confidence"] > 0]
    assert len(results) == 50 and all(0 < each["score"] <= 1 and each["notation"] is None for each in results)


def test_what_annif_learns_is_feedback(server, models):
    """The request of annif-client's learn; a subject that the model does not have is left out, as by Annif."""
    documents = [{"text": "a wolf of the sea", "subjects": [{"uri": "tiny:3", "label": "x"}, {"uri": "nobody's"}]},
                 {"text": "an oak", "subjects": [{"uri": "nobody's"}]},
                 {"text": " \0", "subjects": [{"uri": "tiny:1"}]}]
    reply = server.ask("/v1/projects/xc/learn", documents)
    assert (reply.status, reply.body) == (204, b"")
    [kept] = FeedbackJournal(models.home, "xc").read()
    assert (kept.text, kept.accepted, kept.rejected, kept.version) == ("a wolf of the sea", ["tiny:3"], [], "1")
    problem(server.ask("/v1/projects/xc/learn", [{"text": 7, "subjects": []}]), 400, "field")
    problem(server.ask("/v1/projects/xc/learn", {"text": "a wolf"}), 400, "field")
    problem(server.ask("/v1/projects/other/learn", documents), 404, "project")
    assert len(FeedbackJournal(models.home, "xc").read()) == 1


def test_annif_client(server):
    """Its requests as it sends them."""
    base = f"http://127.0.0.1:{server.port}/v1/"
    assert requests.get(base, timeout=30).json().keys() == {"title", "version"}
    [project] = requests.get(base + "projects", timeout=30).json()["projects"]
    assert project == requests.get(base + "projects/xc", timeout=30).json()
    assert project["project_id"] == "xc" and project["backend"] == {"backend_id": "xcflow ngame"}
    assert project["vocab"] == {"vocab_id": "xc", "languages": ["und"], "size": 50, "loaded": True}
    missing = requests.get(base + "projects/yso-en", timeout=30)
    assert missing.status_code == 404 and "/v1/projects" in missing.json()["detail"]
    alone = requests.post(base + "projects/xc/suggest", data={"text": "an oak", "limit": 3, "threshold": 0.2},
                          timeout=30).json()["results"]
    documents = [{"document_id": "doc-0", "text": "an oak"}, {"text": " "},
                 {"document_id": None, "text": "the sea seal", "metadata": {"title": "On seals", "year": "1984"}}]
    batch = requests.post(base + "projects/xc/suggest-batch", json={"documents": documents},
                          params={"limit": 3, "threshold": 0.2}, timeout=30).json()
    assert [each["document_id"] for each in batch] == ["doc-0", None, None]
    assert batch[0]["results"] == alone and len(alone) == 3 and batch[1]["results"] == [] and batch[2]["results"]


def test_limits_and_thresholds(server):
    def found(**fields):
        return suggest(server, "&".join(f"{name}={value}" for name, value in fields.items()).encode()).json()["results"]

    every = found(text="a+wolf", limit=MAX_LABELS)
    assert len(every) == 50 and found(text="a+wolf", limit=10**6) == every
    assert found(text="a+wolf") == every[:10] and found(text="a+wolf", limit=0) == []
    least = every[3]["score"]
    assert found(text="a+wolf", limit=50, threshold=least) == [each for each in every if each["score"] >= least]
    assert found(text="+%0A") == [] and found(text="+", metadata_title="a+wolf") == every[:10]


def test_a_document_of_any_length_is_read_from_its_beginning(server):
    words = "a wolf of the sea " * 50
    short = suggest(server, f"text={words}".encode()).json()
    assert suggest(server, f"text={words}{'and more ' * MAX_TEXT}".encode()).json() == short != {"results": []}
    documents = [{"text": words + "and more " * (MAX_TEXT // 8)}] * 10
    batch = server.ask("/v1/projects/xc/suggest-batch", {"documents": documents}).json()
    assert [each["results"] for each in batch] == [short["results"]] * 10
    problem(suggest(server, b"text=" + b"a" * (1 << 20)), 413, "body")


@pytest.mark.parametrize(("body", "status", "code", "pointer"), [
    (b"", 400, "field", "/text"), (b"limit=3", 400, "field", "/text"), (b"text=%", 400, "form", None),
    (b"text=a&limit=-1", 400, "field", "/limit"), (b"text=a&limit=x", 400, "field", "/limit"),
    (b"text=a&limit=1.5", 400, "field", "/limit"), (b"text=a&threshold=nan", 400, "field", "/threshold"),
    (b"text=a&threshold=1.1", 400, "field", "/threshold"), (b"text=a&text=b", 400, "form", None),
    (b"text=a" + b"&x=1" * 2000, 413, "values", None)])
def test_what_is_wrong_with_a_form_is_told(server, body, status, code, pointer):
    errors = problem(suggest(server, body), status, code).get("errors", [])
    assert [each["pointer"] for each in errors] == ([pointer] if pointer else [])
    assert server.fine()


@pytest.mark.parametrize(("body", "query", "pointer"), [
    ({}, "", "/documents"), ([], "", ""),
    ({"documents": [{"text": "a"}] * 33}, "", "/documents"),
    ({"documents": [{"text": 1}]}, "", "/documents/0/text"),
    ({"documents": [{"document_id": "1"}]}, "", "/documents/0/text"),
    ({"documents": [{"text": "a", "metadata": {"title": ["b"]}}]}, "", "/documents/0/metadata/title"),
    ({"documents": [{"text": "a"}]}, "?limit=-1", "/limit"),
    ({"documents": [{"text": "a"}]}, "?threshold=2", "/threshold")])
def test_what_is_wrong_with_a_batch_is_told(server, body, query, pointer):
    reply = server.ask(f"/v1/projects/xc/suggest-batch{query}", body)
    assert [each["pointer"] for each in problem(reply, 400, "field")["errors"]] == [pointer]


def test_other_types_of_bodies_and_other_projects_are_refused(server):
    problem(suggest(server, {"text": "a"}, kind="application/json"), 415, "content-type")
    problem(server.ask("/v1/projects/xc/suggest-batch", b"text=a", Content_Type=FORM), 415, "content-type")
    problem(suggest(server, b"text=a", project="other"), 404, "project")
    problem(server.ask("/v1/projects/other/suggest-batch", {"documents": []}), 404, "project")
    assert suggest(server, b"text=a", project="%78c").status == 200
    problem(server.ask("/v1/projects/xc", Host="annif.example.org"), 421, "host")
    problem(server.ask("/v1/projects/xc/suggest", b"text=a", Content_Type=FORM, Origin="http://other"), 403, "origin")


def test_a_token_as_annif_can_send_it(models, tmp_path, monkeypatch):
    """By the requests library, which Annif asks with: Basic, from ~/.netrc or from the address."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    netrc = tmp_path / "netrc"
    with running(models.home, "--token-file", str(tmp_path / "token")) as server:
        url = f"http://127.0.0.1:{server.port}/v1/projects/xc"
        monkeypatch.setenv("NETRC", str(netrc))
        assert requests.get(url, timeout=30).status_code == 401
        for password, status in (("wrong", 401), (TOKEN, 200)):
            netrc.write_text(f"machine 127.0.0.1 login annif password {password}\n")
            netrc.chmod(0o600)
            assert requests.get(url, timeout=30).status_code == status
        netrc.unlink()
        assert requests.get(url.replace("//", f"//annif:{TOKEN}@"), timeout=30).status_code == 200
        for wrong in ("Basic", "Basic !", "Basic Og==", f"Basic {TOKEN}", f"Digest {TOKEN}", "Bearer", ""):
            problem(server.ask("/v1/projects/xc", Authorization=wrong), 401, "token")


@pytest.mark.skipif(not ANNIF, reason="ANNIF names no annif executable")
def test_annif_itself(server, tmp_path):
    (tmp_path / "projects.cfg").write_text(f"""[ours]
name=ours
language=en
backend=http
vocab=tiny
endpoint=http://127.0.0.1:{server.port}/v1/projects/xc/suggest
""")
    (tmp_path / "tiny.tsv").write_text("".join(f"<tiny:{row}>\t{label}\n" for row, label in enumerate(tiny.LABELS)))
    labels = {text: server.labels(text, k=1)[0] for text in ("a wolf", "an oak of the forest")}
    (tmp_path / "corpus.tsv").write_text("".join(f"{text}\t<{label['uid']}>\n" for text, label in labels.items()))

    def annif(*words, said=""):
        return subprocess.run([ANNIF, *words], cwd=tmp_path, input=said, capture_output=True, text=True, check=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300).stdout

    assert Path(ANNIF).is_file()
    annif("load-vocab", "tiny", "tiny.tsv", "--language", "en")
    assert "True" in annif("show-project", "ours")
    rows = [line.split("\t") for line in annif("suggest", "ours", "--limit", "3", said="a wolf").splitlines()]
    wanted = server.labels("a wolf", k=3)
    assert [(uri, label) for uri, label, _ in rows] == [(f"<{each['uid']}>", each["text"]) for each in wanted]
    assert [float(score) for *_, score in rows] == pytest.approx([each["confidence"] for each in wanted], abs=1e-4)
    measured = dict(line.rsplit(None, 1) for line in annif("eval", "ours", "corpus.tsv").splitlines())
    figures = {name.strip(" :\t"): float(value) for name, value in measured.items()}
    assert figures["Precision@1"] == figures["NDCG"] == 1 and figures["Documents evaluated"] == 2
