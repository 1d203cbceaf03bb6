"""How long does `/predict` take for one text, with 20 clients that ask at once, or 50 times a second together?

    python -m benchmarks.bench_serving HOME [MODEL] [seconds]
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from typing import Annotated

import numpy as np

from benchmarks.asked import Count, Folder, answer

CLIENTS = 20


class Client:
    """A connection that is kept, as a program keeps it."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, text: str, k: int = 10) -> list[str]:
        """Return the label texts of a text."""
        if not hasattr(self, "reader") or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"texts": [text], "k": k}).encode()
        self.writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        answer = await self.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        return [label["text"] for label in json.loads(answer)["results"][0]["labels"]]


async def load(port: int, texts: list[str], seconds: float, every: float) -> np.ndarray:
    """Return how long each answer took, in ms; each client asks `every` seconds, or again at once where that is 0."""
    took: list[float] = []

    async def one(number: int) -> None:
        client, turn, end = Client(port), number, time.perf_counter() + seconds
        await client.ask(texts[number])
        await asyncio.sleep(every * number / CLIENTS)
        while (began := time.perf_counter()) < end:
            await client.ask(texts[turn % len(texts)])
            took.append(1000 * (time.perf_counter() - began))
            turn += CLIENTS
            await asyncio.sleep(max(0.0, every - (time.perf_counter() - began)))

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return np.array(took)


async def measure(port: int, seconds: float) -> None:
    """Print one row a way of asking."""
    client = Client(port)
    texts = await client.ask("a large wild cat with a mane", 100)
    texts += [label for text in texts[:10] for label in await client.ask(text, 100)]
    print(f"{len(texts)} texts, {CLIENTS} clients, load of the machine {os.getloadavg()[0]:.1f}")
    print(f"{'asked':<22}{'answers/s':>10}{'p50 ms':>9}{'p99 ms':>9}")
    for name, every in (("again at once", 0.0), ("50 times a second", CLIENTS / 50)):
        took = await load(port, texts, seconds, every)
        print(f"{name:<22}{len(took) / seconds:>10.1f}{np.quantile(took, .5):>9.1f}{np.quantile(took, .99):>9.1f}")


def main(home: Folder, model: Annotated[str, str] = "", seconds: Count = 20) -> None:
    """Serve a model of HOME on a free port and measure it."""
    command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--port", "0", "--model", model]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        found = re.search(r"on http://127\.0\.0\.1:(\d+)", said)
        if found is None:
            raise SystemExit(said + server.stderr.read())
        print(said.strip())
        asyncio.run(measure(int(found[1]), seconds))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    answer(main, __doc__)
