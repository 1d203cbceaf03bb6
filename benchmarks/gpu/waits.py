"""What makes the host wait for a GPU inside a step: operations counted on any device, and a GPU's idle time.

While the host waits it launches nothing, and the GPU idles until the next launch. An operation whose result's shape
depends on values waits, as does a number that Python reads.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select",
           "bincount", "is_nonzero", "equal")


class HostWaits(TorchDispatchMode):
    """Counts by name the operations in its block for which the host would wait on a GPU, backward passes included.

    on_host: tensors that stay on the host and are read without a wait, such as an optimiser's numbers of steps.
    """

    def __init__(self, on_host: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.counts, self.on_host = Counter[str](), {id(tensor) for tensor in on_host}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_flags = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1])
        unsized = name == "repeat_interleave" and "output_size" not in (kwargs or {})
        if (name in WAITING or by_flags or unsized) and id(args[0]) not in self.on_host:
            self.counts[f"{name} by flags" if by_flags else name] += 1
        return func(*args, **(kwargs or {}))


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length that intervals (start, end) cover together."""
    covered, reached = 0.0, -float("inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def busy_seconds(profile: Any) -> float:
    """Return the seconds in which a GPU computed or copied while a `torch.profiler.profile` ran."""
    from torch.autograd import DeviceType

    return 1e-6 * union((event.time_range.start, event.time_range.end) for event in profile.events()
                        if event.device_type == DeviceType.CUDA)
