"""`xc run --processes 2`: the model of one process, and what becomes of the two when the run is stopped or killed."""

import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_run_methods import ASTRA_ALONE
from tests.support.forked import start_xc
from tests.support.home_services import until
from tests.support.long_tests import at_length
from tests.support.run_command import prepared


def words(planted: Path, home: Path, *more: str, **changed: str) -> list[str]:
    """Return the words of a run of ASTRA after `xc`."""
    settings = [word for key, value in (ASTRA_ALONE | changed).items() for word in ("--set", f"{key}={value}")]
    return ["run", "--data", str(planted), "--method", "astra", "--preset", "cpu-learned", "--home", str(home),
            "--workers", "0", "--json", *settings, *more]


def losses(said: str) -> list[float]:
    """Return the loss that each round ended with."""
    return [float(loss) for loss in re.findall(r"^ +loss ([\d.]+)", said, re.MULTILINE)]


@at_length("two runs; test_run_machines.py has a process on each of two machines, test_distributed.py two on one")
def test_two_processes_train_the_model_of_one(whole, planted, xc, tmp_path):
    found = {}
    for processes in ("1", "2"):
        home = prepared(whole[0], tmp_path / processes)
        code, out, said = xc(*words(planted, home, "--processes", processes, refresh_every="8"))
        assert code == 0, said
        found[processes] = losses(said), json.loads(out)["metrics"]
    assert len(found["1"][0]) == 2 and found["2"][0] == pytest.approx(found["1"][0], abs=2e-4)
    assert found["2"][1]["P/1"] == pytest.approx(found["1"][1]["P/1"], abs=1.5) and found["2"][1]["P/1"] > 90


def of_home(home: Path) -> list[psutil.Process]:
    """Return the processes that train for a home."""
    return [each for each in psutil.process_iter(["cmdline"])
            if "tasks.training.training_process" in (line := " ".join(each.info["cmdline"] or []))
            and str(home) in line]


@at_length("a minute each; one process is stopped and killed in test_run_kills.py, two go on in test_distributed.py")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_is_stopped_or_killed_goes_on(whole, planted, tmp_path, number, xc):
    home = prepared(whole[0], tmp_path / "home")
    asked = words(planted, home, "--processes", "2", epochs="60", refresh_from="58")
    with (tmp_path / "said").open("wb") as said, start_xc(*asked, stderr=said, stdout=said) as run:
        until(lambda: list(home.glob("scratch/*/steps")) or run.poll() is not None)
        time.sleep(2)    # both are there, and train
        assert len(of_home(home)) == 3    # torchrun and its two
        run.send_signal(number)
        code = run.wait(120)
    until(lambda: not of_home(home))
    text = (tmp_path / "said").read_text()
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL), text
    saved = list(home.glob("scratch/*/steps/*.safetensors"))
    assert len(saved) == 1, text
    code, _, text = xc(*asked)
    assert code == 0, text
    assert not list(home.glob("scratch/*/steps"))
