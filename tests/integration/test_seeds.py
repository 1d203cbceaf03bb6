"""Draws are keyed by the run's seed and by their purpose, and by nothing else."""

import subprocess
import sys

import numpy as np
import torch

from xcmodels.data import seeds


def test_a_draw_does_not_depend_on_the_draws_before_it():
    first = seeds.generator(3, "order", "encoder", 1).random(5)
    seeds.generator(3, "order", "encoder", 0).random(100)
    np.random.default_rng().random()
    assert np.array_equal(seeds.generator(3, "order", "encoder", 1).random(5), first)


def test_every_part_of_a_key_counts():
    keys = [seeds.key_of(0, "order", "encoder", 1), seeds.key_of(1, "order", "encoder", 1),
            seeds.key_of(0, "batch", "encoder", 1), seeds.key_of(0, "order", "encoder", 2),
            seeds.key_of(0, "order", "encoder1"), seeds.key_of(0, "orderencoder", 1), seeds.key_of(0, "order"),
            seeds.key_of(0), seeds.key_of(0, "order", "encoder", 11), seeds.key_of(0, "order", "encoder", 1, 1)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


def test_torch_is_seeded_for_the_purpose():
    def draw(*purpose):
        seeds.seed_torch(7, *purpose)
        return torch.rand(4)

    one = draw("batch", 1)
    assert not torch.equal(one, draw("batch", 2))
    assert torch.equal(one, draw("batch", 1))
    torch.manual_seed(seeds.key_of(7, "batch", 1) >> 1)    # which seeds every device, as a GPU's training has to
    assert torch.equal(one, torch.rand(4))


def test_keys_are_the_same_in_every_process():
    """Python's own hash of a string is not."""
    code = "from xcmodels.data.seeds import key_of; print(key_of(5, 'order', 2))"
    out = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONHASHSEED": salt, "OMP_NUM_THREADS": "1"}).stdout for salt in ("1", "2")}
    assert out == {f"{seeds.key_of(5, 'order', 2)}\n"}
