"""`xc run --nodes 2`: two machines, as two groups of processes with homes of their own, train the model of one."""

import json
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from tasks.core.store import Store
from tests.e2e.test_run_processes import of_home, words
from tests.support.forked import start_xc
from tests.support.home_services import until
from tests.support.long_tests import at_length
from tests.support.ports import free_port
from tests.support.run_command import prepared

SHORT = {"epochs": "4", "refresh_from": "2", "refresh_every": "2"}    # two rounds
LONG = {"epochs": "60", "refresh_from": "58"}


@dataclass
class Two:
    """Two machines: their homes, the folder that they share, and the options of their runs."""

    planted: Path
    homes: tuple[Path, Path]
    store: Path
    settings: dict[str, str]
    logs: list[Path] = field(default_factory=list)

    def start(self) -> list[Popen]:
        """Start the same command on both, but for its home and number."""
        port = free_port()
        self.logs = [home.parent / f"{home.name}.log" for home in self.homes]
        return [start_xc(*words(self.planted, home, "--store", f"file://{self.store}", "--nodes", "2", "--node",
                                str(number), "--rendezvous", f"127.0.0.1:{port}", **self.settings),
                         stdout=(log := self.logs[number].open("w")), stderr=log)
                for number, home in enumerate(self.homes)]

    def until_training(self, running: list[Popen]) -> None:
        """Wait until the processes of both have met, and train."""
        until(lambda: list(self.homes[0].glob("scratch/*/steps")) or running[0].poll() is not None)

    def said(self) -> str:
        return "\n\n".join(log.read_text() for log in self.logs)

    def kill(self, number: int, run: Popen) -> None:
        """Kill all of a machine at once, as when its power fails."""
        for process in [psutil.Process(run.pid), *of_home(self.homes[number])]:
            with suppress(psutil.Error):
                process.kill()

    def run(self) -> str:
        """Run both to their end; return what the first one said."""
        for each in self.start():
            assert each.wait(500) == 0, self.said()
        return self.logs[0].read_text()


@pytest.fixture
def two(whole, planted, tmp_path) -> Two:
    return Two(planted, (prepared(whole[0], tmp_path / "first"), tmp_path / "second"), tmp_path / "store", SHORT)


def losses(home: Path) -> dict[str, list[float]]:
    """Return the loss of each epoch, by the step of its round."""
    store = Store(home)
    return {manifest["about"]["step"]: [epoch["loss"] for epoch in json.loads(
        (store.open(store.find(key), whole=False) / "metrics.json").read_text())]
        for key, manifest in store.steps() if manifest["kind"] == "checkpoint"}


def test_two_machines_train_the_model_of_one_though_one_was_killed(two, whole, planted, tmp_path, xc):
    running = two.start()
    two.until_training(running)
    two.kill(1, running[1])
    assert running[0].wait(240) == 1, two.said()
    assert "training processes ended" in two.said() and "the same commands resume" in two.said()
    until(lambda: not of_home(two.homes[0]))
    running[1].wait()
    said = two.run()
    assert "version 1: first model: now champion" in said
    assert "took part in 2 rounds of training" in two.logs[1].read_text()
    assert not list(two.homes[1].glob("scratch/*"))
    alone = prepared(whole[0], tmp_path / "alone")
    code, _, said = xc(*words(planted, alone, **SHORT))
    assert code == 0, said
    one, both = losses(alone), losses(two.homes[0])
    assert one.keys() == both.keys() == {"joint round 0", "joint round 1"}
    for name, expected in one.items():
        assert both[name] == pytest.approx(expected, rel=1e-5), name


@at_length("a minute each; one is killed above, and test_distributed_machines.py goes on from a step's checkpoint")
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_either_is_killed_at_a_random_moment_and_the_run_resumes(two, number, seed):
    two.settings = {"epochs": "12", "refresh_from": "4", "refresh_every": "4"}
    running = two.start()
    until(lambda: any(map(of_home, two.homes)) or running[0].poll() is not None)
    time.sleep(random.Random(f"{number} {seed}").uniform(0, 20))
    two.kill(number, running[number])
    assert running[1 - number].wait(400) != 0 or number == 1, two.said()
    running[number].wait()
    until(lambda: not of_home(two.homes[1 - number]))
    assert "version 1: first model: now champion" in two.run()


@at_length("a minute each; that any process can ask all to stop is tested in test_distributed_machines.py")
@pytest.mark.parametrize("number", [0, 1])
def test_one_that_is_stopped_has_all_save_their_state(two, number):
    two.settings = LONG
    running = two.start()
    two.until_training(running)
    time.sleep(2)
    running[number].send_signal(signal.SIGINT)
    assert running[number].wait(120) == 130, two.said()
    assert running[1 - number].wait(120) in (1, 130), two.said()
    assert len(list(two.homes[0].glob("scratch/*/steps/*.safetensors"))) == 1, two.said()
    two.run()
    assert not list(two.homes[0].glob("scratch/*/steps"))
