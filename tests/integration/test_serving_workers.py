"""`xc serve --workers N` as processes: one port, one page of metrics, one readiness, and workers that are killed."""

import http.client
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest

from serving.workers.shared_status import HEARTBEAT_TIMEOUT, Board, BoardPeers, WorkerLoad, WorkerStatus
from tests.conftest import ROOT
from tests.support.forked import run_xc
from tests.support.long_tests import at_length
from tests.support.running_server import NOTICE, ServedModels, running, within

TWO = ("--workers", "2")


@pytest.fixture
def models(tmp_path):
    models = ServedModels(tmp_path / "home")
    models.add()
    return models


def workers(server):
    """Return the processes of the workers, the first one started first."""
    return sorted(psutil.Process(server.process.pid).children(), key=lambda process: process.create_time())


def connections(server):
    """Return how many connections of the server's port each worker has, the fewest first."""
    return sorted(sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == server.port
                      for each in process.net_connections("tcp")) for process in workers(server))


def whole(server):
    """Return whether both workers answer."""
    return b"\nxc_workers 2.0" in server.ask("/metrics").body


def kept(server):
    """Return a connection that is kept alive."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.connect()
    return connection


def tag(connection):
    """Ask on a connection that is kept alive; return the status."""
    connection.request("POST", "/predict", b'{"texts": ["a wolf"]}', {"Content-Type": "application/json"})
    with connection.getresponse() as reply:
        reply.read()
        return reply.status


def count(page, name):
    """Return the sum of a metric's values on a page."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page.decode(), re.MULTILINE))


def test_connections_are_spread_evenly_and_one_page_counts_what_each_worker_answers(models):
    with running(models.home, *TWO) as server, running(models.home) as one:
        assert within(120, lambda: whole(server))
        assert server.labels("an oak of the forest", k=2) == one.labels("an oak of the forest", k=2)
        clients = [kept(server) for _ in range(8)]
        rounds = 0
        while rounds == 0 or (connections(server) != [4, 4] and rounds < 9):    # a short one may count for a moment
            assert [tag(client) for client in clients] == [200] * 8
            rounds += 1
        assert connections(server) == [4, 4]
        pages = [server.ask("/metrics").body for _ in range(4)]
        route = r'xc_requests_total{method="POST",route="/predict",status="2xx"}'
        assert {re.search(re.escape(route) + r" (\S+)", page.decode())[1] for page in pages} == {f"{8.0 * rounds + 1}"}
        assert {count(page, "xc_batch_size_sum") for page in pages} == {8.0 * rounds + 1}
        assert count(pages[0], "xc_labels") == len(one.labels("a wolf", k=100))
        assert b'xc_model_info{name="xc",version="1"} 1.0' in pages[0]
        assert sum(b"# HELP xc_requests_total" in page for page in pages) == 4
        assert [each.ask("/nothing").status for each in (server, one)] == [404, 404]
        pages.append(server.ask("/metrics").body)
        names = [set(re.findall(r"^# TYPE (\S+)", page.decode(), re.MULTILINE)) for page in (
            pages[-1], one.ask("/metrics").body)]
        assert names[0] == names[1] | {"xc_workers"}
        memory = sum(process.memory_full_info().pss for process in (
            psutil.Process(server.process.pid), *workers(server)))
        assert count(server.ask("/metrics").body, "process_resident_memory_bytes") == pytest.approx(memory, rel=.2)
        for client in clients:
            client.close()


def test_a_worker_that_is_killed_is_started_again_and_no_other_connection_is_lost(models):
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        clients = [kept(server) for _ in range(6)]
        assert [tag(client) for client in clients] == [200] * 6
        before = count(server.ask("/metrics").body, "xc_requests_total")
        victim, other = workers(server)
        lost = {each.raddr.port for each in victim.net_connections("tcp") if each.raddr}
        victim.send_signal(signal.SIGKILL)
        statuses = []
        for _ in range(20):
            statuses.append(server.ask("/healthz").status)
            time.sleep(.02)
        assert statuses == [200] * 20
        left = [client for client in clients if client.sock and client.sock.getsockname()[1] not in lost]
        assert len(left) >= 2 and {tag(client) for client in left} == {200}
        assert within(30, lambda: whole(server)) and other in workers(server)
        assert server.ask("/readyz").body == b"ok"
        assert count(server.ask("/metrics").body, "xc_requests_total") > before + 22
        assert f"worker 0, process {victim.pid}, ended by SIGKILL; it is started again in 0.1 s" in (
            server.log.read_text())
        assert server.stop() == 0


