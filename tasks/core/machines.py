"""Machines that train together: they meet at one address, where the leader (machine 0) gives out rounds to train.

The others are the followers. While its run lasts, the leader serves a store of torch.distributed (a TCPStore, as
torchrun's rendezvous):

    about, came, name/<n>    what all need to have in common; how many followers came, and the host name of each
    task/<i>, ready/<i>      the i-th round to train, or the end of the run; how many followers are ready for it
    failed, left             the error of a follower that gave up; how many followers have read the end
    beat/<n>                 a number that grows while machine n is there: its heartbeats

Each round is trained by torchrun, which has its own address. Neither this store nor torchrun has a password: as with
all of torch.distributed, the network must be trusted.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from math import inf
from typing import Any

from data_contracts.errors import ProjectError, ServerError, Stopped, UsageError, from_json
from tasks.core.network import Rendezvous, free_port, interface_of, is_loopback
from tasks.core.wording import duration

FOLLOWER_TIMEOUT = 120.0    # seconds without a heartbeat after which a follower counts as lost
LEADER_TIMEOUT = 300.0      # the same for the leader, whose heartbeats are late while it mines or builds
POLL_SECONDS = 0.5          # between heartbeats, and between looks at the store
EXIT_SECONDS = 10.0         # that a machine which fails or ends waits for what the others say
CHECK_AND_RESUME = "check that its run is alive and reachable; the same commands resume"


class Machines:
    """The machines of a run, as one of them sees them: `number` 0 is the leader.

    interface: the name of the network interface by which this machine reaches the rendezvous, "" where that is unknown.
    """

    def __init__(self, rendezvous: Rendezvous, store: Any, number: int, interface: str) -> None:
        self.rendezvous, self.store, self.number, self.interface = rendezvous, store, number, interface
        self.rounds = 0    # rounds that were begun
        self._heard = dict.fromkeys(range(1, rendezvous.count) if number == 0 else [0], time.monotonic())
        self._beats: dict[int, bytes] = {}
        self._failure: dict[str, Any] | None = None
        self._trouble: ProjectError | None = None
        self._is_gone = False
        self._wanted, self._found = "", b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Tell the followers how the run ended, where this machine leads; else tell the leader what stopped it."""
        with suppress(RuntimeError):    # the leader is gone
            if self.number == 0:
                self._end(error)
            elif error is not None:
                self.fail(error)
        self.close()

    def close(self) -> None:
        """Leave: no more is heard of this machine."""
        self._over.set()
        self._thread.join(EXIT_SECONDS)

    def begin(self, task: dict[str, Any]) -> int:
        """Give the followers a round to train; return the port for torchrun once all of them are ready."""
        self.rounds += 1
        port = free_port("")
        self.store.set(f"task/{self.rounds}", json.dumps({**task, "port": port}))
        while self.store.add(f"ready/{self.rounds}", 0) < self.rendezvous.count - 1:
            self.check()
            time.sleep(POLL_SECONDS / 5)
        return port

    def next_task(self) -> dict[str, Any]:
        """Return the next round that the leader gives, {} at the end; raise the error that ended the run."""
        task = self._wait(f"task/{self.rounds + 1}")
        if "end" in task:
            with suppress(RuntimeError):
                self.store.add("left", 1)
            if task["end"]:
                raise from_json(task["end"], f"machine 0, at {self.rendezvous}")
            return {}
        self.rounds += 1
        return task

    def ready(self) -> None:
        """Say that this machine can train the round that `next_task` gave; raise as `check` where it cannot be said."""
        self.check()
        try:
            self.store.add(f"ready/{self.rounds}", 1)
        except RuntimeError:    # torch's, of a connection that was closed a moment ago
            self._is_gone = True
            self.check()

    def torchrun_options(self, port: int) -> list[str]:
        """Return the options by which the torchruns of all machines join one group."""
        return ["--nnodes", str(self.rendezvous.count), "--node-rank", str(self.number),
                "--master-addr", self.rendezvous.host, "--master-port", str(port)]

    def check(self) -> None:
        """Raise the error of a machine that gave up, or ServerError where one is lost."""
        if self._failure:
            raise from_json(self._failure, f"machine {self._failure['number']}, {self._failure['host']}")
        if self._is_gone:
            raise ServerError(f"machine 0 at {self.rendezvous} has gone", hint=CHECK_AND_RESUME)
        longest = FOLLOWER_TIMEOUT if self.number == 0 else LEADER_TIMEOUT
        for number, at in self._heard.items():
            if time.monotonic() - at > longest:
                name = f" at {self.rendezvous}" if number == 0 else self._name(number)
                raise ServerError(f"machine {number}{name} has not been heard of for {duration(longest)}",
                                  hint=CHECK_AND_RESUME)

    def is_in_trouble(self) -> bool:
        """Return whether training cannot go on: another machine failed or is lost.

        False where a user stopped a machine, since every process then stops by itself.
        """
        if self._failure and self._failure["kind"] == "Stopped":
            return False
        try:
            self.check()
        except ProjectError as error:
            self._trouble = error    # which may be over when it is asked for
        return self._trouble is not None

    def why_lost(self) -> ProjectError | None:
        """Return the error of another machine that explains why a round failed here; None where there is none."""
        if self._trouble:
            return self._trouble
        try:
            if self.number:
                said = self._wait(f"task/{self.rounds + 1}", EXIT_SECONDS)
                return from_json(said["end"], f"machine 0, at {self.rendezvous}") if said.get("end") else None
            until = time.monotonic() + EXIT_SECONDS
            while time.monotonic() < until:
                self.check()
                time.sleep(POLL_SECONDS)
        except ProjectError as error:
            return error
        return None

    def fail(self, error: BaseException) -> None:
        """Tell the leader why this machine gives up."""
        with suppress(RuntimeError):
            self.store.set("failed", json.dumps({**_written(error), "number": self.number,
                                                 "host": socket.gethostname()}))

    def _end(self, error: BaseException | None) -> None:
        self.store.set(f"task/{self.rounds + 1}", json.dumps({"end": error and _written(error)}))
        until = time.monotonic() + EXIT_SECONDS
        while self.store.add("left", 0) < self.rendezvous.count - 1 and time.monotonic() < until and not self._failure:
            time.sleep(POLL_SECONDS / 5)

    def _wait(self, key: str, seconds: float = inf) -> dict[str, Any]:
        """Return the value of `key` once it is there, {} where it is not within `seconds`.

        Raises ServerError where the leader is lost before.
        """
        until = time.monotonic() + seconds
        self._found, self._wanted = b"", key
        while not self._found and time.monotonic() < until:
            self.check()
            time.sleep(POLL_SECONDS / 5)
        found: dict[str, Any] = json.loads(self._found or b"{}")
        return found

    def _attend(self) -> None:
        """Send heartbeats, read those of others and look for the key that `_wait` wants, until this machine leaves."""
        beat = 0
        try:
            while not self._over.wait(POLL_SECONDS):
                beat += 1
                self.store.set(f"beat/{self.number}", str(beat))
                for number in self._heard:
                    heard = self.store.get(f"beat/{number}") if self.store.check([f"beat/{number}"]) else b""
                    if heard != self._beats.get(number, b""):
                        self._beats[number], self._heard[number] = heard, time.monotonic()
                if self.number == 0 and self.store.check(["failed"]):
                    self._failure = json.loads(self.store.get("failed"))
                if self._wanted and self.store.check([self._wanted]):
                    self._found, self._wanted = self.store.get(self._wanted), ""
        except RuntimeError:    # torch's error of a connection that was closed
            self._is_gone = True

    def _name(self, number: int) -> str:
        return f", {self.store.get(f'name/{number}').decode()}," if self.store.check([f"name/{number}"]) else ""


