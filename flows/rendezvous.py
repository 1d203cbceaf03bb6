"""Where the machines of a run meet: by its options, or by what torchrun's users, Slurm and Kubernetes set."""

import os
import re
from collections.abc import Mapping

from data_contracts.errors import UsageError
from flows.config import TrainingOptions
from tasks.core.devices import gpus
from tasks.core.network import Rendezvous, is_here, names_loopback

# Of each convention: its number of machines, the address (or host and port) of the leader, a machine's own number.
CONVENTIONS = (
    ("PET_NNODES", ("PET_RDZV_ENDPOINT",), "PET_NODE_RANK"),    # torchrun's own, which Kubernetes' trainer sets
    ("PET_NNODES", ("PET_MASTER_ADDR", "PET_MASTER_PORT"), "PET_NODE_RANK"),
    ("NNODES", ("MASTER_ADDR", "MASTER_PORT"), "NODE_RANK"),
    ("SLURM_STEP_NUM_NODES", ("SLURM_STEP_NODELIST",), "SLURM_NODEID"),    # of srun's tasks: one a machine
)
PORT = 29400    # torchrun's
EXAMPLE = "--nodes 2 --rendezvous 10.0.0.1:29400"


def rendezvous_of(options: TrainingOptions, environ: Mapping[str, str] = os.environ) -> Rendezvous | None:
    """Return where the machines of a run meet; None where it has one machine.

    Raises UsageError where the options, with the environment, leave open how many machines there are, or where.
    """
    if options.nodes == 1:
        return None
    if not options.nodes and not options.rendezvous and options.node is None:
        found = _found(environ)
    else:
        found = str(options.nodes or ""), options.rendezvous, options.node
    if found is None:
        return None
    count, address, number = found
    if not count:
        raise UsageError("the number of machines is not given", hint=f"--nodes N: xc run {EXAMPLE}")
    if not address:
        raise UsageError(f"--nodes is {count}, and the leader's address is not given",
                         hint=f"--rendezvous HOST:PORT: xc run {EXAMPLE}")
    match = re.fullmatch(r"\[?(?P<host>[^\s/@\]]+?)\]?:(?P<port>\d{1,5})", address)
    if not match or not 0 < int(match["port"]) < 1 << 16:
        raise UsageError(f"{address!r} is not HOST:PORT", hint=f"xc run {EXAMPLE}")
    if number is not None and not 0 <= number < int(count):
        raise UsageError(f"--node {number}: {count} machines are numbered 0 to {int(count) - 1}", hint="--node 0 leads")
    if not options.store:
        raise UsageError(f"{count} machines need --store, the address where they share results",
                         hint="--store s3://BUCKET/FOLDER, or file:///FOLDER that all machines mount")
    host = match["host"]
    leads = is_here(host) if number is None else number == 0
    return Rendezvous(int(count), host, int(match["port"]), leads,
                 is_public=not (options.rendezvous and names_loopback(host)), seconds=options.rendezvous_seconds)


def processes_of(options: TrainingOptions) -> int:
    """Return how many processes of this machine train together."""
    return options.processes or max(1, gpus())


def _found(environ: Mapping[str, str]) -> tuple[str, str, int | None] | None:
    """Return how many machines the environment names, where they meet, and this one's number; None for one machine."""
    missing = ""
    for count, address, number in CONVENTIONS:
        if (environ.get(count) or "1") == "1":    # an empty variable is as one that is not set
            continue
        if not environ[count].isdigit():
            raise UsageError(f"{count} is {environ[count]!r}, not a number: a run has a fixed number of machines",
                             hint="set a number, or --nodes 1")
        if lacking := [name for name in (*address, number) if not environ.get(name)]:
            missing = missing or f"{count} is {environ[count]}, and {lacking[0]} is not set"
            continue
        if not environ[number].isdigit():
            raise UsageError(f"{number} is {environ[number]!r}, not a number", hint="set it, or give --node")
        where = ":".join(environ[name] for name in address)
        if address == ("SLURM_STEP_NODELIST",):
            where = f"{first_host(where)}:{environ.get('MASTER_PORT') or PORT}"
        elif len(address) == 1 and not where.rpartition(":")[0]:
            where = f"{where}:{PORT}"
        return environ[count], where, int(environ[number])
    if missing:
        raise UsageError(missing, hint=f"set it, or xc run {EXAMPLE}, or --nodes 1 for this machine alone")
    return None


def first_host(names: str) -> str:
    """Return the first host of a list as Slurm writes it: "gpu[03-05,09],login" -> "gpu03"."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.match(r"(?:[^,\[]|\[[^\]]*\])*", names)[0])    # type: ignore[index]