def test_clients_that_keep_their_connections_come_to_a_worker_that_is_started_again(models):
    """Their connections are closed after an answer, which says so, until the workers have as many."""
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        workers(server)[1].kill()
        assert within(10, lambda: len(workers(server)) == 1 or not whole(server))
        clients = [kept(server) for _ in range(6)]
        assert within(30, lambda: whole(server))
        rounds = 0
        while connections(server) != [3, 3] and rounds < 9:    # http.client connects anew where an answer closes
            assert [tag(client) for client in clients] == [200] * 6
            rounds += 1
        assert connections(server) == [3, 3]


def test_a_worker_that_keeps_ending_is_started_ever_later_and_shows(models):
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        for times in range(1, 5):
            assert within(30, lambda: len(workers(server)) == 2)
            workers(server)[1].kill()
            assert within(20, lambda: server.log.read_text().count("it is started again in") == times)    # noqa: B023
            if times == 4:    # while it is away, which is .8 s
                shown = server.ask("/readyz").body, server.ask("/model").json()["fault"]
        pauses = re.findall(r"started again in (\S+) s", server.log.read_text())
        assert pauses == ["0.1", "0.2", "0.4", "0.8"]
        assert shown == (b"degraded", "1 of 2 workers run")
        assert server.fine()


def test_a_worker_that_stands_still_gets_no_connections(models):
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        workers(server)[0].suspend()
        time.sleep(HEARTBEAT_TIMEOUT + .5)    # one that asks sooner may be given to it
        assert within(30, lambda: server.ask("/model").json()["fault"] == "1 of 2 workers run")
        assert [server.ask("/healthz").status for _ in range(6)] == [200] * 6
        workers(server)[0].resume()
        assert within(20, lambda: whole(server))


def test_a_new_version_reaches_every_worker_without_a_failed_request(models):
    second = models.add(seed=1, p1=50.0)
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        seen, failed, stop = Counter(), [], threading.Event()

        def ask():
            while not stop.is_set():
                reply = server.ask("/predict", {"texts": ["a wolf"]})
                if reply.status == 200:
                    seen[reply.json()["model"]["version"]] += 1
                else:
                    failed.append(reply)

        crowd = [threading.Thread(target=ask) for _ in range(4)]
        for thread in crowd:
            thread.start()
        time.sleep(.5)
        models.point(second)
        assert within(20, lambda: server.log.read_text().count(f"xc version {second} answers") == 2)
        stop.set()
        for thread in crowd:
            thread.join()
        assert not failed and seen["1"] and seen[second]
        assert {server.ask("/model").json()["version"] for _ in range(6)} == {second}
        assert within(20, lambda: re.findall(    # a worker says so a moment after it answers
            r'^xc_model_info{.*version="(.*)"}', server.ask("/metrics").body.decode(), re.MULTILINE) == [second])


def test_damage_shows_whichever_worker_is_asked(models):
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        models.damage(0)
        assert within(20, lambda: {server.ask("/readyz").status for _ in range(4)} == {503})
        assert {server.ask("/predict", {"texts": ["a wolf"]}).status for _ in range(4)} == {500}
        assert "was changed since it was published" in server.ask("/model").json()["fault"]
        assert b"\nxc_degraded 1.0" in server.ask("/metrics").body


@pytest.mark.parametrize(("number", "all_of_them"), [(signal.SIGTERM, False), (signal.SIGINT, True), pytest.param(
    signal.SIGTERM, True, marks=at_length("one gets it, and all get another, here"))])
