"""An S3 server on loopback (moto's), and a bucket of it for each test, with what a test does to its requests."""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECRET = "a-secret-key-that-nobody-prints"


class Server:
    """The server; requests: ("GET", "/bucket/key") of each, in order.

    before: called with each before it is done; where it raises ConnectionError, the answer is 503 and it is not done.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.address = f"http://127.0.0.1:{self.server.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        request = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append(request)
        try:
            self.before(*request)
        except ConnectionError:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Service Unavailable", [("Content-Length", "0"), ("Connection", "close")])
            return []
        return self.app(environ, start_response)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients reach it."""
        return {"AWS_ENDPOINT_URL": self.address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()


class Bucket:
    """A bucket of the server; address: s3://NAME; files: the file system, as a user's other programs see it."""

    def __init__(self, server: Server) -> None:
        import fsspec

        self.server, self.name = server, f"bucket-{uuid.uuid4().hex[:12]}"
        self.address = f"s3://{self.name}"
        self.files: Any = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        self.files.mkdir(self.name)

    def put(self, folder: Path, at: str) -> str:
        """Upload the files of a folder; return their address."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.files.put_file(str(path), f"{self.name}/{at}/{path.relative_to(folder)}")
        return f"{self.address}/{at}"

    def keys(self, at: str = "") -> set[str]:
        """Return the names of all objects below `at`, without it."""
        root = f"{self.name}/{at}".rstrip("/")
        return {key.removeprefix(f"{root}/") for key in self.files.find(root)}

    def asked(self, method: str, word: str = "") -> list[str]:
        """Return the paths of the requests of a method so far that contain a word."""
        return [path for kind, path in self.server.requests if kind == method and word in path and self.name in path]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Yield a new bucket, with the environment by which it is reached."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    yield Bucket(s3_server)
    s3_server.before = lambda method, path: None
