"""Stochastic rounding of rows to bfloat16: up or down at random, right on average.

A bfloat16 keeps 8 bits of precision: the step of an optimiser is often less than half the distance to the next one, and
rounded to the nearest it would be lost each time. Rounded at random it moves the value by the whole distance now and
then (Gupta et al., 2015; ELMO, section 4.1).
"""

import numpy as np
import torch

NOISE_ROWS = 1024    # of random bits that a draw makes; drawing new ones for each of 30,000 rows took 15 ms, these 0.1


def round_rows(rows: torch.Tensor, ids: torch.Tensor, key: int) -> torch.Tensor:
    """Return float32 rows (k, d) in bfloat16, each value rounded up or down; infinities and exact values stay.

    ids (k,) int64: the places of the rows in their whole table. The noise of a row depends on `key` and its id alone,
    not on which other rows are rounded, or by which process. Each value's noise is uniform, and independent of those of
    its row; a thousandth of the other rows share it, in each draw others.
    """
    rng = np.random.default_rng(key)
    bits = rng.integers(1 << 16, size=(NOISE_ROWS, rows.shape[1]), dtype=np.uint16).astype(np.int32)
    factor = int(rng.integers(1 << 62)) * 2 + 1    # multiplicative hashing: an odd factor, the upper bits
    noise = torch.from_numpy(bits).to(rows.device)
    return add_noise(rows, noise.index_select(0, (ids * factor >> 48) & (NOISE_ROWS - 1)))


def add_noise(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return float32 values in bfloat16, rounded up in magnitude where noise carries; `noise` is used up.

    noise: int32, from 0 to 65,535. A bfloat16 is the upper half of a float32, so the lower half is the share of the
    distance to the next bfloat16.
    """
    carried = noise.add_(values.contiguous().view(torch.int32)).bitwise_and_(-(1 << 16))
    return carried.view(torch.float32).bfloat16()
