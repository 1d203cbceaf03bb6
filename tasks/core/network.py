"""The rendezvous of machines that train together; addresses and network interfaces of this machine."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

WAIT = 600.0    # seconds for the others to come, as torchrun's rendezvous waits


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
    """Return a port that is free now; host: an address of this machine, "" for all of them."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


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
