"""Kills at random moments, of whatever has a part in a run: the same command ends with the metrics of the unbroken run.

XC_KILLS says how many (2 unless it does), XC_KILLS_SEED which.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support import tiny
from tests.support.forked import start_xc
from tests.support.long_tests import at_length
from tests.support.prefect_server import running_prefect
from tests.support.run_command import command, objects

KILLS, SEED = int(os.environ.get("XC_KILLS", "2")), int(os.environ.get("XC_KILLS_SEED", "0"))
VICTIMS = ("flow", "worker", "mlflow", "prefect")


class Job:
    """The same command, as often as it takes, and an MLflow and a Prefect server that can be killed, too."""

    def __init__(self, folder: Path, planted: Path) -> None:
        self.folder, self.stack, self.home = folder, ExitStack(), folder / "home"
        self.servers: dict[str, tuple[str, subprocess.Popen]] = {}
        self.start_servers()
        self.words = [*command(planted, self.home, workers=1), "--mlflow", self.servers["mlflow"][0]]

    def start_servers(self) -> None:
        """Start the servers that do not run, on the port and the database of the one before."""
        for name, start in (("mlflow", tiny.mlflow_server), ("prefect", running_prefect)):
            before = self.servers.get(name)
            if before is None or before[1].poll() is not None:
                port = urlsplit(before[0]).port if before else 0
                self.servers[name] = self.stack.enter_context(start(self.folder / name, port))

    def begin(self) -> subprocess.Popen:
        """Start the run."""
        environment = {**os.environ, "PREFECT_API_URL": self.servers["prefect"][0]}
        return start_xc(*self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def kill(self, victim: str, run: subprocess.Popen) -> bool:
        """Kill the victim, where there is one at this moment."""
        if victim in self.servers:
            os.killpg(self.servers[victim][1].pid, signal.SIGKILL)
            self.servers[victim][1].wait()
            return True
        if victim == "flow":
            run.kill()
            return True
        workers = [child for child in psutil.Process(run.pid).children(recursive=True)
                   if "forkserver" in " ".join(child.cmdline()) and child.ppid() != run.pid]
        for worker in workers[:1]:
            worker.kill()
        return bool(workers)


@pytest.fixture
def job(tmp_path, planted):
    made = Job(tmp_path, planted)
    with made.stack:
        yield made


@at_length("kills at random, minutes")
@pytest.mark.timeout(240 + 120 * KILLS)
def test_whatever_is_killed_the_same_command_ends_the_same(job, whole):
    draw, kills = random.Random(SEED), []
    while True:
        run, began = job.begin(), time.monotonic()
        if len(kills) < KILLS:
            victim, moment = draw.choice(VICTIMS), draw.uniform(2, 20)
            while run.poll() is None and time.monotonic() - began < moment:
                time.sleep(0.02)
            if run.poll() is None and job.kill(victim, run):
                kills.append(victim)
        out, said = run.communicate(timeout=240)
        assert "Traceback" not in said, said
        job.start_servers()
        if run.returncode == -signal.SIGKILL:
            continue
        if run.returncode == 5 and victim in job.servers:    # registering, or any step, cannot do without it
            assert "hint: " in said.splitlines()[-1]
            continue
        assert run.returncode == 0, (kills, said)
        assert json.loads(out)["metrics"] == whole[1]["metrics"], kills
        for step in ("evaluate", "build retriever"):
            assert objects(job.home)[step] == objects(whole[0])[step], kills
        assert not list((job.home / "tmp").iterdir())
        if len(kills) == KILLS:
            return
        shutil.rmtree(job.home)    # it was done before all were killed: once more from nothing
