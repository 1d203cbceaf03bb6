"""Feedback over HTTP: kept once it is acknowledged, whatever is killed, refused with a reason, and limited by rate."""

import asyncio
import json
import signal
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving import feedback
from serving.feedback import BURST, CLIENTS, FeedbackKeeper, RateLimit
from serving.http.guard import Problem
from serving.schemas import MAX_TEXT, FeedbackRequest
from tasks.data.feedback.journal import FeedbackJournal
from tests.support.forked import run_xc
from tests.support.running_server import ServedModels, problem, running

GOOD = {"text": "a wolf of the sea", "accepted": ["tiny:0"], "rejected": ["tiny:1"], "added": ["tiny:2"]}


def read(models):
    return FeedbackJournal(models.home, "xc").read()


def test_a_decision_is_in_the_journal_with_the_answer_it_judges(server, models):
    answer = server.ask("/predict", {"texts": [GOOD["text"]]})
    reply = server.ask("/feedback", {**GOOD, "request_id": answer.headers["x-request-id"]})
    assert (reply.status, reply.json()) == (200, {"accepted": 1, "rejected": 1, "added": 1})
    kept = read(models)[-1]
    assert (kept.text, kept.accepted, kept.rejected, kept.added) == tuple(GOOD.values())
    assert (kept.version, kept.request) == ("1", answer.headers["x-request-id"]) and kept.when.endswith("+00:00")
    assert server.ask("/model").json()["feedback"] is True


@pytest.mark.parametrize(("changed", "pointer"), [
    ({"accepted": ["tiny:0", "tiny:999"]}, "/accepted/1"), ({"added": ["tiny:1"]}, "/rejected/0"),
    ({"text": " \t"}, "/text"), ({"text": " \0"}, "/text"),
    ({"accepted": [], "rejected": [], "added": []}, "/accepted"),
    ({"accepted": "tiny:0"}, "/accepted"), ({"accepted": [0]}, "/accepted/0"), ({"accepted": [""]}, "/accepted/0"),
    ({"accepted": ["tiny:0"] * 101}, "/accepted"), ({"request_id": "a b"}, "/request_id"),
    ({"version": "v1"}, "/version"), ({"labels": []}, "/labels"), ({"text": None}, "/text")])
def test_what_is_wrong_is_named_and_not_kept(server, models, changed, pointer):
    before = len(read(models))
    fields = problem(server.ask("/feedback", {**GOOD, **changed}), 422, "invalid")
    assert pointer in [error["pointer"] for error in fields["errors"]]
    assert len(read(models)) == before


def test_bodies_are_checked_as_those_of_predict(server):
    problem(server.ask("/feedback", {**GOOD, "text": "é" * MAX_TEXT}), 413, "text")
    problem(server.ask("/feedback", b"{"), 400, "json")
    problem(server.ask("/feedback", GOOD, Content_Type="text/plain"), 415, "content-type")
    problem(server.ask("/feedback", GOOD, Origin="http://elsewhere.example"), 403, "origin")
    assert server.ask("/feedback").status == 405


def test_a_text_is_kept_as_training_texts_are(tmp_path):
    """In place of a full text's content a title would be learned, which no query has."""
    asyncio.run(FeedbackKeeper(tmp_path).keep(FeedbackRequest(**GOOD), version(untitled=True), "here"))
    (kept,) = FeedbackJournal(tmp_path, "xc").read()
    assert (kept.text, kept.content, kept.accepted) == ("", GOOD["text"], GOOD["accepted"])


