"""Kills at random moments, of whatever has a part in a run: the same command ends with the metrics of the unbroken run.

XC_KILLS says how many (2 unless it does), XC_KILLS_SEED which.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests import tiny
from tests.conftest import ROOT
from tests.whole_runs import command, objects

KILLS, SEED = int(os.environ.get("XC_KILLS", "2")), int(os.environ.get("XC_KILLS_SEED", "0"))
VICTIMS = ("flow", "worker", "mlflow")


class Job:
    """The same command, as often as it takes, and an MLflow server that can be killed, too."""

    def __init__(self, folder: Path, planted: Path) -> None:
        self.folder, self.servers, self.stack = folder, 0, ExitStack()
        self.home = folder / "home"
        self.start_server()
        self.words = [*command(planted, self.home), "--mlflow", self.address]

    def start_server(self) -> None:
        """Start the MLflow server, on the port and the database of the one before."""
        port = int(self.address.rpartition(":")[2]) if self.servers else 0
        self.address, self.server = self.stack.enter_context(tiny.mlflow_server(self.folder / "mlflow", port))
        self.servers += 1

    def begin(self) -> subprocess.Popen:
        """Start the run."""
        return subprocess.Popen([sys.executable, "-m", "flows.cli", *self.words], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def kill(self, victim: str, run: subprocess.Popen) -> bool:
        """Kill the victim, where there is one at this moment."""
        if victim == "mlflow":
            os.killpg(self.server.pid, signal.SIGKILL)
            return True
        if victim == "flow":
            run.kill()
            return True
        workers = [child for child in psutil.Process(run.pid).children(recursive=True)
                   if "spawn_main" in " ".join(child.cmdline())]
        for worker in workers[:1]:
            worker.kill()
        return bool(workers)


@pytest.fixture
def job(tmp_path, planted, prefect_server):
    made = Job(tmp_path, planted)
    with made.stack:
        yield made


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
        if job.server.poll() is not None:
            job.start_server()
        if run.returncode == -signal.SIGKILL:
            continue
        if run.returncode == 5 and victim == "mlflow":    # registering cannot do without it
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
