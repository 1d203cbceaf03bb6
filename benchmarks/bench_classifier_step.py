"""What does ASTRA's classifier step cost as labels grow, against a step over all labels? (ASTRA, Tables 3 and 4)

    python -m benchmarks.bench_classifier_step [dim] [labels ...]

A step leaves out the encoder: gather the rows of the batch's labels, score, binary cross-entropy, backward, SGD on the
rows. The step over all labels is a dense matrix product and dense SGD; it is skipped where it does not fit in memory.
The memory columns are formulas, not measurements: what a step needs at least, with one copy of what it computes. The
last columns are ASTRA's step with table_dtype=bfloat16 and table_moments=rowwise, taken in turn with the first, and the
bytes of a label with its moments in either.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import psutil
import torch
import torch.nn.functional as F

from benchmarks.arguments import Count, at_least, run
from benchmarks.measuring import timed
from xcmodels.nn.losses import weighted_bce
from xcmodels.nn.row_optimisers import RowSGD, RowwiseSGD
from xcmodels.nn.row_table import RowTable

BATCH, OWN, UNIFORM, STEPS = 512, 60, 1600, 12
DENSE_COPIES = 5    # the dense step was seen to keep four copies of all scores, and the gradient of the rows


def sampled_step(table: RowTable, sgd: RowSGD, queries: torch.Tensor, rng: np.random.Generator) -> int:
    """Take ASTRA's step; return the bytes that it needs at least, which do not depend on the number of labels."""
    n, device = len(table.weight), queries.device
    pool = torch.from_numpy(np.sort(rng.choice(n, UNIFORM, replace=False))).to(device)
    own = torch.from_numpy(rng.integers(n, size=len(queries) * OWN)).to(device)
    rows, place = table.gather(pool)
    pool_scores = queries @ rows[place].T
    own_scores = table.score_pairs(queries, torch.arange(len(own), device=device) // OWN, own).view(-1, OWN)
    no_positives = torch.zeros(1, dtype=torch.bool, device=device)
    loss = sum(weighted_bce(scores, no_positives.expand_as(scores), None) for scores in (pool_scores, own_scores))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    touched = table.take_gradients()
    assert touched is not None
    sgd.begin(0.01)
    sgd.update(*touched)
    # gathered rows, those of pairs twice; the queries of pairs; scores
    return 4 * ((len(pool) + 3 * len(own)) * queries.shape[1] + pool_scores.numel() + own_scores.numel())


def dense_step(weight: torch.Tensor, queries: torch.Tensor) -> None:
    """Take the step over all labels; it needs the scores and the gradient of all rows at least."""
    scores = queries @ weight.T
    weighted_bce(scores, torch.zeros(1, dtype=torch.bool, device=scores.device).expand_as(scores), None).backward()
    assert weight.grad is not None
    with torch.no_grad():
        weight -= 0.01 * weight.grad
    weight.grad = None


def alternating_ms(steps: Sequence[Callable[[], object]], times: int) -> list[float]:
    """Return the median milliseconds of several steps taken in turn, after two rounds of warm-up."""
    rounds = [[1000 * timed(step)[1] for step in steps] for _ in range(times + 2)]
    return np.median(rounds[2:], axis=0).tolist()


def bytes_a_label(table: RowTable, sgd: RowSGD) -> float:
    """Return the bytes that training holds for a label: its row and the optimiser's moments of it."""
    held = [table.weight, *(moment for moment in sgd.state().values() if moment.ndim)]
    return sum(tensor.nbytes for tensor in held) / len(table.weight)


def main(dim: Count = 64, *labels: Annotated[int, at_least(UNIFORM)]) -> None:
    """Print one row per number of labels."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    print(f"d = {dim}, batch {BATCH}, {OWN} own and {UNIFORM} uniform labels, {torch.get_num_threads()} threads")
    print(f"{'labels':>12}{'ASTRA ms':>12}{'all ms':>12}{'ratio':>8}{'ASTRA, MB >=':>14}{'all, MB >=':>12}{'ratio':>8}"
          f"{'bf16 ms':>12}{'bytes':>8}{'bf16':>8}")
    for n in labels or (131_000, 1_300_000, 13_000_000):
        queries = F.normalize(torch.randn(BATCH, dim), dim=1)
        weight = torch.randn(n, dim).mul_(0.02)
        kinds = []
        for held, kind in ((weight, RowSGD), (weight.bfloat16(), RowwiseSGD)):
            table = RowTable(held).train()
            kinds.append((table, kind(table, momentum=0.9, weight_decay=1e-4)))
        sampled_bytes = sampled_step(*kinds[0], queries, rng)
        full, low = alternating_ms([lambda kind=kind, queries=queries: sampled_step(*kind, queries, rng)
                                    for kind in kinds], STEPS)
        held_bytes = [bytes_a_label(*kind) for kind in kinds]
        del table, kinds
        dense, score_bytes = f"{'-':>12}{'-':>8}", 4 * BATCH * n
        if DENSE_COPIES * score_bytes < psutil.virtual_memory().available:
            weight = weight.clone().requires_grad_()
            [dense_ms] = alternating_ms([lambda weight=weight, queries=queries: dense_step(weight, queries)], 3)
            dense = f"{dense_ms:>12.1f}{dense_ms / full:>8.1f}"
        dense_bytes = score_bytes + 4 * n * dim
        print(f"{n:>12,}{full:>12.1f}{dense}{sampled_bytes / 1e6:>14.1f}{dense_bytes / 1e6:>12.1f}"
              f"{dense_bytes / sampled_bytes:>8.1f}{low:>12.1f}{held_bytes[0]:>8.0f}{held_bytes[1]:>8.0f}", flush=True)


if __name__ == "__main__":
    run(main, __doc__)
