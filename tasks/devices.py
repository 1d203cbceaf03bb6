"""Which devices this machine has to train on."""

import sys
from pathlib import Path

DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")    # what a GPU's driver makes in /dev: NVIDIA, AMD, Windows below Linux


def gpus() -> int:
    """Return how many GPUs torch sees; torch, which takes seconds to import, is asked where there may be one."""
    if sys.platform == "linux" and not any(list(Path("/dev").glob(name)) for name in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
