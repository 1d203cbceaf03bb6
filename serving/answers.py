"""Prediction service: answers requests in batches by the version that is current."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from data_contracts.errors import DamagedArtifact
from serving.batcher import SHARE, Batcher, QueueFull
from serving.http.guard import Problem
from serving.model_watcher import AliasFollower, Served
from serving.prometheus import ServerMetrics
from serving.schemas import PredictRequest, no_branches, unknown_labels
from serving.workers.shared_status import Peers
from xcmodels.retrieval.proposers import Selection
from xcmodels.retrieval.selection import NoBranches, UnknownLabel

LARGEST, ROOM = 32, 1024    # most texts in a batch, most texts in the queue
WAIT = 10.0                 # seconds for an answer
RECENT = 0.02               # seconds for which a check of the files still counts before the next batch
NEAREST = 3                 # training texts that explain a label
SELECTIONS = 16             # kept: those of the last requests that chose labels or left some out
# What a faulty version raises: requests are validated before, so the version is to blame.
VERSION_ERRORS = (DamagedArtifact, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True)
class Question:
    """A text to tag with up to `k` labels of at least a confidence, explained or not, and the version that answers.

    selection: the labels of the version to choose from, None for all. content: a longer text of a query whose title
    `text` is.
    """

    served: Served
    text: str
    k: int
    threshold: float
    explain: bool = False
    selection: Selection | None = None
    content: str = ""


class ModelService:
    """Answers with the follower's version, in batches; draining: whether the server is about to stop.

    peers: what the other workers of the server say.
    """

    def __init__(self, follower: AliasFollower, metrics: ServerMetrics, peers: Peers | None = None) -> None:
        self.follower, self.metrics, self.peers, self.draining = follower, metrics, peers or Peers(), False
        self.selections = Selections()
        # An explanation takes a transformer a second or more: one a request, and then it is the turn of others.
        self.batcher = Batcher(answer, largest=LARGEST, room=ROOM, on_batch=metrics.batch_begun,
                               weigh=lambda question: SHARE if question.explain else 1)

    @property
    def fault(self) -> str:
        """Why the server's answers may be wrong or outdated, "" where nothing is known against them."""
        return self.follower.fault or self.peers.fault

    def current(self, why: str = "") -> Served:
        """Return the version that answers; raise Problem where none is loaded, for the reason `why`."""
        if self.follower.current is None:
            reason = f": {why}" if why else ""
            raise Problem(503, "no-model", f"no model is loaded{reason}", headers={"Retry-After": "2"})
        self.selections.keep_those_of(self.follower.current)
        return self.follower.current

    def answering(self) -> Served:
        """Return the version that answers, as `current` does; raise Problem where its files are damaged."""
        if (served := self.current()).watch.damage:
            raise version_problem()
        return served

    async def predict(self, request: PredictRequest) -> dict[str, Any]:
        """Return the answers to a request, all by the same version."""
        served = self.answering()
        selection = self.selections(served, request)
        results = await self.ask(served, [
            Question(served, text, request.k, request.threshold, request.explain, selection) for text in request.texts])
        return {"model": served.named(), "results": [{"labels": labels} for labels in results]}

    async def ask(self, served: Served, questions: list[Question]) -> list[list[dict[str, Any]]]:
        """Return the labels of each question to a version; raise Problem where it cannot answer, or not in time."""
        try:
            async with asyncio.timeout(WAIT):
                return await self.batcher(questions)
        except QueueFull:
            raise Problem(503, "queue-full", "too many texts wait already", headers={"Retry-After": "1"}) from None
        except TimeoutError:
            raise Problem(503, "timeout", f"no answer within {WAIT:g} seconds", headers={"Retry-After": "2"}) from None
        except VERSION_ERRORS as error:
            self.follower.report_failure(served, error)
            raise version_problem() from None


class Selections:
    """Selections of labels that requests asked for; texts of the same one are ranked together.

    The last ones are kept, for clients that send the same lists again, until another version answers.
    """

    def __init__(self) -> None:
        self._served: Served | None = None
        self._kept: OrderedDict[bytes, Selection] = OrderedDict()

    def keep_those_of(self, served: Served) -> None:
        """Let go of another version; with any request, else an old one stays in memory until a list comes."""
        if self._served is not served:
            self._served, self._kept = served, OrderedDict()

    def __call__(self, served: Served, request: PredictRequest) -> Selection | None:
        """Return the selection of a request, None for all labels.

        Raises Problem where the request names what the version does not know.
        """
        self.keep_those_of(served)
        if request.only is None and not request.without:
            return None
        key = hashlib.sha256(orjson.dumps([request.only, request.without])).digest()
        if key not in self._kept:
            try:
                self._kept[key] = served.retriever.select(request.only, request.without)
            except UnknownLabel as error:
                raise unknown_labels(error) from None
            except NoBranches as error:
                raise no_branches(error) from None
            if len(self._kept) > SELECTIONS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def version_problem() -> Problem:
    """Return the Problem of a version that is damaged or failed."""
    return Problem(500, "version", "the version that answers is damaged, or failed at this question; /model tells how")


def answer(questions: list[Question]) -> list[list[dict[str, Any]]]:
    """Return the labels of each question.

    Raises DamagedArtifact where a file of a version was written to since it was verified.
    """
    versions = {id(question.served): question.served for question in questions}.values()
    _check_files(versions, RECENT)    # reading a truncated file would end the process
    out = [_explained(question) if question.explain else [] for question in questions]
    alike: dict[tuple[int, int, int], list[int]] = {}    # by k, too: how many labels are proposed depends on it
    for row, question in enumerate(questions):
        if not question.explain:
            alike.setdefault((id(question.served), id(question.selection), question.k), []).append(row)
    for rows in alike.values():
        first = questions[rows[0]]
        answers = first.served.retriever.predict_among(
            first.selection, [questions[row].text for row in rows], first.k,
            [questions[row].content for row in rows])
        for row, labels in zip(rows, answers, strict=True):
            out[row] = [label.to_json() for label in labels if label.confidence >= questions[row].threshold]
    _check_files(versions)
    return out


def _check_files(versions: Collection[Served], recent: float = 0.0) -> None:
    for served in versions:
        if path := served.watch.written(recent):
            raise DamagedArtifact(f"{path} was written to since it was verified", hint="run the same command again")


def _explained(question: Question) -> list[dict[str, Any]]:
    """Return explained labels; alone in its batch, since the other texts change the last digits of a sum."""
    retriever = question.served.retriever
    [labels] = retriever.predict_among(question.selection, [question.text], question.k, [question.content],
                                       question.threshold)
    explanations = retriever.explain(question.text, labels, nearest=NEAREST, content=question.content)
    return [label.to_json() | asdict(why) for label, why in zip(labels, explanations, strict=True)]
