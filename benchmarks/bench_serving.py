"""How long does `/predict` take for one text under the load of 20 clients: 50 requests a second, or back to back?

    python -m benchmarks.bench_serving HOME [MODEL] [seconds]

Then 50 requests a second that choose 1, 100 or half of all labels (only), or leave as many out (without), drawn at
random; each client sends the same list again and again, or every request has another one. For each the best 5 labels of
some texts are compared with those of an exact search: every label that may be given is scored.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.arguments import Count, Folder, run
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.inner_products import single_threaded
from xcmodels.retrieval.retriever import Retriever

CLIENTS, COMPARED, LISTS = 20, 200, 40    # LISTS: other ones in turn, more than a server keeps


class Client:
    """A client with a persistent connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def predict(self, text: str, k: int = 10, more: bytes = b"") -> list[dict[str, Any]]:
        """Return the labels of a text; more: further fields of the body, as JSON after a comma."""
        if not hasattr(self, "reader") or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"texts": [text], "k": k}).encode()[:-1] + more + b"}"
        self.writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        reply = await self.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(reply.decode())
        labels: list[dict[str, Any]] = json.loads(reply)["results"][0]["labels"]
        return labels


async def latencies(port: int, texts: list[str], seconds: float, interval: float,
                    more: Sequence[bytes] = (b"",)) -> np.ndarray:
    """Return the milliseconds of each request; each client sends one every `interval` seconds, 0 for back to back.

    more: further fields of the bodies, in turn.
    """
    ms: list[float] = []

    async def send_requests(number: int) -> None:
        client, turn, end = Client(port), number, time.perf_counter() + seconds
        await client.predict(texts[number], more=more[number % len(more)])
        await asyncio.sleep(interval * number / CLIENTS)
        while (start := time.perf_counter()) < end:
            await client.predict(texts[turn % len(texts)], more=more[(number + turn // CLIENTS) % len(more)])
            ms.append(1000 * (time.perf_counter() - start))
            turn += CLIENTS
            await asyncio.sleep(max(0.0, interval - (time.perf_counter() - start)))

    await asyncio.gather(*(send_requests(number) for number in range(CLIENTS)))
    return np.array(ms)


async def measure(port: int, seconds: float, retriever: Retriever) -> None:
    """Print one row per load."""
    client = Client(port)
    texts = [label["text"] for label in await client.predict("a large wild cat with a mane", 100)]
    texts += [label["text"] for text in texts[:10] for label in await client.predict(text, 100)]
    scores = exact_scores(retriever, texts[:COMPARED])
    print(f"{len(texts)} texts, {CLIENTS} clients, load average {os.getloadavg()[0]:.1f}")
    print(f"{'requests':<36}{'answers/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'as exact %':>12}")

    async def row(name: str, interval: float, lists: Sequence[np.ndarray], field: str) -> None:
        more = [b', "%s": ' % field.encode() + json.dumps(retriever.uids.take(ids)).encode() for ids in lists] or [b""]
        allowed = np.full(len(retriever.uids), field != "only")
        allowed[lists[0] if lists else []] = field == "only"
        allowed[retriever.removed] = False
        same = await agreement(Client(port), texts[:COMPARED], np.where(allowed, scores, -np.inf), more[0])
        ms = await latencies(port, texts, seconds, interval, more)
        print(f"{name:<36}{len(ms) / seconds:>10.1f}{np.quantile(ms, .5):>9.1f}{np.quantile(ms, .99):>9.1f}"
              f"{100 * same:>12.1f}", flush=True)

    await row("back to back", 0.0, (), "without")
    await row("50 a second", CLIENTS / 50, (), "without")
    rng, known = np.random.default_rng(0), np.setdiff1d(np.arange(len(retriever.uids)), retriever.removed)
    for field in ("only", "without"):
        for size in (1, 100, len(known) // 2):
            drawn = [rng.choice(known, size, replace=False) for _ in range(LISTS)]
            await row(f"50 a second, {field} {size:,}", CLIENTS / 50, drawn[:1], field)
            await row(f"50 a second, {field} {size:,}, other lists", CLIENTS / 50, drawn, field)


def exact_scores(retriever: Retriever, texts: list[str]) -> np.ndarray:
    """Return the score of every label for each of n texts, (n, L)."""
    every, tokens = np.arange(len(retriever.uids))[None], [retriever.tokenizer([text]) for text in texts]
    with single_threaded():
        return np.concatenate([retriever.scorer(retriever.embed(each), every, each) for each in tokens])


async def agreement(client: Client, texts: list[str], scores: np.ndarray, more: bytes) -> float:
    """Return the share of texts whose best 5 labels are those of largest scores (n, L), -inf for those left out."""
    same = 0
    for text, row in zip(texts, scores, strict=True):
        found = [label["id"] for label in await client.predict(text, 5, more)]
        best = np.lexsort((np.arange(len(row)), -row))[:5]
        same += found == best[row[best] > -np.inf].tolist()
    return same / len(texts)


def main(home: Folder, model: str = "", seconds: Count = 20) -> None:
    """Serve a model of HOME on a free port and measure it."""
    retriever = Retriever.load(resolve(Tracker(home), model or None).folder)
    command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--port", "0", "--model", model]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        address = re.search(r"on http://127\.0\.0\.1:(\d+)", line)
        if address is None:
            raise SystemExit(line + server.stderr.read())
        print(line.strip())
        asyncio.run(measure(int(address[1]), seconds, retriever))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    run(main, __doc__)
