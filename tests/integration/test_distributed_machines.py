"""Machines that train one model together, as groups of processes with folders of their own, against one process."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT
from tests.integration.test_distributed import job, run
from tests.support import toy
from tests.support.ports import free_port
from xcmodels.nn import distributed
from xcmodels.training.checkpoint import dense_digest, read_model

pytestmark = pytest.mark.usefixtures("one_thread")


def run_machines(processes: tuple[int, ...], jobs: list[dict[str, Any]], folders: list[Path]) -> list[dict[str, Any]]:
    """Train the rounds by machines of so many processes, each with a folder; -> as `run`, from the first one."""
    port, started = free_port(), []
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


def test_two_machines_and_others_after_them_train_what_one_process_trains(tmp_path):
    made = toy.trained("astra")
    last_round = job(made, list(made.rounds)[-1])
    (alone,) = run(1, [last_round], tmp_path / "alone")
    first, second, new = (tmp_path / name for name in ("first", "second", "new"))
    (begun,) = run_machines((1, 1), [last_round | {"stop_after": 7}], [first, second])
    (ended,) = run_machines((1, 2), [last_round], [first, new])
    assert len(begun["losses"]) == 7 and len(ended["losses"]) > 7
    assert [*begun["losses"], *ended["losses"]] == pytest.approx(alone["losses"], rel=1e-5)
    assert max(begun["held"]) <= 0.51 * alone["held"][0] and max(ended["held"]) <= 0.34 * alone["held"][0]
    assert not [*(second / "0").iterdir(), *(new / "0").iterdir()]    # the first one has all rows, theirs too
    for file in ("model.safetensors", "optimiser.safetensors"):
        one, several = (load_file(folder / "0" / file) for folder in (tmp_path / "alone", first))
        assert one.keys() == several.keys()
        for key, value in one.items():
            torch.testing.assert_close(several[key], value, rtol=1e-3, atol=1e-4, msg=f"{file}: {key}")


def test_processes_that_begin_with_other_weights_are_refused(corpus, monkeypatch):
    stage = toy.trained("astra").method.stages[-1]
    model = read_model(stage, corpus, None)
    before = dense_digest(model)
    assert dense_digest(read_model(stage, corpus, None)) == before
    next(iter(model.parameters())).data += 1
    assert dense_digest(model) != before
    distributed.check_same(before, "weights")
    monkeypatch.setattr(distributed, "broadcast", lambda value: dense_digest(model))    # the first process's
    with pytest.raises(RuntimeError, match="machines that train together have different weights"):
        distributed.check_same(before, "weights")
