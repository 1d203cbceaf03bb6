"""How machines that train together meet, hear of each other, and part: two in one process."""

import socket
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from data_contracts.errors import ProjectError, ServerError, Stopped, UsageError, from_json
from tasks.core import machines
from tasks.core.machines import join, lead
from tasks.core.network import Rendezvous
from tasks.core.shared_store import SharedStore
from tasks.training.follower import _check_code, _fetched
from tasks.training.launcher import LostProcess
from tasks.training.recipe import Recipe
from tests.support.ports import free_port


def two_machines(count: int = 2, seconds: float = 60.0) -> tuple[Rendezvous, Rendezvous]:
    """Return the rendezvous as the leader sees it, and as followers do."""
    port = free_port()
    return tuple(Rendezvous(count, "127.0.0.1", port, leads, False, seconds) for leads in (True, False))


@pytest.fixture
def two():
    """Return two machines that have met."""
    first, other = two_machines()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead, first, lambda line: None)
        follower = join(other)
        leader = leading.result()
    yield leader, follower
    for each in (follower, leader):
        each.close()


def test_a_round_is_given_and_the_end_told(two):
    leader, follower = two
    with ThreadPoolExecutor(1) as pool:
        port = pool.submit(leader.begin, {"round": "joint round 0"})
        task = follower.next_task()
        assert not port.done()    # it waits until the other is ready
        follower.ready()
        assert task == {"round": "joint round 0", "port": port.result()}
        assert leader.torchrun_options(5) != follower.torchrun_options(5)
        ended = pool.submit(leader.__exit__, None, None, None)
        assert follower.next_task() == {}
        ended.result()
    assert leader.interface == follower.interface == machines.interface_of("127.0.0.1")


@pytest.mark.parametrize(("error", "kind", "said"), [
    (ServerError("no answer", hint="try again"), ServerError, "no answer"),
    (KeyboardInterrupt(), Stopped, "interrupted"),
    (ZeroDivisionError("by zero"), ProjectError, "ZeroDivisionError: by zero")])
def test_what_ends_a_run_ends_it_everywhere(two, error, kind, said):
    leader, follower = two
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(leader.__exit__, type(error), error, None)
        with pytest.raises(kind, match=f"machine 0, at 127.0.0.1:.*{said}"):
            follower.next_task()
        ended.result()


def test_an_error_is_read_as_it_was_written():
    error = from_json(UsageError("no such folder", where="a.csv:3", hint="make it").to_json(), "machine 1")
    assert (type(error), str(error)) == (UsageError, "a.csv:3: machine 1: no such folder\nhint: make it")
    assert type(from_json(LostProcess("killed").to_json())) is ProjectError


def test_a_machine_that_gives_up_is_named(two):
    leader, follower = two
    follower.fail(UsageError("no such folder", hint="make it"))
    with pytest.raises(UsageError, match=f"machine 1, {socket.gethostname()}: no such folder") as error:
        leader.begin({"round": "joint round 0"})
    assert error.value.hint == "make it" and leader.is_in_trouble()
    assert "no such folder" in str(leader.why_lost())


def test_one_that_was_stopped_lets_training_save_its_state(two):
    leader, follower = two
    follower.fail(KeyboardInterrupt())
    with pytest.raises(Stopped):
        leader.begin({"round": "joint round 0"})
    assert not leader.is_in_trouble()


def test_a_machine_that_falls_silent_is_lost(two, monkeypatch):
    monkeypatch.setattr(machines, "FOLLOWER_TIMEOUT", 1.0)
    leader, follower = two
    follower.close()
    with pytest.raises(ServerError, match=f"machine 1, {socket.gethostname()}, has not been heard of"):
        leader.begin({"round": "joint round 0"})


def test_a_leader_that_is_gone_before_a_round_begins_is_named(two):
    leader, follower = two
    leader.close()
    follower.close()    # its thread would see it first
    leader.store = None
    with pytest.raises(ServerError, match=f"machine 0 at {follower.rendezvous} has gone") as error:
        follower.ready()
    assert error.value.exit_code == 5 and "resume" in error.value.hint


def test_a_machine_that_never_comes_is_named_after_a_time():
    first, _ = two_machines(count=3, seconds=0.5)
    with pytest.raises(ServerError, match=f"1 of 3 machines came to {first} within 0.5 s") as error:
        lead(first, lambda line: None)
    assert error.value.exit_code == 5 and str(first) in error.value.hint


@pytest.mark.parametrize("silence", [machines.LEADER_TIMEOUT, 3.0])
def test_those_who_came_hear_that_one_did_not(monkeypatch, silence):
    """Also where the leader waits for the last one longer than it may be silent in a run."""
    monkeypatch.setattr(machines, "LEADER_TIMEOUT", silence)
    first, other = two_machines(count=3, seconds=6.0)
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead, first, lambda line: None)
        with join(other) as follower, pytest.raises(ServerError, match="2 of 3 machines came"):
            follower.next_task()
        with pytest.raises(ServerError, match="2 of 3 machines came"):
            leading.result()


def test_a_place_where_nobody_leads_is_named_after_a_time():
    _, other = two_machines(seconds=0.2)
    with pytest.raises(ServerError, match=f"no machine leads at {other}, within 0.2 s") as error:
        join(other)
    assert error.value.exit_code == 5


def test_a_second_machine_that_would_lead_is_refused():
    first, _ = two_machines()
    with socket.socket() as taken:
        taken.bind((first.host, first.port))
        taken.listen()
        with pytest.raises(UsageError, match=f"cannot lead at {first}: Address already in use"):
            lead(first, lambda line: None)


def test_machines_that_count_differently_do_not_train():
    first, other = two_machines()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead, first, lambda line: None)
        with pytest.raises(UsageError, match="--nodes 2, this one 4"):
            join(Rendezvous(4, other.host, other.port, False, False))
        leader = leading.result()
    with pytest.raises(UsageError, match=r"machine 1.* --nodes 2, this one 4"):
        leader.begin({"round": "joint round 0"})
    leader.close()


def test_only_loopback_listens_where_only_loopback_meets(two):
    listening = {each.laddr.ip for each in psutil.Process().net_connections("tcp")
                 if each.status == psutil.CONN_LISTEN and each.laddr.port == two[0].rendezvous.port}
    assert listening == {"127.0.0.1"}


def test_a_result_that_is_not_at_the_address_is_named(tmp_path):
    store = SharedStore(tmp_path / "home", f"file://{tmp_path}/address")
    made = store.publish("a" * 64, "corpus", {}, lambda folder: (folder / "x").write_text("1"))
    assert _fetched(store, {"key": "a" * 64, "digest": made.digest}, "corpus", "joint round 0").name == made.digest
    for key, digest, said in (("b" * 64, made.digest, "no"), ("a" * 64, "c" * 64, "another")):
        with pytest.raises(ProjectError, match=f"address has {said} corpus for joint round 0"):
            _fetched(store, {"key": key, "digest": digest}, "corpus", "joint round 0")


def test_other_code_than_the_leaders_is_refused():
    ours = Recipe("astra", "cpu", {"start": "label"}).code("joint round 0")
    assert "xcmodels.methods.astra.stages" in ours and "xcmodels.training.loop" in ours
    _check_code(ours, dict(ours))
    with pytest.raises(UsageError, match=r"the code of xcmodels\.training\.loop is not that of machine 0"):
        _check_code(ours, ours | {"xcmodels.training.loop": "other"})
