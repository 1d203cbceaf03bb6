"""Where the machines of a run meet: options, and the environments of torchrun, Slurm and Kubernetes."""

import socket
from contextlib import ExitStack

import pytest
from torch.distributed.run import config_from_args, get_args_parser

from data_contracts.errors import UsageError
from flows.config import TrainingOptions
from flows.rendezvous import first_host, rendezvous_of
from tasks.core import network
from tasks.core.network import Rendezvous, interface_of, is_here
from tasks.training.launcher import _environment

TORCHRUN = {"NNODES": "2", "MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "29511", "NODE_RANK": "1"}
SLURM = {"SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "gpu[03-05,09]", "SLURM_NODEID": "0"}
KUBERNETES = {"PET_NNODES": "3", "PET_RDZV_ENDPOINT": "tickets-master-0:23456", "PET_NODE_RANK": "2",
              "WORLD_SIZE": "24", "RANK": "17"}


def options(**more) -> TrainingOptions:
    return TrainingOptions(data="data", **{"store": "file:///shared", **more})


def test_the_place_that_options_name():
    given = {"nodes": 2, "rendezvous": "10.9.8.7:29400"}
    assert rendezvous_of(options(**given), TORCHRUN) == Rendezvous(2, "10.9.8.7", 29400, False)    # options come first
    assert rendezvous_of(options(**given, node=0), {}) == Rendezvous(2, "10.9.8.7", 29400, True)
    assert rendezvous_of(options(**given, rendezvous_seconds=5.0), {}).seconds == 5
    last = rendezvous_of(options(nodes=3, rendezvous="127.0.0.1:1", node=2), {})
    assert last == Rendezvous(3, "127.0.0.1", 1, False, False)
    assert rendezvous_of(options(nodes=2, rendezvous="[::1]:29400"), {}).host == "::1"
    assert rendezvous_of(options(nodes=2, rendezvous="localhost:29400"), {}).leads    # HOST is this machine
    assert rendezvous_of(options(), {}) is None


def test_a_leader_whose_own_name_is_loopback_listens_for_others(monkeypatch):
    """As on Debian, where /etc/hosts has 127.0.1.1 for it."""
    own = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: own)
    leader = rendezvous_of(options(nodes=2, rendezvous="node1:29400"), {})
    assert leader.leads and leader.is_public
    assert not rendezvous_of(options(nodes=2, rendezvous="localhost:29400"), {}).is_public
    assert not rendezvous_of(options(nodes=2, rendezvous="127.0.0.1:29400"), {}).is_public


@pytest.mark.parametrize(("environment", "rendezvous"), [
    (TORCHRUN, Rendezvous(2, "10.9.8.7", 29511, False)),
    (TORCHRUN | {"NODE_RANK": "0", "MASTER_ADDR": "localhost"}, Rendezvous(2, "localhost", 29511, True)),    # of a pod
    (SLURM, Rendezvous(4, "gpu03", 29400, True)),
    (SLURM | {"MASTER_PORT": "7000", "SLURM_NODEID": "3"}, Rendezvous(4, "gpu03", 7000, False)),
    (KUBERNETES, Rendezvous(3, "tickets-master-0", 23456, False)),
    ({"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "5", "PET_NODE_RANK": "0"},
     Rendezvous(2, "a", 5, True)),
    ({"NNODES": "1", "MASTER_ADDR": "a"}, None),
    ({"PET_NNODES": "", "NNODES": "", "SLURM_STEP_NUM_NODES": ""}, None),    # as a job's template leaves them
    (TORCHRUN | {"PET_NNODES": "", "PET_RDZV_ENDPOINT": ""}, Rendezvous(2, "10.9.8.7", 29511, False)),
    ({"SLURM_NNODES": "4", "SLURM_NODEID": "0"}, None),    # of a batch script, which runs on one machine alone
    ({"WORLD_SIZE": "8", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, None),    # processes, not machines
])
def test_the_rendezvous_that_an_environment_names(environment, rendezvous):
    assert rendezvous_of(options(), environment) == rendezvous
    assert rendezvous_of(options(nodes=1), environment) is None


@pytest.mark.parametrize(("options", "nodes", "endpoint"), [
    (["--standalone"], 1, "127.0.0.1"), (["--nnodes", "3", "--master-addr", "a", "--master-port", "7"], 3, "a:7")])
def test_a_round_does_not_meet_where_the_environment_has_the_run_meet(monkeypatch, options, nodes, endpoint):
    for name, value in KUBERNETES.items():
        monkeypatch.setenv(name, value)
    for name in KUBERNETES.keys() - _environment(2, "lo").keys():
        monkeypatch.delenv(name)
    config, _, _ = config_from_args(get_args_parser().parse_args([*options, "script.py"]))
    assert config.max_nodes == nodes and config.rdzv_endpoint.startswith(endpoint)


@pytest.mark.parametrize(("given", "environment", "said"), [
    ({"nodes": 2}, {}, "--nodes is 2, and the leader's address is not given"),
    ({"rendezvous": "a:1"}, {}, "the number of machines is not given"),
    ({"nodes": 2, "rendezvous": "a"}, {}, "'a' is not HOST:PORT"),
    ({"nodes": 2, "rendezvous": "a:70000"}, {}, "'a:70000' is not HOST:PORT"),
    ({"nodes": 2, "rendezvous": "a:1", "node": 2}, {}, "--node 2: 2 machines are numbered 0 to 1"),
    ({"nodes": 2, "rendezvous": "a:1", "store": ""}, {}, "2 machines need --store"),
    ({}, TORCHRUN | {"MASTER_PORT": ""}, "NNODES is 2, and MASTER_PORT is not set"),
    ({}, TORCHRUN | {"NNODES": "1:4"}, "NNODES is '1:4', not a number"),
    ({}, TORCHRUN | {"NODE_RANK": "first"}, "NODE_RANK is 'first'"),
    ({}, SLURM | {"SLURM_NODEID": ""}, "SLURM_STEP_NUM_NODES is 4, and SLURM_NODEID is not set"),
])
def test_what_is_left_open_is_named(given, environment, said):
    with pytest.raises(UsageError, match=said) as refused:
        rendezvous_of(options(**given), environment)
    assert refused.value.hint


@pytest.mark.parametrize(("names", "host"), [
    ("gpu03", "gpu03"), ("gpu03,gpu04", "gpu03"), ("gpu[03-05,09],login", "gpu03"), ("r[1,3]n[07-08]", "r1n07")])
def test_the_first_host_of_a_list(names, host):
    assert first_host(names) == host


def test_this_machine_knows_itself():
    assert is_here("127.0.0.1") and is_here("localhost") and not is_here("192.0.2.1") and not is_here("no-such.invalid")
    assert interface_of("127.0.0.1").startswith("lo") and interface_of("192.0.2.1") == ""


def test_a_free_port_is_below_those_that_the_system_gives_away_where_there_are_such(monkeypatch):
    monkeypatch.setattr(network, "_own_ports", lambda: range(20_000, 20_003))
    with ExitStack() as taken:
        for _ in range(3):
            port = network.free_port()
            assert port in range(20_000, 20_003)
            taken.enter_context(socket.create_server(("127.0.0.1", port)))
        assert network.free_port() not in range(20_000, 20_003)
    monkeypatch.setattr(network, "_own_ports", lambda: range(0))
    assert network.free_port()
