"""How long does `/predict` take for one text under the load of 20 clients: 50 requests a second, or back to back?

    python -m benchmarks.bench_serving HOME [MODEL] [seconds]
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.arguments import Count, Folder, run

CLIENTS = 20


class Client:
    """A client with a persistent connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def predict(self, text: str, k: int = 10) -> list[str]:
        """Return the texts of the labels of a text."""
        if not hasattr(self, "reader") or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"texts": [text], "k": k}).encode()
        self.writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        reply = await self.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(reply.decode())
        return [label["text"] for label in json.loads(reply)["results"][0]["labels"]]


async def latencies(port: int, texts: list[str], seconds: float, interval: float) -> np.ndarray:
    """Return the milliseconds of each request; each client sends one every `interval` seconds, 0 for back to back."""
    ms: list[float] = []

    async def send_requests(number: int) -> None:
        client, turn, end = Client(port), number, time.perf_counter() + seconds
        await client.predict(texts[number])
        await asyncio.sleep(interval * number / CLIENTS)
        while (start := time.perf_counter()) < end:
            await client.predict(texts[turn % len(texts)])
            ms.append(1000 * (time.perf_counter() - start))
            turn += CLIENTS
            await asyncio.sleep(max(0.0, interval - (time.perf_counter() - start)))

    await asyncio.gather(*(send_requests(number) for number in range(CLIENTS)))
    return np.array(ms)


async def measure(port: int, seconds: float) -> None:
    """Print one row per load."""
    client = Client(port)
    texts = await client.predict("a large wild cat with a mane", 100)
    texts += [label for text in texts[:10] for label in await client.predict(text, 100)]
    print(f"{len(texts)} texts, {CLIENTS} clients, load average {os.getloadavg()[0]:.1f}")
    print(f"{'requests':<22}{'answers/s':>10}{'p50 ms':>9}{'p99 ms':>9}")
    for name, interval in (("back to back", 0.0), ("50 a second", CLIENTS / 50)):
        ms = await latencies(port, texts, seconds, interval)
        print(f"{name:<22}{len(ms) / seconds:>10.1f}{np.quantile(ms, .5):>9.1f}{np.quantile(ms, .99):>9.1f}")


@contextmanager
def serving(home: Path, model: str) -> Iterator[tuple[int, str]]:
    """Serve a model of a home on a free port, with `xc serve`; yield the port and the model's name."""
    command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--port", "0", "--model", model]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        told = re.search(r"serving (.*) version \S+ on http://127\.0\.0\.1:(\d+)", line)
        if told is None:
            raise SystemExit(line + server.stderr.read())
        print(line.strip())
        yield int(told[2]), told[1]
    finally:
        server.terminate()
        server.wait(30)


def main(home: Folder, model: str = "", seconds: Count = 20) -> None:
    """Serve a model of HOME on a free port and measure it."""
    with serving(home, model) as (port, _):
        asyncio.run(measure(port, seconds))


if __name__ == "__main__":
    run(main, __doc__)
