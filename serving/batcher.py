"""Micro-batching: texts that wait at the same moment are answered together.

No request waits for a batch to fill: those that arrive while a batch is computed form the next one. So a single
request is answered at once, and many requests in large batches. A request of many texts adds a few to each batch, so
that others are not held up. One thread computes the batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

SHARE = 8    # texts that a request adds to a batch before the next request's turn
Q = TypeVar("Q")
A = TypeVar("A")


class QueueFull(Exception):
    """The queue has no room for a request."""


class _Request(Generic[Q, A]):
    """A request in the queue: its queries, how many of them went into batches, and the answers so far."""

    def __init__(self, queries: Sequence[Q], now: float, done: "asyncio.Future[list[A]]") -> None:
        self.queries, self.since, self.done = queries, now, done
        self.taken = 0
        self.answers: list[A] = []

    def take(self, most: int, weigh: Callable[[Q], int]) -> tuple[Sequence[Q], int]:
        """Return the next queries that weigh up to `most` together, at least one, and what they weigh."""
        start, weight = self.taken, 0
        while self.taken < len(self.queries):
            more = weigh(self.queries[self.taken])
            if self.taken > start and weight + more > most:
                break
            self.taken, weight = self.taken + 1, weight + more
        return self.queries[start:self.taken], weight

    def receive(self, answers: Sequence[A]) -> None:
        """Add the answers to queries that were taken, in the order of taking."""
        self.answers += answers
        if len(self.answers) == len(self.queries) and not self.done.done():
            self.done.set_result(self.answers)

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        if not self.done.done():
            self.done.set_exception(error)


_Part = tuple[_Request[Q, A], Sequence[Q]]


class Batcher(Generic[Q, A]):
    """Answers queries in batches of up to `largest`; at most `room` queries wait.

    answer: called in a thread of its own with a batch, returns an answer for each query. on_batch: called before each
    batch with its size and the seconds that its first request waited. weigh: as how many queries one counts in a batch.
    """

    def __init__(self, answer: Callable[[list[Q]], list[A]], *, largest: int, room: int,
                 on_batch: Callable[[int, float], None] = lambda size, waited: None,
                 weigh: Callable[[Q], int] = lambda query: 1) -> None:
        self._answer, self.largest, self.room, self._on_batch = answer, largest, room, on_batch
        self._weigh = weigh
        self._waiting: deque[_Request[Q, A]] = deque()
        self._thread = ThreadPoolExecutor(1, "predict")
        self._busy: asyncio.Task[None] | None = None

    @property
    def length(self) -> int:
        """How many queries wait."""
        return sum(len(request.queries) - request.taken for request in self._waiting if not request.done.done())

    async def __call__(self, queries: Sequence[Q]) -> list[A]:
        """Return the answers in order of the queries. Raises QueueFull at once, and what `answer` raised."""
        if not queries:
            return []
        if (waiting := self.length) + len(queries) > self.room:
            raise QueueFull(f"{waiting} texts wait already")
        loop = asyncio.get_running_loop()
        request: _Request[Q, A] = _Request(queries, loop.time(), loop.create_future())
        self._waiting.append(request)
        if self._busy is None:
            self._busy = loop.create_task(self._work())
        return await request.done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if batch := self._next():
                self._on_batch(sum(len(part) for _, part in batch), loop.time() - batch[0][0].since)
                await self._run(batch)
        self._busy = None

    def _next(self) -> list[_Part[Q, A]]:
        """Take up to `largest` queries off the queue, SHARE of each request in turn; skip cancelled requests."""
        batch: list[_Part[Q, A]] = []
        room = self.largest
        while self._waiting and room > 0:
            request = self._waiting.popleft()
            if request.done.done():
                continue
            part, weight = request.take(min(SHARE, room), self._weigh)
            batch.append((request, part))
            room -= weight
            if request.taken < len(request.queries):
                self._waiting.append(request)
        return batch

    async def _run(self, batch: list[_Part[Q, A]]) -> None:
        """Answer a batch; where that fails, each request by itself, so that none fails for the queries of another."""
        queries = [query for _, part in batch for query in part]
        try:
            answers = iter(await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, queries))
            for request, part in batch:
                request.receive([next(answers) for _ in part])
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
                return
            for request_part in batch:
                await self._run([request_part])

    async def close(self) -> None:
        """Answer the queries that wait, then end the thread."""
        while self._busy is not None:
            await asyncio.wait([self._busy])
        self._thread.shutdown()
