"""Processes that train one model together, as `torchrun` starts them; without it, one process that does it all.

All take the same steps on the same batches. Each holds a share of the rows of every label table with their moments, and
encodes a share of a batch's texts where the encoder is a transformer. Vectors and rows are then gathered, and each
process computes what follows in full: the loss, and what is trained by it, are those of one process.
"""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def join() -> None:
    """Take part with the processes that `torchrun` started beside this one, if it did: over NCCL, or gloo on CPUs."""
    if "RANK" not in os.environ or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def leave(code: int = 0) -> None:
    """End this process, if others were beside it, without taking the interpreter down.

    gloo's threads outlive it at times, and one process of ten then aborted with all its work done and written.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rank() -> int:
    """Return which of the processes this is."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """Return how many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(n: int) -> slice:
    """Return which of n rows are this process's: as many as another's, or one more."""
    return slice(n * rank() // count(), n * (rank() + 1) // count())


def wait() -> None:
    """Return once every process is here."""
    if count() > 1:
        dist.barrier()


def first(value: Any) -> Any:
    """Return what the first process calls this with."""
    if count() == 1:
        return value
    told = [value]
    dist.broadcast_object_list(told)
    return told[0]


def agreed(device: torch.device, *flags: bool) -> list[bool]:
    """Return the flags of the first process: what depends on a clock or a signal may not be decided by each."""
    if count() == 1:
        return list(flags)
    told = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.broadcast(told, 0)
    return [bool(flag) for flag in told.tolist()]


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over processes of a tensor of one shape, in its place."""
    if count() > 1:
        dist.all_reduce(tensor)
    return tensor


def averaged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over processes of a tensor of one shape, in its place."""
    return summed(tensor).div_(count()) if count() > 1 else tensor


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every process the mean of the gradients; one that has none where others do counts as zero."""
    if count() == 1:
        return
    each = list(parameters)
    device = each[0].device
    there = torch.tensor([one.grad is not None for one in each], dtype=torch.uint8, device=device)
    dist.all_reduce(there, dist.ReduceOp.MAX)
    trained = [one for one, has in zip(each, there.tolist(), strict=True) if has]
    for one in trained:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    if not trained:
        return
    flat = averaged(torch.cat([one.grad.ravel() for one in trained if one.grad is not None]))
    for one, grad in zip(trained, flat.split([one.numel() for one in trained]), strict=True):
        one.grad = grad.view_as(one)


def by_shares(n: int, encode: Callable[[slice], torch.Tensor]) -> torch.Tensor:
    """Return encode(slice(0, n)), (n, d), of which each process makes its share.

    In training the gradient of a share goes back to the process that made it, times the number of processes: the mean
    over them, which `average_gradients` takes, is that of the whole. What `encode` draws at random changes no later
    draw, so that processes stay in step.
    """
    if count() == 1:
        return encode(slice(0, n))
    seed = int(torch.randint(1 << 62, ()))
    state = torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.manual_seed(seed + rank())    # no process drops what another does
    own = encode(share(n))
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
    gathered: torch.Tensor = _Gather.apply(own, n)
    return gathered


class _Gather(torch.autograd.Function):
    """(own rows, d) of each process -> (n, d)."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, n: int) -> torch.Tensor:
        ctx.n = n
        most = -(-n // count())
        padded = own.new_zeros(most, own.shape[1])
        padded[:len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(count())]
        dist.all_gather(parts, padded)
        bounds = [n * each // count() for each in range(count() + 1)]
        return torch.cat([part[:end - start] for part, start, end in zip(parts, bounds, bounds[1:], strict=False)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient[share(ctx.n)] * count(), None
