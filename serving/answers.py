"""Questions answered: each by the version that was current when it came in, in batches."""

import asyncio
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from data_contracts.errors import DamagedArtifact
from serving.batcher import Batcher, QueueFull
from serving.http.guard import Problem
from serving.model_watcher import Follower, Served
from serving.prometheus import Measures
from serving.schemas import Asked
from xcmodels.retrieval.retriever import Label

LARGEST, ROOM = 32, 1024    # texts answered together, texts that wait
WAIT = 10.0                 # seconds for an answer
RECENT = 0.02               # seconds after which files are looked at before a batch, too, and not only after it
NEAREST = 3                 # training texts that explain a label
# What a version raises that is not right: what is asked was checked before.
WRONG = (DamagedArtifact, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True)
class Question:
    """A text, what is wanted to know of it, and who is to answer."""

    served: Served
    text: str
    k: int
    explain: bool


class Service:
    """Answers with the follower's version, through a batcher; `draining` once the server is about to stop."""

    def __init__(self, follower: Follower, measures: Measures) -> None:
        self.follower, self.measures, self.draining = follower, measures, False
        self.batcher = Batcher(answer, largest=LARGEST, room=ROOM, told=measures.told)

    def current(self) -> Served:
        """Return the version that answers; a Problem where there is none."""
        if self.follower.current is None:
            raise Problem(503, "no-model", "no model is loaded", headers={"Retry-After": "2"})
        return self.follower.current

    def answering(self) -> Served:
        """Return the version that answers, as `current` does; a Problem where it is refused."""
        if (served := self.current()).watch.damage:
            raise refused()
        return served

    async def predict(self, asked: Asked) -> dict[str, Any]:
        """Return the answers to a request, all of one version."""
        served = self.answering()
        try:
            async with asyncio.timeout(WAIT):
                found = await self.batcher([Question(served, text, asked.k, asked.explain) for text in asked.texts])
        except QueueFull:
            raise Problem(503, "queue-full", "too many texts wait already", headers={"Retry-After": "1"}) from None
        except TimeoutError:
            raise Problem(503, "timeout", f"no answer within {WAIT:g} seconds", headers={"Retry-After": "2"}) from None
        except WRONG as error:
            self.follower.doubt(served, error)
            raise refused() from None
        return {"model": served.named(), "results": [{"labels": labels} for labels in found]}


def refused() -> Problem:
    """Return what is told where the version that answers is at fault."""
    return Problem(500, "version", "the version that answers is damaged, or failed at this question; /model tells how")


def answer(questions: list[Question]) -> list[list[dict[str, Any]]]:
    """Return the labels of each question; a text of white space alone has nothing to be tagged by.

    Raises DamagedArtifact where a file of a version was written to since it was verified.
    """
    versions = {id(each.served): each.served for each in questions}.values()
    _unchanged(versions, RECENT)    # a file that was cut would end the process
    out: list[list[dict[str, Any]]] = [[] for _ in questions]
    asked = [row for row, each in enumerate(questions) if each.text.strip()]
    for served in versions:
        rows = [row for row in asked if questions[row].served is served and not questions[row].explain]
        if rows:
            answers = served.retriever.predict([questions[row].text for row in rows],
                                               max(questions[row].k for row in rows))
            for row, labels in zip(rows, answers, strict=True):
                out[row] = _told(labels[:questions[row].k])
    for row in asked:
        if questions[row].explain:
            out[row] = _explained(questions[row])
    _unchanged(versions)
    return out


def _unchanged(versions: Collection[Served], recent: float = 0.0) -> None:
    for each in versions:
        if path := each.watch.written(recent):
            raise DamagedArtifact(f"{path} was written to since it was verified", hint="run the same command again")


def _explained(question: Question) -> list[dict[str, Any]]:
    """Return labels with what makes them; of the text by itself, as a sum's last digit depends on its neighbours."""
    retriever = question.served.retriever
    [labels] = retriever.predict([question.text], question.k)
    explained = retriever.explain(question.text, labels, nearest=NEAREST)
    return [told | asdict(why) for told, why in zip(_told(labels), explained, strict=True)]


def _told(labels: list[Label]) -> list[dict[str, Any]]:
    """Return labels as they are answered."""
    return [{"id": each.id, "uid": each.uid, "text": each.text, "score": each.score} for each in labels]
