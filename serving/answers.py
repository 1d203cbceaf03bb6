"""Prediction service: answers requests in batches by the version that is current."""

import asyncio
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from data_contracts.errors import DamagedArtifact
from serving.batcher import Batcher, QueueFull
from serving.http.guard import Problem
from serving.model_watcher import AliasFollower, Served
from serving.prometheus import ServerMetrics
from serving.schemas import PredictRequest
from serving.workers.board import Others

LARGEST, ROOM = 32, 1024    # most texts in a batch, most texts in the queue
WAIT = 10.0                 # seconds for an answer
RECENT = 0.02               # seconds for which a check of the files still counts before the next batch
NEAREST = 3                 # training texts that explain a label
# What a faulty version raises: requests are validated before, so the version is to blame.
VERSION_ERRORS = (DamagedArtifact, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True)
class Question:
    """A text to tag with up to `k` labels of at least a confidence, explained or not, and the version that answers."""

    served: Served
    text: str
    k: int
    threshold: float
    explain: bool


class Service:
    """Answers with the follower's version, in batches; draining: whether the server is about to stop.

    others: what the other workers of the server know.
    """

    def __init__(self, follower: AliasFollower, metrics: ServerMetrics, others: Others | None = None) -> None:
        self.follower, self.metrics, self.others, self.draining = follower, metrics, others or Others(), False
        self.batcher = Batcher(answer, largest=LARGEST, room=ROOM, on_batch=metrics.batch_begun)

    @property
    def fault(self) -> str:
        """Why the server's answers may be wrong or outdated, "" where nothing is known against them."""
        return self.follower.fault or self.others.fault

    def current(self) -> Served:
        """Return the version that answers; raise Problem where none is loaded."""
        if self.follower.current is None:
            raise Problem(503, "no-model", "no model is loaded", headers={"Retry-After": "2"})
        return self.follower.current

    def answering(self) -> Served:
        """Return the version that answers, as `current` does; raise Problem where its files are damaged."""
        if (served := self.current()).watch.damage:
            raise refused()
        return served

    async def predict(self, request: PredictRequest) -> dict[str, Any]:
        """Return the answers to a request, all by the same version."""
        served = self.answering()
        try:
            async with asyncio.timeout(WAIT):
                results = await self.batcher([Question(served, text, request.k, request.threshold, request.explain)
                                              for text in request.texts])
        except QueueFull:
            raise Problem(503, "queue-full", "too many texts wait already", headers={"Retry-After": "1"}) from None
        except TimeoutError:
            raise Problem(503, "timeout", f"no answer within {WAIT:g} seconds", headers={"Retry-After": "2"}) from None
        except VERSION_ERRORS as error:
            self.follower.doubt(served, error)
            raise refused() from None
        return {"model": served.named(), "results": [{"labels": labels} for labels in results]}


def refused() -> Problem:
    """Return the Problem of a version that is damaged or failed."""
    return Problem(500, "version", "the version that answers is damaged, or failed at this question; /model tells how")


def answer(questions: list[Question]) -> list[list[dict[str, Any]]]:
    """Return the labels of each question.

    Raises DamagedArtifact where a file of a version was written to since it was verified.
    """
    versions = {id(question.served): question.served for question in questions}.values()
    _check_files(versions, RECENT)    # reading a truncated file would end the process
    out = [_explained(question) if question.explain else [] for question in questions]
    for served in versions:
        rows = [row for row, question in enumerate(questions) if question.served is served and not question.explain]
        if rows:
            answers = served.retriever.predict([questions[row].text for row in rows],
                                               max(questions[row].k for row in rows))
            for row, labels in zip(rows, answers, strict=True):
                question = questions[row]
                out[row] = [label.to_json() for label in labels[:question.k] if label.confidence >= question.threshold]
    _check_files(versions)
    return out


def _check_files(versions: Collection[Served], recent: float = 0.0) -> None:
    for served in versions:
        if path := served.watch.written(recent):
            raise DamagedArtifact(f"{path} was written to since it was verified", hint="run the same command again")


def _explained(question: Question) -> list[dict[str, Any]]:
    """Return explained labels; alone in its batch, since the other texts change the last digits of a sum."""
    retriever = question.served.retriever
    [labels] = retriever.predict([question.text], question.k, threshold=question.threshold)
    explanations = retriever.explain(question.text, labels, nearest=NEAREST)
    return [label.to_json() | asdict(why) for label, why in zip(labels, explanations, strict=True)]
