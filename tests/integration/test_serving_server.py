"""`xc serve` as a process: where it may listen, who may ask, how it ends, and what it never says."""

import asyncio
import errno
import fcntl
import json
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from data_contracts.errors import UsageError
from serving.access import make_access, read_token
from serving.http.guard import Access
from serving.server import Shortage, listener, serve, temporary_folder
from tasks.core.devices import port_holder
from tests.conftest import ROOT
from tests.support.forked import kill_group, run_xc, start_xc
from tests.support.running_server import NOTICE, Running, ServedModels, ready, running, within

TOKEN = "a-token-of-32-characters-or-more"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def refused(home, *words):
    """Run `xc serve`, which is to fail; -> (exit code, what it said)."""
    code, out, said = run_xc("serve", "--home", str(home), *words, cwd=ROOT, timeout=120)
    assert not out and "Traceback" not in said
    assert len(said.strip().splitlines()) <= 6
    return code, said


@pytest.mark.parametrize(("words", "code", "said"), [
    (("--host", "0.0.0.0"), 2, "0.0.0.0 can be reached from other machines\nhint: add --token-file FILE"),
    (("--host", "0.0.0.0", "--allow-host", "labels.example"), 2, "add --token-file"),
    (("--host", "0.0.0.0", "--token-file", "TOKEN"), 2, "and --allow-host NAME"),
    (("--token-file", "LOOSE"), 2, "can be read by others, its mode is 0644\nhint: chmod 600"),
    (("--token-file", "SHORT"), 2, "is not 16 or more plain characters"),
    (("--token-file", "/nowhere/token"), 2, "/nowhere/token cannot be read: No such file"),
    (("--port", "123456"), 2, "--port must be from 0 to 65535, got 123456"),
    (("--notice", "-1"), 2, "--notice must be from 0 to 600 seconds, got -1"),
    (("--host", "192.0.2.1", "--token-file", "TOKEN", "--allow-host", "x"), 5, "cannot listen on 192.0.2.1:8000"),
    (("--model", "xc@champoin", "--port", "0"), 2, "did you mean 'champion'"),
    (("--model", "xd", "--port", "0"), 2, "no model 'xd'; known: xc"),
    (("--model", "/nowhere", "--port", "0"), 2, "'/nowhere' names no model\nhint: NAME, NAME@alias or NAME/3")])
