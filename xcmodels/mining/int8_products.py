"""Inner products of vectors quantised to int8: exact, in any order, block or thread."""

import numpy as np
import torch

MAX_EXACT = 1 << 24    # float32 holds every whole number up to it, and no product here exceeds it
# Vectors that are held as floats at once, where integers cannot be multiplied: of more, a thread's heap keeps too much.
_BLOCK = 1 << 11


def largest_entry(dim: int) -> int:
    """Return the largest entry of vectors of `dim` integers: int8 holds it, and no product exceeds MAX_EXACT."""
    return min(127, int((MAX_EXACT / dim) ** 0.5))


def quantised(vectors: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    """Return vectors (n, d) times `scale`, one factor or (n, 1), as int8; larger entries than allowed are cut."""
    most = largest_entry(vectors.shape[1])
    return np.rint(np.clip(vectors * scale, -most, most)).astype(np.int8)


def quantised_rows(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, d) as int8, each at the scale at which its largest entry is the largest allowed."""
    peak = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    return quantised(vectors, largest_entry(vectors.shape[1]) / np.where(peak > 0, peak, 1))


def products(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the inner products int32 (n, m) of int8 vectors (n, d) and (m, d), in `out` if that is given.

    Where the processor has no products of int8 (VNNI), floats give the same, since they hold all sums exactly.
    """
    if out is None:
        out = torch.empty((len(left), len(right)), dtype=torch.int32)
    if left.shape[1] > 1 and torch.cpu._is_vnni_supported():    # of one dimension, torch 2.13 returns anything
        return torch._int_mm(left, right.T, out=out)
    floats = left.float()
    for start in range(0, len(right), _BLOCK):    # floats of all would take four times the memory of the vectors
        out[:, start:start + _BLOCK] = floats @ right[start:start + _BLOCK].float().T
    return out
