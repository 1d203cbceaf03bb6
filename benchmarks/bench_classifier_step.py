"""What does ASTRA's classifier step cost as labels multiply, against a step over all of them? (ASTRA, Tables 3 and 4)

    python -m benchmarks.bench_classifier_step [dim] [labels ...]

A step here is what the encoder is no part of: gather the rows of the batch's labels, score, binary cross-entropy,
backward, SGD on the rows. Over all labels it is a dense matrix product and dense SGD, where memory has room for it.
Memory is what a step adds.
"""

import time
from collections.abc import Callable

import numpy as np
import psutil
import torch
import torch.nn.functional as F

from benchmarks.asked import Count, answer
from xcmodels.nn.losses import weighted_bce
from xcmodels.nn.row_table import RowSGD, RowTable

BATCH, OWN, UNIFORM, STEPS = 512, 60, 1600, 12
COPIES = 5    # the dense step was seen to hold four of all scores at once, and the gradient of the rows


def sampled(table: RowTable, sgd: RowSGD, queries: torch.Tensor, rng: np.random.Generator) -> int:
    """Take ASTRA's step; return the bytes of what it made."""
    n = len(table.weight)
    pool = torch.from_numpy(np.sort(rng.choice(n, UNIFORM, replace=False)))
    own = torch.from_numpy(rng.integers(n, size=len(queries) * OWN))
    rows, place = table.gather(pool)
    shared = queries @ rows[place].T
    mine = table.score_pairs(queries, torch.arange(len(queries)).repeat_interleave(OWN), own).view(len(queries), OWN)
    nothing = torch.zeros(1, dtype=torch.bool)
    loss = sum(weighted_bce(scores, nothing.expand_as(scores), None) for scores in (shared, mine))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    sgd.step(0.01)
    # rows read, twice for what is gathered by pairs; the queries by pairs; scores
    return 4 * ((len(pool) + 3 * len(own)) * queries.shape[1] + shared.numel() + mine.numel())


def every(weight: torch.Tensor, queries: torch.Tensor) -> None:
    """Take the step over all labels: what it makes are the scores and the gradient of all rows."""
    scores = queries @ weight.T
    weighted_bce(scores, torch.zeros(1, dtype=torch.bool).expand_as(scores), None).backward()
    assert weight.grad is not None
    with torch.no_grad():
        weight -= 0.01 * weight.grad
    weight.grad = None


def timed(step: Callable[[], object], steps: int) -> float:
    """Return the median milliseconds of a step, after two to warm up."""
    took = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        step()
        took.append(1000 * (time.perf_counter() - began))
    return float(np.median(took[2:]))


def main(dim: Count = 64, *labels: Count) -> None:
    """Print one row a number of labels."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    print(f"d = {dim}, batch {BATCH}, {OWN} own and {UNIFORM} uniform labels, {torch.get_num_threads()} threads")
    print(f"{'labels':>12}{'ASTRA ms':>12}{'all ms':>12}{'ratio':>8}{'ASTRA MB':>12}{'all MB':>12}{'ratio':>8}")
    for n in labels or (131_000, 1_300_000, 13_000_000):
        queries = F.normalize(torch.randn(BATCH, dim), dim=1)
        table = RowTable(torch.randn(n, dim).mul_(0.02)).train()
        sgd = RowSGD(table, momentum=0.9, weight_decay=1e-4)
        made = sampled(table, sgd, queries, rng)
        mine = timed(lambda table=table, sgd=sgd, queries=queries: sampled(table, sgd, queries, rng), STEPS)
        weight = table.weight
        del table, sgd
        dense, scores = f"{'-':>12}{'-':>8}", 4 * BATCH * n
        if COPIES * scores < psutil.virtual_memory().available:
            weight = weight.clone().requires_grad_()
            whole = timed(lambda weight=weight, queries=queries: every(weight, queries), 3)
            dense = f"{whole:>12.1f}{whole / mine:>8.1f}"
        held = scores + 4 * n * dim
        print(f"{n:>12,}{mine:>12.1f}{dense}{made / 1e6:>12.1f}{held / 1e6:>12.1f}{held / made:>8.1f}", flush=True)


if __name__ == "__main__":
    answer(main, __doc__)