def test_what_was_asked_is_answered_before_the_end(models, number, all_of_them):
    """A service manager signals every process of a service, a terminal every one of its foreground."""
    with running(models.home, *TWO, "--notice", str(NOTICE)) as server:
        assert within(120, lambda: whole(server))
        body = {"texts": ["an oak of the forest"] * 256, "k": 100}
        statuses: list[int] = []
        crowd = [threading.Thread(target=lambda: statuses.append(server.ask("/predict", body).status))
                 for _ in range(6)]
        for thread in crowd:
            thread.start()
        assert within(60, lambda: server.asked() + len(statuses) >= 6)
        targets = [*workers(server), server.process] if all_of_them else [server.process]
        processes = workers(server)
        for process in targets:
            process.send_signal(number)
        if number == signal.SIGTERM:
            assert within(NOTICE, lambda: all(b'"draining"' in server.ask("/readyz").body for _ in range(4)))    # both
            assert server.fine()
        for thread in crowd:
            thread.join()
        assert statuses == [200] * 6
        assert server.process.wait(30) == 0
        assert not any(process.is_running() for process in processes)
        assert len(server.log.read_text().splitlines()) == 1
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port), 1)


def test_no_worker_outlives_a_dispatcher_that_is_killed(models):
    with running(models.home, *TWO) as server:
        assert within(120, lambda: whole(server))
        processes = workers(server)
        server.process.kill()
        assert within(20, lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE
                                          for process in processes))


def test_connections_beyond_what_the_workers_take_wait(models):
    with running(models.home, *TWO, descriptors=350) as server:
        assert within(120, lambda: whole(server))
        with ExitStack() as waiting:
            for _ in range(800):    # the kernel's queue has room for some 250
                connection = waiting.enter_context(socket.socket())
                connection.settimeout(5)
                connection.connect_ex(("127.0.0.1", server.port))
            assert within(30, lambda: "connections wait: no worker can take one" in server.log.read_text())
        assert within(30, lambda: server.ask("/healthz").status == 200) and server.fine()
        lines = server.log.read_text().splitlines()[1:]
        assert len(lines) == len({line[:8] for line in lines}), lines    # a second has one at most


@pytest.mark.parametrize(("words", "code", "told"), [
    (("--model", "xd", *TWO), 2, "no model 'xd'; known: xc"), (("--workers", "0"), 2, "--workers must be from 1 to 64"),
    (("--workers", "65"), 2, "got 65")])
def test_what_cannot_be_served_is_refused_once(models, words, code, told):
    ended, out, said = run_xc("serve", "--home", str(models.home), "--port", "0", *words, cwd=ROOT, timeout=120)
    assert (ended, out) == (code, "") and said.count(told) == 1 and "Traceback" not in said


def test_a_server_may_begin_before_there_is_a_model(tmp_path):
    models = ServedModels(tmp_path / "home")
    with running(models.home, *TWO, "--wait") as server:
        assert server.ask("/readyz").status == 503
        models.add()
        assert within(20, lambda: [server.ask("/readyz").status for _ in range(4)] == [200] * 4)


def test_a_status_that_was_cut_off_as_it_was_written_is_not_read():
    board = Board(2)
    status = WorkerStatus("xc", "3", "a fault", True, 7)
    board.post_status(1, status)
    assert (board.status(0), board.status(1)) == (None, status)
    board.post_status(1, WorkerStatus(fault="x" * 10_000, name="ü" * 50))
    assert board.status(1).fault == "x" * 1000
    board.post_status(1, WorkerStatus(fault="я" * 1000))
    assert "я" * 400 < board.status(1).fault < "я" * 1000
    start = board._memory.find(b'{"name"', 4096)
    board._memory[start + 2] ^= 1
    assert board.status(1) is None
    board.clear(1)
    assert board.status(1) is None and board.load(1) == WorkerLoad()


def test_a_worker_with_more_connections_than_another_sends_some_away():
    board = Board(3)
    peers, now = BoardPeers(board, 0), time.monotonic()
    for mine, others, crowded in ((4, (3, 4), False), (5, (3, 9), True), (2, (0, 0), True), (1, (0, 0), False)):
        for number, opened in enumerate((mine, *others)):
            board.post_load(number, WorkerLoad(opened, 100, now, os.getpid()))
        assert peers.should_give_up_connection() == crowded
    board.post_load(1, WorkerLoad(0, 100, now - HEARTBEAT_TIMEOUT - 1, 1))    # one that stands still
    board.post_load(2, WorkerLoad(2, 100, now, 1))
    board.post_load(0, WorkerLoad(3, 100, now, 1))
    assert not peers.should_give_up_connection() and peers.fault == "2 of 3 workers run"
