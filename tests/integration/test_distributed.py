"""Processes that train one model together, by a real `torchrun`, against one process."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT
from tests.support import torchrun_worker, toy
from xcmodels.methods.siamesexml.method import siamesexml
from xcmodels.methods.unidec.method import unidec
from xcmodels.nn import distributed
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.training.local_run import TrainedMethod, train_all

pytestmark = pytest.mark.usefixtures("one_thread")


def run(processes: int, jobs: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Train the rounds by so many processes; -> the losses, and the bytes of label tables that each process held.

    One process is this one, with nothing to join.
    """
    out.mkdir(exist_ok=True)
    (out / "jobs").write_bytes(pickle.dumps(jobs))
    if processes == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "BLOCK", torchrun_worker.BLOCK)
            torchrun_worker.train(out / "jobs", out)
    else:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
             torchrun_worker.__file__, str(out / "jobs"), str(out)], capture_output=True, text=True, timeout=500,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{number}.json").read_text()) for number in range(len(jobs))]


def job(made: TrainedMethod, name: str) -> dict[str, Any]:
    """Return what a round of a trial is made from."""
    round_ = made.rounds[name]
    return {"corpus": made.corpus.folder, "stage": made.method.stage(round_.stage), "round": round_,
            "mined": made.mined[name], "start": made.starts[name], "before": made.befores[name]}


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> EncoderConfig:
    """A transformer of one layer that drops nothing: what is dropped differs with the number of processes."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0,
                         intermediate_size=24, max_position_embeddings=32, hidden_dropout_prob=0.0,
                         attention_probs_dropout_prob=0.0)).save_pretrained(folder)
    # bf16 rounds to three digits, and to which depends on the texts that are padded together
    return EncoderConfig(kind="transformer", source=str(folder), batch=64, bf16=False)


@pytest.fixture(scope="module")
def trials(corpus, bert, tmp_path_factory) -> dict[str, TrainedMethod]:
    torch.set_num_threads(1)
    more = {"siamesexml++": siamesexml(replace(toy.SIAMESEXML, joint=True, token_lr=1e-3)),
            "transformer": unidec(replace(toy.UNIDEC, encoder=bert, epochs=5, dropout=0.0))}
    low = [f"{name} low bytes" for name in ("astra", "unidec", "ngame", "siamesexml", "renee")]
    return {name: toy.trained(name) for name in ("astra", "unidec", "ngame", "siamesexml", *low)} | {
        name: train_all(corpus, method, tmp_path_factory.mktemp("trial") / "out") for name, method in more.items()}


@pytest.fixture(scope="module")
def rounds(trials, tmp_path_factory) -> dict[str, dict[Any, Any]]:
    """The first and the last round of each method by one process and by two, what each left, and ASTRA's last in parts.

    Keys: 1 and 2 for the processes; (1, 2) for two that went on after one, its losses after the first seven steps.
    """
    folder = tmp_path_factory.mktemp("together")
    jobs = {f"{of} {name}": job(made, name) for of, made in trials.items()
            for rounds in [list(made.rounds)] for name in {rounds[0], rounds[-1]}}
    last = f"astra {list(trials['astra'].rounds)[-1]}"
    begun = {number: jobs[last] | {"folder": folder / f"begun by {number}"} for number in (1, 2)}
    found: dict[str, dict[Any, Any]] = {name: {} for name in jobs}
    for processes, parts in ((1, {(1, "begun"): begun[1] | {"stop_after": 7}}),
                             (2, {(2, "begun"): begun[2] | {"stop_after": 7}, (1, 2): begun[1]})):
        out = folder / str(processes)
        told = run(processes, [*jobs.values(), *parts.values()], out)
        for number, (name, each) in enumerate(zip(jobs, told, strict=False)):
            found[name][processes] = {**each, "folder": out / str(number)}
        found[last].update(zip(parts, told[len(jobs):], strict=True))
    (found[last][2, 1],) = run(1, [begun[2]], folder / "alone again")
    return found


@pytest.fixture
def both(rounds) -> dict[str, tuple[Any, Any]]:
    """What one process and what two left of each round."""
    return {name: (of[1], of[2]) for name, of in rounds.items()}


def test_the_losses_are_those_of_one_process(both):
    for name, (alone, together) in both.items():
        assert len(alone["losses"]) == len(together["losses"]) > 5, name
        assert together["losses"] == pytest.approx(alone["losses"], rel=1e-5), name


def test_what_is_trained_is_what_one_process_trains(both):
    for name, (alone, together) in both.items():
        for file in ("model.safetensors", "optimiser.safetensors"):
            one, two = (load_file(each["folder"] / file) for each in (alone, together))
            assert one.keys() == two.keys()
            for key, value in one.items():
                assert value.shape == two[key].shape and value.dtype == two[key].dtype
                torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


def test_each_holds_half_of_the_labels(both):
    tabled = {name: each for name, each in both.items() if each[0]["held"][0]}
    assert {name.split()[0] for name in tabled} == {"astra", "unidec", "ngame", "siamesexml", "siamesexml++",
                                                   "transformer", "renee"}
    for alone, together in tabled.values():
        (whole,) = alone["held"]
        assert max(together["held"]) <= 0.51 * whole and sum(together["held"]) == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_other_processes_go_on_from_a_step_checkpoint(rounds, before, after):
    (found,) = [found for found in rounds.values() if (before, after) in found]
    begun, ended = found[before, "begun"]["losses"], found[before, after]["losses"]
    assert len(begun) == 7
    assert [*begun, *ended] == pytest.approx(found[1]["losses"], rel=1e-5)


def test_a_draw_is_the_same_by_shards():
    from xcmodels.nn.row_table import normal_rows

    torch.manual_seed(3)
    whole = normal_rows(150_000, 3, slice(0, 150_000))
    for part in (slice(0, 75_000), slice(75_000, 150_000), slice(70_000, 70_001)):
        torch.manual_seed(3)
        assert torch.equal(normal_rows(150_000, 3, part), whole[part])
    assert np.abs(whole.numpy().std() - 1) < 0.01
