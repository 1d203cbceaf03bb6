"""The device that trains and embeds, how its products are computed, and what becomes of memory that is freed."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch

_KEPT_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"    # which oneDNN reads at a process' first product
# Pools of labels differ in size by batch: of 1,024 kernels kept for UniDEC's (270 MB), hardly one was used again. The
# shapes of a transformer's texts repeat, and are some hundreds.
_FEW, _MANY = "64", "1024"


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

    NGAME's scores took 9 ms, not 13. On a CPU they stay in single precision. With AMX oneDNN would round them to bf16:
    vectors of texts would differ by 1e-4 from those that are served, and exact search would not be exact. So MKL
    computes there, and a step takes 1.03 to 1.18 of the time. A GPU multiplies TF32.
    Last digits differ from MKL's, so each step that trains, mines or embeds enables it itself, and its result does not
    depend on what its process did before. Evaluation and serving do not use it.
    """
    os.environ.setdefault(_KEPT_KERNELS, _FEW)
    before = torch.get_float32_matmul_precision()
    rounds = device().type == "cpu" and torch.cpu.get_capabilities().get("amx_bf16", False)
    torch.set_float32_matmul_precision("highest" if rounds else "medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of a transformer, too, unless the process has multiplied or has another number."""
    if os.environ.get(_KEPT_KERNELS, _FEW) == _FEW:
        os.environ[_KEPT_KERNELS] = _MANY