def lead(rendezvous: Rendezvous, say: Callable[[str], None]) -> Machines:
    """Wait for the followers. Raises ServerError naming how many came where some do not in time."""
    from torch.distributed import TCPStore

    with socket.socket(socket.AF_INET6 if ":" in rendezvous.host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("" if rendezvous.is_public else rendezvous.host, rendezvous.port))
        except OSError as error:
            raise UsageError(f"this machine cannot lead at {rendezvous}: {error.strerror}",
                             hint="where another machine leads there, give --node 1 here; else another port") from error
        listener.listen(1024)
        # torch closes it
        store = TCPStore(rendezvous.host, rendezvous.port, None, True, timedelta(seconds=LEADER_TIMEOUT),
                         wait_for_workers=False, master_listen_fd=os.dup(listener.fileno()))
    store.set("about", json.dumps(_about(rendezvous)))
    say(f"machine 0 of {rendezvous.count} at {rendezvous}; waits up to {duration(rendezvous.seconds)} for the others")
    until = time.monotonic() + rendezvous.seconds
    while (came := 1 + store.add("came", 0)) < rendezvous.count:
        if time.monotonic() > until:
            few = ServerError(
                f"{came} of {rendezvous.count} machines came to {rendezvous} within {duration(rendezvous.seconds)}",
                hint=f"start the same command on the others, where {rendezvous} can be reached; or give --nodes {came}")
            store.set("task/1", json.dumps({"end": _written(few)}))
            time.sleep(4 * POLL_SECONDS if came > 1 else 0)    # so that those who came can read it
            raise few
        store.set("beat/0", str(time.monotonic() - until))    # else those who came give up
        time.sleep(POLL_SECONDS / 5)
    # Where the leader's own name is that of its loopback, as on Debian, followers come by another interface.
    is_known = not (rendezvous.is_public and is_loopback(rendezvous.host))
    return Machines(rendezvous, store, 0, interface_of(rendezvous.host) if is_known else "")


