"""The device that trains and embeds, how its products are computed, and what becomes of memory that is freed."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch


def device() -> torch.device:
    """Return the accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep large blocks that are freed, up to 2 GB, for the next step's tensors.

    By default they go back to the kernel, and every page of the next step is faulted in anew: 12% of the CPU time of
    UniDEC's CPU preset, 10% of ASTRA's. Without glibc, do nothing.
    """
    trim_threshold, mmap_threshold = -1, -3
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


@contextmanager
def fast_products() -> Iterator[None]:
    """Compute matrix products by oneDNN, not MKL, which uses only half of the vector width of AMD's processors.

    NGAME's scores took 9 ms, not 13. They stay in single precision, except on hardware that multiplies bf16 or TF32.
    Last digits differ from MKL's, so each step that trains, mines or embeds enables it itself, and its result does not
    depend on what its process did before. Evaluation and serving do not use it.
    """
    # Pools differ in size by batch: of 1,024 cached kernels for UniDEC's (270 MB), hardly one was reused.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
