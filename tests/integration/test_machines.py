"""Machines that train one model together, as groups of processes with folders of their own, against one process."""

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT
from tests.integration.test_together import job, run
from tests.support import toy

pytestmark = pytest.mark.usefixtures("one_thread")


def run_machines(processes: tuple[int, ...], jobs: list[dict[str, Any]], folders: list[Path]) -> list[dict[str, Any]]:
    """Train the rounds by machines of so many processes, each with a folder; -> as `run`, from the first one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for number, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / "jobs").write_bytes(pickle.dumps(jobs))
        started.append(subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(folders)), "--node-rank", str(number),
             "--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", str(processes[number]),
             str(ROOT / "tests" / "support" / "torchrun_worker.py"), str(folder / "jobs"), str(folder)],
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}))
    said = [each.communicate(timeout=500)[1] for each in started]
    assert not any(each.returncode for each in started), said
    return [json.loads((folders[0] / f"{number}.json").read_text()) for number in range(len(jobs))]


@pytest.fixture(scope="module")
def last_round() -> dict[str, Any]:
    made = toy.trained("astra")
    return job(made, list(made.rounds)[-1])


@pytest.fixture(scope="module")
def alone(last_round, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    return {**run(1, [last_round], folder)[0], "folder": folder / "0"}


def test_two_machines_train_what_one_process_trains(alone, last_round, tmp_path):
    (together,) = run_machines((1, 1), [last_round], [tmp_path / "first", tmp_path / "second"])
    assert len(together["losses"]) > 5 and together["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert max(together["held"]) <= 0.51 * alone["held"][0]
    assert not list((tmp_path / "second" / "0").iterdir())    # the first one has all rows, those of the second too
    for file in ("model.safetensors", "optimiser.safetensors"):
        one, two = (load_file(folder / file) for folder in (alone["folder"], tmp_path / "first" / "0"))
        assert one.keys() == two.keys()
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=f"{file}: {key}")


def test_machines_go_on_where_others_stopped(alone, last_round, tmp_path):
    first, second, new = (tmp_path / name for name in ("first", "second", "new"))
    (begun,) = run_machines((1, 1), [last_round | {"stop_after": 7}], [first, second])
    (ended,) = run_machines((1, 2), [last_round], [first, new])
    assert len(begun["losses"]) == 7
    assert [*begun["losses"], *ended["losses"]] == pytest.approx(alone["losses"], rel=1e-5)
