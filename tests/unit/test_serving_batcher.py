"""Micro-batches: everybody is answered, in order and in turn, and nobody for another's mistake."""

import asyncio
import threading
from contextlib import suppress

import pytest

from serving.batcher import SHARE, Batcher, QueueFull


class Answering:
    """Doubles numbers, notes each batch, and can be held up or made to fail."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()
        self.go.set()

    def __call__(self, batch):
        self.go.wait(10)
        self.batches.append(list(batch))
        if 13 in batch:
            raise ValueError("13 is refused")
        return [2 * each for each in batch]


def run(work):
    return asyncio.run(work)


async def held(answering, batcher, asked=(1,)):
    """Have the batcher busy with a first request until `go` is set."""
    answering.go.clear()
    first = asyncio.create_task(batcher(list(asked)))
    await asyncio.sleep(0.05)
    return first


def test_answers_come_in_order_and_together():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=32, room=1000)
        first = await held(answering, batcher)
        crowd = [asyncio.create_task(batcher([10 * n + 100, 10 * n + 101])) for n in range(10)]
        await asyncio.sleep(0.05)
        answering.go.set()
        assert await first == [2]
        assert await asyncio.gather(*crowd) == [[20 * n + 200, 20 * n + 202] for n in range(10)]
        await batcher.close()
        assert [len(batch) for batch in answering.batches] == [1, 20]
        assert await batcher([]) == []

    run(work())


def test_a_long_request_lets_others_in_between():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=16, room=1000)
        first = await held(answering, batcher)
        long = asyncio.create_task(batcher(list(range(1000, 1200))))
        await asyncio.sleep(0.01)
        short = asyncio.create_task(batcher([7]))
        await asyncio.sleep(0.01)
        answering.go.set()
        assert await short == [14] and not long.done()
        assert await long == [2 * n for n in range(1000, 1200)]
        assert await first == [2]
        assert answering.batches[1] == [*range(1000, 1000 + SHARE), 7, *range(1000 + SHARE, 1000 + SHARE + 7)]
        await batcher.close()

    run(work())


def test_a_full_queue_refuses_at_once_and_takes_again_when_there_is_room():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=4, room=10)
        first = await held(answering, batcher)
        waits = asyncio.create_task(batcher(list(range(8))))
        await asyncio.sleep(0.01)
        assert batcher.length == 8
        with pytest.raises(QueueFull):
            await batcher([1, 2, 3])
        both = asyncio.create_task(batcher([1, 2]))
        await asyncio.sleep(0.01)
        answering.go.set()
        assert (await first, await both, len(await waits)) == ([2], [2, 4], 8)
        assert batcher.length == 0
        assert await batcher([5]) == [10]
        await batcher.close()

    run(work())


def test_nobody_fails_for_what_another_asks():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=32, room=1000)
        first = await held(answering, batcher)
        crowd = [asyncio.create_task(batcher([n])) for n in (12, 13, 14)]
        await asyncio.sleep(0.01)
        answering.go.set()
        await first
        found = await asyncio.gather(*crowd, return_exceptions=True)
        assert (found[0], found[2]) == ([24], [28])
        assert isinstance(found[1], ValueError)
        assert await batcher([1]) == [2]
        await batcher.close()

    run(work())


def test_who_has_gone_is_not_answered():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=32, room=10)
        first = await held(answering, batcher)
        gone, stays = asyncio.create_task(batcher([50] * 9)), asyncio.create_task(batcher([60]))
        await asyncio.sleep(0.01)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        assert batcher.length == 1    # so there is room again
        answering.go.set()
        assert (await first, await stays) == ([2], [120])
        assert all(50 not in batch for batch in answering.batches)
        await batcher.close()

    run(work())


def test_closing_answers_what_waits():
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=1, room=100)
        first = await held(answering, batcher)
        rest = [asyncio.create_task(batcher([n])) for n in (3, 4)]
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.05, answering.go.set)
        await batcher.close()
        assert [await each for each in (first, *rest)] == [[2], [6], [8]]

    run(work())


def test_batches_are_told():
    async def work():
        told = []
        batcher = Batcher(lambda batch: batch, largest=4, room=100, on_batch=lambda *each: told.append(each))
        await batcher(list(range(6)))
        await batcher.close()
        assert [size for size, _ in told] == [4, 2]

    run(work())


def test_of_texts_that_take_long_a_request_adds_one_to_a_batch():
    """So others wait for a few of them at most, and what nobody waits for any more is left out."""
    async def work():
        answering = Answering()
        batcher = Batcher(answering, largest=2 * SHARE, room=1000, weigh=lambda each: SHARE if each >= 100 else 1)
        first = await held(answering, batcher)
        crowd = [asyncio.create_task(batcher(asked)) for asked in ([100, 101, 102], [2, 3, 4], [103, 104])]
        await asyncio.sleep(0.05)
        answering.go.set()
        assert await first == [2]
        assert await asyncio.gather(*crowd) == [[200, 202, 204], [4, 6, 8], [206, 208]]
        await batcher.close()
        assert answering.batches == [[1], [100, 2, 3, 4, 103], [101, 104], [102]]

    run(work())
