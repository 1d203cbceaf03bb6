"""Feedback over HTTP: checked, limited by rate, and acknowledged once it is on the disk."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from serving.http.guard import Problem
from serving.model_watcher import Served
from serving.schemas import MAX_ERRORS, FeedbackRequest
from tasks.data.feedback.journal import Feedback, FeedbackJournal

RATE, BURST = 10.0, 100     # decisions of a client: a second, and at once
CLIENTS = 1024              # addresses whose rate is kept
FULL = 1 << 30              # bytes of a journal, at most
_log = logging.getLogger("serving")


class RateLimit:
    """A bucket of decisions for each client's address, which fills again over time; the longest silent go."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate = rate
        self._buckets = OrderedDict[str, tuple[float, float]]()    # address -> decisions left, and when

    def admit(self, client: str, decisions: int = 1) -> None:
        """Count decisions; raise Problem where the client has sent too many."""
        now = time.monotonic()
        left, then = self._buckets.pop(client, (float(BURST), now))
        left = min(BURST, left + (now - then) * self.rate)
        self._buckets[client] = (left - decisions, now) if left >= decisions else (left, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < decisions:
            raise Problem(429, "rate", f"at most {self.rate:g} decisions a second are taken from one address",
                          headers={"Retry-After": str(math.ceil((decisions - left) / self.rate))})


class FeedbackKeeper:
    """Writes feedback to the journal of a home; what comes while one write lasts is written together by the next."""

    def __init__(self, home: Path) -> None:
        self.home, self.limit = home, RateLimit()
        self._waiting: list[tuple[str, Sequence[Feedback], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def keep(self, decision: FeedbackRequest, served: Served, client: str) -> Feedback:
        """Return a decision, each label once, when it is on the disk; raise Problem where it is refused or not kept."""
        unknown = [(f"/{name}/{place}", "no label has this uid; xc labels add makes one")
                   for name in ("accepted", "rejected", "added")
                   for place in np.flatnonzero(served.retriever.ids(getattr(decision, name)) < 0).tolist()]
        if unknown:
            raise Problem(422, "invalid", f"the model does not have {len(unknown)} of the labels",
                          errors=unknown[:MAX_ERRORS])
        accepted, rejected, added = (list(dict.fromkeys(uids)) for uids in (
            decision.accepted, decision.rejected, [uid for uid in decision.added if uid not in decision.accepted]))
        [title], [content] = served.retriever.fields([decision.text], [""])    # as training texts are
        kept = Feedback(title, accepted, rejected, added, content, request=decision.request_id,
                        version=decision.version)
        await self.write([kept], served, client)
        return kept

    async def write(self, feedback: Sequence[Feedback], served: Served, client: str) -> None:
        """Return when decisions, of labels that the version has, are all on the disk; raise Problem as `keep` does.

        One that names no version is taken to be on an answer of the version that answers now.
        """
        self.limit.admit(client, len(feedback))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stamped = [replace(decision, when=now, version=decision.version or served.version) for decision in feedback]
        kept = asyncio.get_running_loop().create_future()
        self._waiting.append((served.name, stamped, kept))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await kept

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            for name in dict.fromkeys(name for name, _, _ in batch):
                part = [(feedback, kept) for model, feedback, kept in batch if model == name]
                error: Problem | None = None
                try:
                    decisions = [decision for feedback, _ in part for decision in feedback]
                    await asyncio.to_thread(self._append, name, decisions)
                except OSError as failure:
                    _log.warning("feedback cannot be kept: %s", failure)
                    error = Problem(503, "disk", "the decision could not be kept; send it again later",
                                    headers={"Retry-After": "60"})
                except Problem as failure:
                    error = failure
                for _, kept in part:
                    if not kept.done():    # its client may have gone
                        kept.set_exception(error) if error else kept.set_result(None)

    def _append(self, name: str, feedback: list[Feedback]) -> None:
        journal = FeedbackJournal(self.home, name)
        if journal.path.exists() and journal.path.stat().st_size > FULL:
            raise Problem(503, "journal", "the journal of feedback is full: xc feedback export, then move it away")
        journal.append(feedback)
