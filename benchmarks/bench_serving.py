"""How long does `/predict` take for one text under the load of 20 clients, and how much do more workers answer?

    python -m benchmarks.bench_serving HOME [MODEL] [SECONDS] [WORKERS ...]

The loads are 50 requests a second, and back to back, for each number of workers. The clients share the processors with
the server; what it would reach without them follows from the processor time that it takes for an answer. With `wrk`
installed, a third row is by that, whose clients take little of the processor.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.arguments import Count, Folder, run

CLIENTS = 20
SCRIPT = """
local texts = {%s}
local turn = 0
wrk.method, wrk.headers["Content-Type"], wrk.headers["Host"] = "POST", "application/json", "localhost"
function request()
  turn = turn + 1
  return wrk.format(nil, "/predict", nil, '{"texts":[' .. texts[turn %% #texts + 1] .. '],"k":10}')
end
"""


class Client:
    """A client with a persistent connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def predict(self, text: str, k: int = 10, more: bytes = b"") -> list[dict[str, Any]]:
        """Return the labels of a text; more: further fields of the body, as JSON after a comma."""
        if not hasattr(self, "reader") or self.writer.is_closing() or self.reader.at_eof():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"texts": [text], "k": k}).encode()[:-1] + more + b"}"
        self.writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        reply = await self.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(reply.decode())
        if b"connection: close" in head:
            self.writer.close()
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
        await client.predict(texts[number])
        await asyncio.sleep(interval * number / CLIENTS)
        while (start := time.perf_counter()) < end:
            await client.predict(texts[turn % len(texts)], more=more[(number + turn // CLIENTS) % len(more)])
            ms.append(1000 * (time.perf_counter() - start))
            turn += CLIENTS
            await asyncio.sleep(max(0.0, interval - (time.perf_counter() - start)))

    await asyncio.gather(*(send_requests(number) for number in range(CLIENTS)))
    return np.array(ms)


async def texts_of(port: int) -> list[str]:
    """Return texts of labels, to ask for."""
    client = Client(port)
    texts = [label["text"] for label in await client.predict("a large wild cat with a mane", 100)]
    return texts + [label["text"] for text in texts[:10] for label in await client.predict(text, 100)]


@dataclass
class Use:
    """What the processes of a server have used: processor seconds, and MiB now, shared pages counted once."""

    seconds: float
    memory: float

    @classmethod
    def of(cls, server: psutil.Process) -> "Use":
        """Return what a server uses."""
        processes = [server, *server.children(recursive=True)]
        return cls(sum(sum(process.cpu_times()[:2]) for process in processes),
                   sum(process.memory_full_info().pss for process in processes) / 2**20)


def measure(server: psutil.Process, port: int, workers: int, seconds: int) -> None:
    """Print one row per load."""
    texts = asyncio.run(texts_of(port))
    wrk = shutil.which("wrk")
    loads: list[tuple[str, float]] = [("back to back", 0.0), ("50 a second", CLIENTS / 50)]
    for name, interval in [*loads, *([("back to back, wrk", -1.0)] if wrk else [])]:
        before, began = Use.of(server), time.perf_counter()
        if interval >= 0:
            ms = asyncio.run(latencies(port, texts, seconds, interval))
            answers, p50, p99 = len(ms), *np.quantile(ms, [.5, .99])
        else:
            answers, p50, p99 = by_wrk(str(wrk), port, texts, seconds)
        after, took = Use.of(server), time.perf_counter() - began
        used = after.seconds - before.seconds
        print(f"{workers:<9}{name:<20}{answers / took:>10.1f}{p50:>9.1f}{p99:>9.1f}{1000 * used / answers:>12.2f}"
              f"{used / took:>8.2f}{after.memory:>8.0f}", flush=True)


def by_wrk(wrk: str, port: int, texts: list[str], seconds: int) -> tuple[int, float, float]:
    """Return answers, and the median and 99th percentile of milliseconds, of the clients of `wrk`."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        quoted = [json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False) for text in texts]
        script.write(SCRIPT % ",".join(quoted))
        script.flush()
        said = subprocess.run([wrk, "-t1", f"-c{CLIENTS}", f"-d{seconds}s", "--latency", "-s", script.name,
                               f"http://127.0.0.1:{port}"], text=True, capture_output=True, check=True).stdout
    if re.search(r"Non-2xx|Socket errors", said):
        raise SystemExit(said)
    units = {"us": .001, "ms": 1.0, "s": 1000.0}
    p50, p99 = (float(number) * units[unit] for number, unit in re.findall(r"(?:50|99)%\s+([\d.]+)(us|ms|s)", said))
    return int(re.search(r"(\d+) requests in", said)[1]), p50, p99    # type: ignore[index]


@contextmanager
def served(home: Path, model: str = "", workers: int = 1) -> Iterator[tuple[psutil.Process, int, str]]:
    """Serve a model of HOME on a free port; yield the server's process, its port, and the model's name."""
    command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(home), "--port", "0", "--model", model,
               *(["--workers", str(workers)] if workers > 1 else [])]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        told = re.search(r"serving (.*) version \S+ on http://127\.0\.0\.1:(\d+)", line)
        if told is None:
            raise SystemExit(line + server.stderr.read())
        yield psutil.Process(server.pid), int(told[2]), told[1]
    finally:
        server.terminate()
        server.wait(60)


def main(home: Folder, model: str = "", seconds: Count = 20, *workers: Count) -> None:
    """Serve a model of HOME on a free port and measure it, with each number of workers in turn."""
    print(f"{CLIENTS} clients, load average {os.getloadavg()[0]:.1f}; CPU, cores and MiB are those of the server")
    print(f"{'workers':<9}{'requests':<20}{'answers/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms each':>12}{'cores':>8}"
          f"{'MiB':>8}")
    for number in workers or (1,):
        with served(home, model, number) as (server, port, _):
            measure(server, port, number, seconds)


if __name__ == "__main__":
    run(main, __doc__)