def test_too_many_from_one_address_are_refused(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    with running(models.home) as server:
        replies = [server.ask("/feedback", GOOD) for _ in range(BURST + 40)]
        kept = sum(reply.status == 200 for reply in replies)
        assert {reply.status for reply in replies} == {200, 429} and kept >= BURST
        refused = next(reply for reply in replies if reply.status == 429)
        problem(refused, 429, "rate")
        assert refused.headers["retry-after"] == "1"
        assert len(read(models)) == kept and server.fine()


def test_a_server_that_takes_none_says_so(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    with running(models.home, "--feedback", "refuse") as server:
        problem(server.ask("/feedback", GOOD), 403, "feedback")
        assert server.ask("/model").json()["feedback"] is False
    assert not FeedbackJournal(models.home, "xc").path.exists()


def test_the_token_is_asked_for(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    with running(models.home, "--token-file", str(token)) as server:
        problem(server.ask("/feedback", GOOD), 401, "token")
        assert server.ask("/feedback", GOOD, Authorization="Bearer 0123456789abcdef").status == 200


def test_killed_at_any_moment_it_has_what_it_acknowledged(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    acknowledged: list[str] = []

    def post(server, round_, client):
        with suppress(ConnectionRefusedError):    # it was killed
            for number in range(20):
                text = f"{round_} {client} {number}"
                if server.ask("/feedback", {**GOOD, "text": text}).status != 200:
                    return
                acknowledged.append(text)

    for round_ in range(3):
        with running(models.home) as server:
            clients = [threading.Thread(target=post, args=(server, round_, client)) for client in range(4)]
            for client in clients:
                client.start()
            while sum(text.startswith(f"{round_} ") for text in acknowledged) < 10 + 7 * round_:
                assert any(client.is_alive() for client in clients)
            server.process.send_signal(signal.SIGKILL)
            for client in clients:
                client.join(30)
    assert set(acknowledged) <= {one.text for one in read(models)} and len(acknowledged) > 40


def version(*, untitled=False) -> Any:
    """A version that has every label."""
    retriever = SimpleNamespace(ids=lambda uids: np.zeros(len(uids), np.int64), fields=lambda texts, contents: (
        ([""] * len(texts), texts) if untitled else (texts, contents)))
    return SimpleNamespace(name="xc", version="1", retriever=retriever)


def keeper(home, monkeypatch, append=feedback.FeedbackJournal.append):
    monkeypatch.setattr(feedback.FeedbackJournal, "append", append)
    made, served = FeedbackKeeper(home), version()
    made.limit = RateLimit(rate=1e9)
    return made, lambda text, **more: made.keep(FeedbackRequest(text=text, accepted=["tiny:0"], **more), served, "here")


def test_a_decision_is_on_the_version_that_gave_the_answer(tmp_path, monkeypatch):
    """Another may have taken over since; only one that names none is taken to be on that."""
    _, post = keeper(tmp_path, monkeypatch)
    asyncio.run(post("a wolf", version="7"))
    asyncio.run(post("an oak"))
    assert [each.version for each in FeedbackJournal(tmp_path, "xc").read()] == ["7", "1"]


def test_each_label_is_kept_once(tmp_path, monkeypatch):
    made, _ = keeper(tmp_path, monkeypatch)
    decision = FeedbackRequest(text="a wolf", accepted=["a", "a"], rejected=["b", "b"], added=["a", "c", "c"])
    kept = asyncio.run(made.keep(decision, version(), "here"))
    assert (kept.accepted, kept.rejected, kept.added) == (["a"], ["b"], ["c"])
    (read,) = FeedbackJournal(tmp_path, "xc").read()
    assert (read.accepted, read.rejected, read.added) == (kept.accepted, kept.rejected, kept.added)


def test_a_disk_that_takes_nothing_is_no_acknowledgement(tmp_path, monkeypatch):
    def full(journal, entries):
        raise OSError(28, "No space left on device")

    _, post = keeper(tmp_path, monkeypatch, full)
    with pytest.raises(Problem) as caught:
        asyncio.run(post("a wolf"))
    assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (503, "disk", "60")


def test_what_comes_during_a_write_is_written_together(tmp_path, monkeypatch):
    sizes, slow = [], threading.Event()

    def append(journal, entries):
        sizes.append(len(entries))
        slow.wait(0.2)

    async def posts():
        _, post = keeper(tmp_path, monkeypatch, append)
        await asyncio.gather(*(post(str(number)) for number in range(30)))

    asyncio.run(posts())
    assert sizes in ([1, 29], [30])


def test_a_journal_that_is_full_takes_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(feedback, "FULL", 10)
    _, post = keeper(tmp_path, monkeypatch)
    asyncio.run(post("a wolf"))
    with pytest.raises(Problem, match="journal of feedback is full"):
        asyncio.run(post("a wolf"))


def test_who_waits_as_long_as_it_is_told_is_admitted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(feedback, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limit = RateLimit()
    for _ in range(3):
        limit.admit("here", 32)    # as many as Annif sends at once
    with pytest.raises(Problem) as caught:
        limit.admit("here", 32)
    now[0] += int(caught.value.headers["Retry-After"])
    limit.admit("here", 32)
    assert caught.value.headers["Retry-After"] == "3"


def test_addresses_are_forgotten_before_they_fill_the_memory():
    limit = RateLimit()
    for number in range(CLIENTS + 500):
        limit.admit(f"10.0.{number // 256}.{number % 256}")
    assert len(limit._buckets) == CLIENTS


def test_the_command_line_shows_and_exports_it(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    with running(models.home) as server:
        assert server.ask("/feedback", GOOD).status == server.ask("/feedback", {**GOOD, "added": []}).status == 200
    code, out, said = run_xc("feedback", "list", "--home", str(models.home))
    assert code == 0 and out.count("\n") == 2 and "+tiny:0 +tiny:2 -tiny:1\ta wolf of the sea" in out
    assert said.strip() == "xc: 2 decisions"
    [line] = run_xc("feedback", "export", "--home", str(models.home))[1].splitlines()
    assert json.loads(line) == {"text": GOOD["text"], "right": ["tiny:0", "tiny:2"], "wrong": ["tiny:1"]}
