"""The rendezvous of machines that train together; addresses and network interfaces of this machine."""

import random
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil

WAIT = 600.0    # seconds for the others to come, as torchrun's rendezvous waits
LOWEST = 20_000    # of the ports that services get
TRIES = 20


@dataclass(frozen=True)
class Rendezvous:
    """Where machines meet, and this machine's part: it leads, or follows.

    is_public: others than this machine may reach it. seconds: how long to wait for the others.
    """

    count: int
    host: str
    port: int
    leads: bool
    is_public: bool = True
    seconds: float = WAIT

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now; host: an address of this machine, "" for all of them.

    Where it can, one that the system gives to no program which asks for any, or which connects to another: a service
    may begin to listen on it seconds later.
    """
    own = _own_ports()
    for port in random.SystemRandom().sample(own, min(TRIES, len(own))):
        if is_free(port, host):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a program could listen on a port now."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False


def lowest_of_system() -> int:
    """Return the lowest port that the system gives away by itself; 0 where it does not say."""
    with suppress(OSError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 0


def _own_ports() -> range:
    """Return the ports from LOWEST on that are below those which the system gives away."""
    return range(LOWEST, lowest_of_system())


def is_here(host: str) -> bool:
    """Return whether a host's name or address is one of this machine."""
    own = {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    return any(address in own or ip_address(address).is_loopback for address in addresses(host))


def names_loopback(host: str) -> bool:
    """Return whether a host is written as loopback; a machine's own name may only be resolved to it, as on Debian."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def is_loopback(host: str) -> bool:
    """Return whether this machine resolves a host to loopback."""
    return any(ip_address(address).is_loopback for address in addresses(host))


def interface_of(host: str) -> str:
    """Return the network interface that has an address of `host`; "" where this machine has none."""
    found = addresses(host)
    return next((name for name, each in psutil.net_if_addrs().items()
                 if any(address.address.partition("%")[0] in found for address in each)), "")


def addresses(host: str) -> set[str]:
    """Return the addresses of a host; none where its name cannot be resolved."""
    with suppress(OSError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    return set()
