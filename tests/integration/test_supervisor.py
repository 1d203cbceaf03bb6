"""The services of a home when they, or `xc up`, are killed or stand still at any moment; small programs stand in."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from data_contracts.errors import ProjectError, ServerError
from flows.services import definitions, processes, stack
from flows.services.definitions import supervisor_service
from flows.services.environment import bypass_proxies
from flows.services.processes import ENDED, SILENT, STOPPED, Service, check_port, last_line
from flows.services.stack import Stack
from flows.services.supervisor import Supervisor
from tasks.core.devices import port_holder
from tasks.core.store import Store
from tests.support.faults import child, ended
from tests.support.home_services import left_over, until
from tests.support.ports import free_port

# Its worker answers, and outlives it.
PROGRAM = """
import http.server, subprocess, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
if len(sys.argv) == 2:
    sys.exit(subprocess.call([sys.executable, *sys.argv, "worker"]))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def nothing(line: str) -> None:
    """Say nothing."""


@pytest.fixture
def home(tmp_path):
    home = Store(tmp_path / "home").home
    yield home
    Stack(home).down(nothing)
    assert not left_over(home)


@pytest.fixture
def service(home) -> Service:
    (home / "program.py").write_text(PROGRAM)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    return Service("app", "app", [sys.executable, str(home / "program.py"), str(port)], {}, address, port, "--port",
                   address)


def programs(home: Path) -> int:
    """Return how many processes of the service there are."""
    return sum("program.py" in each for each in left_over(home))


@pytest.mark.parametrize("moment", ["noted", "started", "well"])
def test_up_killed_at_any_moment_is_completed_by_the_next(home, service, moment, monkeypatch):
    """What was started is known by its mark, though it holds the port; what is to be done once it is well is done."""
    launch = stack.launch

    def killed(*given):
        if moment == "started":
            launch(*given)
        os._exit(9)

    def action(say):
        if moment == "well":
            Stack(home).up([replace(service, after_start=lambda: os._exit(9))], nothing)
        else:
            monkeypatch.setattr(stack, "launch", killed)
            Stack(home).up([service], nothing)

    with child(action) as (pid, _):
        assert ended(pid) == 9
    prepared = []
    started = Stack(home).up([replace(service, after_start=lambda: prepared.append("pools"))], nothing)
    assert started == ([] if moment == "well" else ["app"]) and prepared == ["pools"]
    record = Stack(home).running("app")
    assert record.well and programs(home) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in (home / "run").glob("*.json"))


def test_a_home_that_is_deleted_while_it_starts_leaves_no_process(home, service):
    """Its records are gone, and no later command could find what runs."""
    def deleted():
        shutil.rmtree(home / "run")
        raise ServerError("Prefect has no database any more")

    with pytest.raises(ServerError, match="no database"):
        Stack(home).up([replace(service, after_start=deleted)], nothing)
    assert not programs(home)


def test_a_part_that_stands_still_or_does_not_answer_is_told_apart(home, service, monkeypatch):
    for name in ("ANSWER_SECONDS", "START_SECONDS"):
        monkeypatch.setattr(processes, name, 20.0 if name == "START_SECONDS" else 0.3)
    Stack(home).up([service], nothing)
    record = Stack(home).running("app")
    leader = psutil.Process(record.pid)
    [worker] = leader.children()
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)    # it is not as young as it is
    for process, state in ((leader, STOPPED), (worker, SILENT)):
        process.send_signal(signal.SIGSTOP)
        until(lambda process=process: process.status() == psutil.STATUS_STOPPED)
        assert record.state == state
        with pytest.raises(ServerError, match=f"app at {record.address} {state}: process {record.pid}") as refused:
            Stack(home).up([service], nothing, "the remedy")
        assert refused.value.hint == "the remedy" and refused.value.exit_code == 5
        process.send_signal(signal.SIGCONT)
    worker.send_signal(signal.SIGSTOP)    # `down` has it end nevertheless


