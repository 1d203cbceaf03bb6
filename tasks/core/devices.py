"""Which devices this machine has to train on."""

import shutil
import sys
from pathlib import Path

DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")    # what a GPU's driver makes in /dev: NVIDIA, AMD, Windows below Linux


def gpus() -> int:
    """Return how many GPUs torch sees; torch, which takes seconds to import, is asked where there may be one."""
    if sys.platform == "linux" and not any(list(Path("/dev").glob(name)) for name in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def standing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def free_space(folder: Path) -> int:
    """Return the bytes that are free where a folder is, or would be."""
    return shutil.disk_usage(standing(folder)).free
