"""Micro-batches: texts that wait at the same moment are answered together, by one thread, in turn.

Nobody waits for a batch to fill: what comes in while one is computed makes the next. So a request alone is answered at
once, and a crowd in large batches. A request of many texts gives a few to each batch, and lets others in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

SHARE = 8    # texts that a request adds to a batch before it is the next one's turn
Q = TypeVar("Q")
A = TypeVar("A")


class QueueFull(Exception):
    """There is no room for what a request asks."""


class _Request(Generic[Q, A]):
    """A request on its way: what it asks, how much of it has gone into batches, and the answers so far."""

    def __init__(self, asked: Sequence[Q], now: float, done: "asyncio.Future[list[A]]") -> None:
        self.asked, self.since, self.done = asked, now, done
        self.begun = 0
        self.answers: list[A] = []

    def take(self, most: int) -> Sequence[Q]:
        """Return the next of what it asks."""
        part = self.asked[self.begun:self.begun + most]
        self.begun += len(part)
        return part

    def receive(self, answers: Sequence[A]) -> None:
        """Take the answers to what was taken, in the order of taking."""
        self.answers += answers
        if len(self.answers) == len(self.asked) and not self.done.done():
            self.done.set_result(self.answers)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.done.done():
            self.done.set_exception(error)


_Part = tuple[_Request[Q, A], Sequence[Q]]


class Batcher(Generic[Q, A]):
    """Answers what is asked in batches of up to `largest`; at most `room` wait.

    answer: called in a thread of its own with a batch, returns as many answers. told: (size of a batch, seconds that
    its first waited) is called for each.
    """

    def __init__(self, answer: Callable[[list[Q]], list[A]], *, largest: int, room: int,
                 told: Callable[[int, float], None] = lambda size, waited: None) -> None:
        self._answer, self.largest, self.room, self._told = answer, largest, room, told
        self._waiting: deque[_Request[Q, A]] = deque()
        self._thread = ThreadPoolExecutor(1, "predict")
        self._busy: asyncio.Task[None] | None = None

    @property
    def length(self) -> int:
        """How many wait."""
        return sum(len(each.asked) - each.begun for each in self._waiting if not each.done.done())

    async def __call__(self, asked: Sequence[Q]) -> list[A]:
        """Return an answer each, in order. Raises QueueFull at once, and what answering raised."""
        if not asked:
            return []
        if (waiting := self.length) + len(asked) > self.room:
            raise QueueFull(f"{waiting} texts wait already")
        loop = asyncio.get_running_loop()
        mine: _Request[Q, A] = _Request(asked, loop.time(), loop.create_future())
        self._waiting.append(mine)
        if self._busy is None:
            self._busy = loop.create_task(self._work())
        return await mine.done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if batch := self._next():
                self._told(sum(len(part) for _, part in batch), loop.time() - batch[0][0].since)
                await self._run(batch)
        self._busy = None

    def _next(self) -> list[_Part[Q, A]]:
        """Take up to `largest` off the queue, SHARE of each request in turn; who has gone is left out."""
        batch: list[_Part[Q, A]] = []
        room = self.largest
        while self._waiting and room:
            one = self._waiting.popleft()
            if one.done.done():
                continue
            part = one.take(min(SHARE, room))
            batch.append((one, part))
            room -= len(part)
            if one.begun < len(one.asked):
                self._waiting.append(one)
        return batch

    async def _run(self, batch: list[_Part[Q, A]]) -> None:
        """Answer a batch; where that fails, each part by itself, so that nobody fails for what another has asked."""
        asked = [each for _, part in batch for each in part]
        try:
            answers = iter(await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, asked))
            for one, part in batch:
                one.receive([next(answers) for _ in part])
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
                return
            for each in batch:
                await self._run([each])

    async def close(self) -> None:
        """Answer what waits, then end the thread."""
        while self._busy is not None:
            await asyncio.wait([self._busy])
        self._thread.shutdown()