def join(rendezvous: Rendezvous) -> Machines:
    """Join the machines that meet at `rendezvous`. Raises ServerError where no machine leads there in time."""
    from torch.distributed import TCPStore

    until = time.monotonic() + rendezvous.seconds
    while True:
        try:
            with socket.create_connection((rendezvous.host, rendezvous.port), timeout=10) as connection:
                interface = interface_of(connection.getsockname()[0])
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ServerError(f"no machine leads at {rendezvous}, within {duration(rendezvous.seconds)}: {error}",
                                  hint="start the same command with --node 0 there, and see that the port is open"
                                  ) from error
            time.sleep(POLL_SECONDS)
    try:
        store = TCPStore(rendezvous.host, rendezvous.port, None, False, timedelta(seconds=FOLLOWER_TIMEOUT),
                         wait_for_workers=False)
        about = json.loads(store.get("about"))
        number = store.add("came", 1)
        store.set(f"name/{number}", socket.gethostname())
    except (RuntimeError, ValueError) as error:
        raise ServerError(f"what answers at {rendezvous} is no run that leads machines",
                          hint="give the HOST:PORT of machine 0") from error
    for key, ours in _about(rendezvous).items():
        if about.get(key) != ours:
            with Machines(rendezvous, store, number, interface):    # so that leaving the block tells machine 0
                raise UsageError(f"machine 0 at {rendezvous} has {key} {about.get(key)}, this one {ours}",
                                 hint="all machines need the same options and versions")
    if number >= rendezvous.count:
        raise UsageError(f"{rendezvous.count} machines are at {rendezvous} already",
                         hint=f"give --nodes {number + 1} to all")
    return Machines(rendezvous, store, number, interface)


def _about(rendezvous: Rendezvous) -> dict[str, Any]:
    return {"--nodes": rendezvous.count, "torch": version("torch"), "numpy": version("numpy")}


def _written(error: BaseException) -> dict[str, str]:
    if isinstance(error, ProjectError):
        return error.to_json()
    kind, what = (Stopped, "interrupted") if isinstance(error, KeyboardInterrupt) else \
        (ProjectError, f"{type(error).__name__}: {error}")
    return kind(what, hint="the same commands resume").to_json()
