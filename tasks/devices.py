"""Which devices this machine has to train on."""

import sys
from pathlib import Path

DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")    # what a GPU's driver makes in /dev: NVIDIA, AMD, Windows below Linux


def has_gpu() -> bool:
    """Return whether torch sees a GPU; torch, which takes seconds to import, is asked where there may be one."""
    if sys.platform == "linux" and not any(list(Path("/dev").glob(name)) for name in DRIVERS):
        return False
    import torch

    return bool(torch.cuda.is_available())
