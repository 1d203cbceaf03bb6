"""What does the card itself reach: products of matrices, copies? Shares of other tables are of these rates."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.scale import CUDA, Scale, product_rate
from benchmarks.gpu.tables import Row


def rows(scale: Scale) -> Iterator[Row]:
    """Yield a row for each type of product and each kind of copy."""
    side = scale.sizes.product
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        yield {"what": f"product of {side} x {side}, {precision}",
               "T a second": product_rate(scale.device, side, dtype) / 1e12, "of": "operations"}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")    # as training does
    try:
        left, right = (torch.randn(side, side, device=scale.device) for _ in range(2))
        seconds = scale.seconds(lambda: left @ right)
    finally:
        torch.set_float32_matmul_precision(before)
    yield {"what": f"product of {side} x {side}, float32 as training multiplies it",
           "T a second": 2 * side**3 / seconds / 1e12, "of": "operations"}
    numbers = torch.randn(side * side, device=scale.device)
    copy = torch.empty_like(numbers)
    yield {"what": "copy within its memory, read and written",
           "T a second": 2 * numbers.nbytes / scale.seconds(lambda: copy.copy_(numbers)) / 1e12, "of": "bytes"}
    if scale.device == CUDA:
        for kind, host in (("pageable", torch.empty(side * side)), ("pinned", torch.empty(side * side).pin_memory())):
            seconds = scale.seconds(lambda host=host: copy.copy_(host, non_blocking=True))
            yield {"what": f"copy from {kind} memory of the host", "T a second": host.nbytes / seconds / 1e12,
                   "of": "bytes"}
