"""Arrays mapped from files."""

from pathlib import Path

import numpy as np


def mapped(path: Path) -> np.ndarray:
    """Map an array, not to be written to; a plain one, since each row taken from a memmap costs microseconds."""
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
