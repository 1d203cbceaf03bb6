"""`xc serve` in a process of its own, and requests to it over real sockets."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tasks.core.store import Artifact, digest_of
from tasks.evaluation.gates import Score
from tasks.registry.champions import move
from tasks.registry.promotion import promote_by_gates
from tasks.registry.register import register
from tasks.registry.tags import DATA, EXAMPLES
from tests.conftest import ROOT
from tests.support import tiny
from tests.support.forked import kill_group, start_xc
from xcmodels.data.corpus import Texts

DIGEST = "d" * 64    # of the data
NOTICE = 3.0         # seconds before a server stops, in which busy processors too answer what a test asks
TEXTS = ["an oak of the forest", "ذئب في الجبل", "the <b>sea</b> seal"]


class ServedModels(tiny.RegisteredModels):
    """A home with an MLflow database, in which tiny retrievers are registered as versions of "xc"."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.home = home

    def add(self, seed: int = 0, p1: float = 60.0, titles: list[str] | None = None) -> str:
        """Register a retriever, titles: with these label texts; return its version, the champion if the gates hold."""
        artifact = self._named(titles) if titles else tiny.publish(self.store, seed)
        score = Score({"P/1": p1, "PSP/5": 50.0, "index/classifier/recall/100": 99.5})
        version = register(self.tracker, self.run or "", "xc", retriever_dir=self.store.open(artifact),
                           retriever_digest=artifact.digest, score=score, test_digest="test 1", card="# card",
                           facts={EXAMPLES: json.dumps(TEXTS), DATA: DIGEST}).version
        promote_by_gates(self.tracker, "xc", version)
        return version

    def _named(self, titles: list[str]) -> Artifact:
        def write(out: Path) -> None:
            shutil.copytree(self.store.open(tiny.publish(self.store)), out, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("MANIFEST.json", "label.title.*"))
            Texts.save(out, "label.title", titles)

        return self.store.publish(digest_of(["tiny", titles]), "retriever", {}, write)

    def point(self, version: str) -> None:
        """Move the alias `champion` to a version, without a record."""
        with self.tracker.required() as client:
            client.set_registered_model_alias("xc", "champion", version)

    def promote(self, version: str) -> None:
        """Make a version the champion, whatever its scores."""
        with self.tracker.required() as client:
            move(client, "xc", version, "a test asks for it", how="forced")

    def digest(self, seed: int = 0) -> str:
        """Return the digest of a retriever."""
        return tiny.publish(self.store, seed).digest

    def damage(self, seed: int) -> None:
        """Flip a byte in a retriever's vectors, and so in every copy, which is a hard link."""
        path = self.home / "objects" / self.digest(seed) / "term.encoder.npy"
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.chmod(0o600)
        path.write_bytes(bytes(data))


@dataclass
class Running:
    """A server's process and address."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, body: Any = None, **headers: str) -> "Reply":
        """GET `path`, or POST a body to it, as JSON unless it is bytes."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", **self.headers,
                **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            head = {"Content-Type": "application/json", "Content-Length": str(len(sent)), **head}
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
        return self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + sent)

    def send(self, data: bytes, timeout: float = 30) -> "Reply":
        """Send bytes on a new connection and read the reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            return Reply.read(connection)

    def labels(self, text: str, **more: Any) -> list[dict[str, Any]]:
        """Return the labels of one text."""
        reply = self.ask("/predict", {"texts": [text], **more})
        assert reply.status == 200, reply
        return reply.json()["results"][0]["labels"]

    def fine(self) -> bool:
        """Return whether a valid request is answered."""
        return len(self.labels("a wolf", k=2)) == 2

    def asked(self) -> int:
        """Return how many connections this process has to it: requests that are not answered."""
        return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == self.port
                   for each in psutil.Process().net_connections("tcp"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the server; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@dataclass(frozen=True)
class Reply:
    """An HTTP reply; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, connection: socket.socket) -> "Reply":
        """Read one reply; status 0 if none comes before the timeout or the end of the connection."""
        data = b""
        with suppress(ConnectionResetError, TimeoutError):
            while not cls._whole(data) and (part := connection.recv(1 << 16)):
                data += part
        if not data:
            return cls(0, {}, b"")
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        return cls(int(first.split()[1]), headers, body[:int(headers.get("content-length", len(body)))])

    @staticmethod
    def _whole(data: bytes) -> bool:
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return bool(end and length and len(body) >= int(length[1]))

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def problem(reply: Reply, status: int, code: str) -> Any:
    """Check that a reply is the expected problem+json, and return its fields."""
    fields = reply.json()
    assert (reply.status, fields["status"], fields["code"]) == (status, status, code), fields
    assert reply.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "detail", "link"} <= fields.keys() and re.fullmatch(r"/docs#[a-z-]+", fields["link"])
    return fields


@contextmanager
def running(home: Path, *words: str, descriptors: int = 0, **environment: str) -> Iterator[Running]:
    """Run `xc serve` on a free port and yield it once it is ready; descriptors: its limit of open files."""
    log = home.parent / f"{home.name}-{time.monotonic_ns()}.log"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with log.open("wb") as said:
        process = start_xc("serve", "--home", str(home), "--port", "0", *words, cwd=ROOT, stdout=said, stderr=said,
                           start_new_session=True, preexec_fn=limit if descriptors else None,
                           env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    try:
        port = ready(process, log)
        yield Running(process, port, log)
    finally:
        kill_group(process)
        process.wait(30)


def ready(process: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> int:
    """Wait until the server answers; return its port, from the first line of its log."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if (found := re.search(r"(serving .*|listening) on http://\S+:(\d+)", log.read_text())) is not None:
            port = int(found[2])
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if Reply.read(connection).status == 200:
                    return port
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}")


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.2)
    return False