def test_a_port_that_this_user_may_not_have_is_not_called_taken(service, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(processes.socket.socket, "bind", refuse)
    with pytest.raises(ServerError, match=f"port {service.port} of app cannot be used: Permission denied") as refused:
        check_port(service)
    assert refused.value.hint == "choose another port: xc up --port PORT"


def test_another_program_that_takes_the_port_meanwhile_does_not_answer_for_a_part(home, service):
    """As `xc serve` in another terminal, once the port was found free; the part itself comes to it seconds later."""
    others = []

    def take_the_port():
        others.append(subprocess.Popen([*service.command, "worker"]))
        until(lambda: port_holder(service.port).startswith(f"process {others[0].pid}: "))

    part = replace(service, command=[sys.executable, "-c", "import time; time.sleep(1); exit('it is in use')"])
    try:
        with pytest.raises(ServerError, match="app ended with code 1 as it started: it is in use"):
            Stack(home).up([replace(part, before_start=take_the_port)], nothing)
        assert others[0].poll() is None and not Stack(home).records()
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("given", ["", "example.org", "*"])
def test_a_proxy_is_not_asked_for_the_health_of_a_part(home, service, monkeypatch, given):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")    # where nothing answers
    monkeypatch.setenv("no_proxy", given)
    monkeypatch.setattr(urllib.request, "_opener", None)    # made of the variables, once a process
    bypass_proxies()
    bypass_proxies()
    assert os.environ["no_proxy"] == {"": "127.0.0.1,localhost", "*": "*"}.get(given, f"{given},127.0.0.1,localhost")
    Stack(home).up([service], nothing)
    assert Stack(home).running("app").well


@pytest.mark.parametrize("scheme", ["socks5", "socks"])
def test_prefects_client_is_made_where_there_is_a_socks_proxy(monkeypatch, scheme):
    """As of `ssh -D`, or of a desktop. It makes a transport for the proxy although it asks this machine directly."""
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://127.0.0.1:9")
    bypass_proxies()
    httpx.Client().close()


def test_what_ends_is_started_again_without_its_orphans(home, service):
    parts = [service, supervisor_service(home)]
    Stack(home).up(parts, nothing)
    before = Stack(home).running("app")
    psutil.Process(before.pid).kill()
    after = until(lambda: (found := Stack(home).running("app")) and found.restarts == 1 and found.well and found, 60)
    assert after.mark != before.mark and before.state == ENDED and programs(home) == 2
    assert "app has ended" in (home / "logs" / "supervisor.log").read_text()
    psutil.Process(Stack(home).running("supervisor").pid).kill()
    until(lambda: Stack(home).running("supervisor") is None)
    assert Stack(home).up(parts, nothing) == ["supervisor"]
    assert Stack(home).running("app") == after


def test_a_copy_of_a_home_takes_no_part_of_it_for_its_own(home, service, tmp_path):
    Stack(home).up([replace(service, environment={"XC_HOME": str(home)})], nothing)
    shutil.copytree(home, tmp_path / "copy")
    (tmp_path / "link").symlink_to(home)
    assert Stack(tmp_path / "copy").records() == {} and Stack(tmp_path / "copy").down(nothing) == []
    assert Stack(tmp_path / "link").running("app") == Stack(home).running("app") is not None


def test_the_back_off_doubles_to_a_minute_and_begins_anew_after_steady_minutes(tmp_path):
    part, starts = SimpleNamespace(name="app", title="app", alive=True, environment={}, manager=""), []

    def restart(name):
        starts.append(now)
        if len(starts) == 2:
            raise OSError("no room")
        return True

    supervisor = Supervisor(SimpleNamespace(records=lambda: {"app": part}, restart=restart, logs=tmp_path), nothing)
    for now in range(301):
        part.alive = now == 0
        supervisor.step(now)
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    # Its end is seen a second after it was started; a start that fails has ended at once.
    assert starts[0] == 2 and gaps == [3, 4, 9, 17, 33, 61, 61, 61]
    for now in range(301, 1000):
        part.alive = True
        supervisor.step(now)
    part.alive, starts[:] = False, []
    for now in range(1000, 1004):
        supervisor.step(now)
    assert starts[0] == 1001


def test_the_remedy_names_the_home(cli, monkeypatch):
    record = SimpleNamespace(name="app", state=ENDED, address="", pid=1, create_time=0.0, restarts=0, manager="")
    monkeypatch.setattr(Stack, "records", lambda _: {"app": record})
    code, _, err = cli("status", "--home", "h")
    assert code == 5 and "of 1 part: app has ended" in err
    assert "xc up --home h starts what has ended; where that does not help, xc down --home h first" in err


def test_a_part_that_ends_on_a_full_disk_is_told_by_that(home, service, monkeypatch):
    """Its log may have had no room for a word of it."""
    ends = replace(service, command=[sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(ServerError, match="app ended with code 1 as it started: it said nothing"):
        Stack(home).up([ends], nothing)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000))
    with pytest.raises(ProjectError, match=f"the disk of {home}/logs is full") as error:
        Stack(home).up([ends], nothing)
    assert error.value.hint.startswith("free space on that disk")


def test_a_password_that_cannot_be_written_is_told_with_its_remedy(cli, home, monkeypatch):
    def read_only(folder, *_, **__):
        if folder.name == "prefect":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.delenv("PREFECT_API_URL", raising=False)    # else it has no password of its own to keep
    monkeypatch.setattr(Path, "mkdir", read_only)
    code, _, said = cli("up", "--home", str(home))
    assert code == 1 and f"error: cannot keep a password: {home}/prefect: Read-only file system" in said
    assert "hint: choose a HOME on a disk that is not read-only" in said


def test_why_a_part_has_ended_is_its_error_and_not_the_hint(tmp_path):
    (tmp_path / "app.log").write_text("started\nerror: port 5000 is taken\nhint: choose another: --port\n")
    assert last_line(tmp_path / "app.log") == "port 5000 is taken"


@pytest.mark.parametrize("words", [("--port", "5000"), ("--prefect-port", "8000"), ("--mlflow-port", "4200")])
def test_no_two_parts_have_one_port(cli, monkeypatch, tmp_path, words):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    code, _, said = cli("up", *words)
    assert code == 2 and f"are both {words[1]}\nhint: choose another: --" in said and not list(tmp_path.iterdir())


def test_a_port_that_a_running_part_does_not_have_is_said_not_to_be_it(cli, home, service, monkeypatch):
    def parts(home, ports, **_):
        return [replace(service, address=f"http://127.0.0.1:{ports.app}")]

    Stack(home).up([service], nothing)
    monkeypatch.setattr(definitions, "services", parts)
    note = ", not at the port that was asked for: first xc down"
    for words, told in ((("--port", str(service.port)), False), (("--port", "1"), True), ((), False)):
        code, _, said = cli("up", "--home", str(home), *words)
        assert code == 0 and f"already up: {service.address}" in said and (note in said) == told, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interruption_does_not_keep_the_server_of_a_run_from_its_end(monkeypatch, number):
    ended = []

    def end(record):
        signal.raise_signal(number)
        ended.append(record)

    monkeypatch.setattr(definitions, "end_service", end)
    before = {kind: signal.signal(kind, signal.default_int_handler) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        definitions._end_undisturbed("server")
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    assert ended == ["server"]