def test_what_cannot_be_served_is_refused(models, token_file, words, code, said):
    tmp_path = token_file.parent
    for name, text, mode in (("LOOSE", TOKEN, 0o644), ("SHORT", "abc", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    places = {"TOKEN": str(token_file), "LOOSE": str(tmp_path / "LOOSE"), "SHORT": str(tmp_path / "SHORT")}
    ended, told = refused(models.home, *[places.get(word, word) for word in words])
    assert (ended, said in told) == (code, True), told
    assert TOKEN not in told


@pytest.mark.parametrize("name", ["labels.example.org:8000", "http://labels.example", "fd00::1", "bücher.example", ""])
def test_a_name_that_would_never_match_is_refused(name):
    with pytest.raises(UsageError, match=r"^--allow-host takes a name without a port, got ") as refused:
        make_access("127.0.0.1", None, ["labels.example", name])
    assert repr(name) in str(refused.value) and "[fd00::1]" in refused.value.hint
    for right, host in (("Labels.example.org", "labels.example.org:8000"), ("[FD00::1]", "[fd00::1]:8000")):
        make_access("127.0.0.1", None, [right]).admit("GET", "/", {"host": host})


def test_the_remedy_for_a_token_can_be_pasted(tmp_path):
    with pytest.raises(UsageError) as refused:
        read_token(tmp_path / "my token")
    assert shlex.quote(str(tmp_path / "my token")) in refused.value.hint


def test_a_home_without_a_model(tmp_path):
    code, said = refused(tmp_path / "nowhere", "--port", "0")
    assert code == 2 and "xc run --data DIR" in said
    assert not (tmp_path / "nowhere").exists()


def test_a_busy_port_names_who_has_it(models):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        code, said = refused(models.home, "--port", str(port))
        assert code == 5 and f"127.0.0.1:{port} is in use by process {os.getpid()}: " in said and "--port" in said
        assert "python" in port_holder(port)


def test_no_part_of_an_answer_waits_for_an_acknowledgement():
    with listener("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()), sock.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_token_opens_the_door(models, token_file):
    with running(models.home, "--host", "0.0.0.0", "--token-file", str(token_file), "--allow-host",
                 "Labels.example") as server:
        body = {"texts": ["a wolf"]}
        right = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/model", "/metrics", "/predict", "/nothing", "/docs/", "//healthz", "/healthz/../model",
                     "/%68ealthz/x"):
            reply = server.ask(path, body if path == "/predict" else None)
            assert (reply.status, reply.json()["code"]) == (401, "token"), path
            assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/%68ealthz"):
            assert server.ask(path).status == 200, path
        for wrong in ("", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN,
                      f"Bearer {TOKEN}, Bearer {TOKEN}", "Bearer \xe9"):
            assert server.ask("/predict", body, Authorization=wrong).status == 401, wrong
        assert server.ask("/predict", body, **right).status == 200
        assert server.ask("/predict", body, **right, Host="labels.EXAMPLE:80").status == 200
        assert server.ask("/predict", body, **right, Host="evil.example").status == 421
        assert server.ask("/metrics", **right).status == 200
        assert server.stop() == 0
        assert TOKEN not in server.log.read_text()


def test_it_says_one_line_and_nothing_of_what_is_asked(models):
    with running(models.home) as server:
        assert server.fine()
        server.ask("/predict?secret=1", b"not json: secret")
        server.send(b"nonsense\r\n\r\n")
        server.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert server.stop() == 0
        lines = server.log.read_text().splitlines()
        assert len(lines) == 1 and lines[0].endswith(f"serving xc version 1 on http://127.0.0.1:{server.port}"), lines


@pytest.mark.parametrize(("number", "notice"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_what_was_asked_is_answered_before_the_end(models, number, notice):
    with running(models.home, "--notice", str(NOTICE) if notice else "60") as server:
        body = {"texts": ["an oak of the forest"] * 256, "k": 100}
        statuses: list[int] = []
        crowd = [threading.Thread(target=lambda: statuses.append(server.ask("/predict", body).status))
                 for _ in range(3)]
        for thread in crowd:
            thread.start()
        assert within(60, lambda: server.asked() + len(statuses) >= 3)
        server.process.send_signal(number)
        if notice:    # it says so while it still answers
            assert within(NOTICE, lambda: server.ask("/readyz").status == 503)
            reply = server.ask("/readyz")
            assert (reply.status, reply.json()["code"]) == (503, "draining") and reply.headers["retry-after"]
            assert server.ask("/healthz").status == 200 and server.fine()
        for thread in crowd:
            thread.join()
        assert statuses == [200] * 3
        assert server.process.wait(30) == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port), 1)


def test_a_signal_counts_as_soon_as_it_says_that_it_serves(tmp_path, monkeypatch):
    async def lifespan(scope, receive, send):
        while (kind := (await receive())["type"]) and not await send({"type": f"{kind}.complete"}):
            if kind == "lifespan.shutdown":
                return

    service = SimpleNamespace(draining=False, metrics=SimpleNamespace(refused=None))
    monkeypatch.setattr("serving.server.log_to_stderr", lambda: None)
    monkeypatch.setattr("serving.server.open_follower", lambda *_: SimpleNamespace(current=None))
    monkeypatch.setattr("serving.server.create_app", lambda *_: (lifespan, service))
    monkeypatch.setattr("serving.server.limit_connections", lambda _: 0)
    monkeypatch.setattr("serving.server._log", SimpleNamespace(warning=lambda *_: signal.raise_signal(signal.SIGTERM)))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        serve(tmp_path, "", "", host="127.0.0.1", port=0, access=Access(), wait=True, feedback=False, workers=1,
              notice=0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert service.draining    # and it has returned


def test_the_folder_of_a_server_is_locked_and_may_be_gone_at_the_end():
    with temporary_folder() as folder:
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):    # as systemd-tmpfiles asks
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        folder.rmdir()
    with temporary_folder() as folder:
        pass
    assert not folder.exists()


def test_more_connections_than_descriptors(models):
    with running(models.home, descriptors=400) as server:
        idle = []
        for number in range(250):
            connection = socket.create_connection(("127.0.0.1", server.port), 5)
            connection.sendall(b"GET / HTTP/1.1\r\n")
            idle.append(connection)
            # Of those that come in one moment too many are refused, so that there is room again.
            if number >= 150 and (reply := server.ask("/healthz")).status != 200:
                break
        assert (reply.status, reply.json()["code"]) == (503, "connections") and reply.headers["retry-after"]
        for connection in idle:
            connection.close()
        deadline = time.monotonic() + 20
        while server.ask("/healthz").status != 200 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert server.fine()
        assert b'xc_rejected_total{reason="connections"}' in server.ask("/metrics").body


def test_a_flood_beyond_the_descriptors_is_told_in_lines_and_survived(models):
    with running(models.home, descriptors=350) as server:
        waiting = [socket.socket() for _ in range(500)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.port))
        assert within(30, lambda: "connections wait" in server.log.read_text())
        for connection in waiting:
            connection.close()
        assert within(30, lambda: server.ask("/healthz").status == 200) and server.fine()
        lines = server.log.read_text().splitlines()[1:]
        assert len(lines) == len({line[:8] for line in lines}), lines    # a second has one at most
        assert all(line.endswith("connections wait: Too many open files") for line in lines)


def test_a_lack_of_descriptors_is_told_once_a_second(caplog):
    class Loop(asyncio.AbstractEventLoop):
        now, other = 0.0, 0

        def time(self):
            return self.now

        def default_exception_handler(self, context):
            self.other += 1

    loop, tell = Loop(), Shortage()
    for loop.now in (0.0, 0.4, 0.9, 1.0, 1.5, 2.6):
        for number in (errno.EMFILE, errno.ENFILE):
            tell(loop, {"message": "socket.accept() out of system resource", "exception": OSError(number, "too many")})
    assert [record.message for record in caplog.records] == ["connections wait: too many"] * 3
    tell(loop, {"message": "another", "exception": OSError(errno.EIO, "I/O")})
    tell(loop, {"message": "another"})
    assert loop.other == 2 and len(caplog.records) == 3


def test_a_server_may_begin_before_there_is_a_model(tmp_path):
    models = ServedModels(tmp_path / "home")
    log = tmp_path / "log"
    with log.open("wb") as said:
        process = start_xc("serve", "--home", str(models.home), "--port", "0", "--wait", stdout=said, stderr=said,
                           start_new_session=True)
    try:
        server = Running(process, ready(process, log), log)
        for path, body in (("/readyz", None), ("/model", None), ("/predict", {"texts": ["a wolf"]})):
            reply = server.ask(path, body)
            assert (reply.status, reply.json()["code"]) == (503, "no-model") and reply.headers["retry-after"]
        assert server.ask("/healthz").status == 200
        models.add()
        deadline = time.monotonic() + 20
        while server.ask("/readyz").status != 200 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert server.fine()
        assert server.stop() == 0
    finally:
        kill_group(process)
        process.wait(30)


def test_the_process_reads_no_pickle(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path}/owned",))

    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    code = ("import pickle, json, numpy, torch\nfrom serving.server import forbid_pickle\nforbid_pickle()\nsaid = []\n"
            f"path = {str(tmp_path / 'evil.pkl')!r}\n"
            "for load in (lambda: pickle.load(open(path, 'rb')), lambda: numpy.load(path, allow_pickle=True), "
            "lambda: torch.load(path, weights_only=False), lambda: pickle._loads(open(path, 'rb').read())):\n"
            "    try:\n        load()\n    except Exception as error:\n        said.append(str(error))\n"
            "print(json.dumps(said))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    said = json.loads(done.stdout)
    assert len(said) == 4 and "the server reads no pickles" in said[0], done.stderr
    assert not (tmp_path / "owned").exists()
