"""Distributed training over the processes of `torchrun`; a single process without it.

All processes take the same steps on the same batches. Each holds a shard of the rows of every label table with their
moments, and encodes a shard of a batch's texts where the encoder is a transformer. Vectors and rows are then gathered,
and each process computes the rest in full: losses and updates are those of one process. Machines share no files.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from xcmodels.nn.devices import device

BLOCK = 1 << 24    # bytes that one machine sends another at once, at least a row


def join() -> None:
    """Join the process group of `torchrun`, if this process is of one: over NCCL, or gloo on CPUs."""
    if "RANK" not in os.environ or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def exit_process(code: int = 0) -> None:
    """Exit this process, if it is one of several, without shutting the interpreter down.

    gloo's threads sometimes outlive the interpreter, and one process of ten then aborted after its work was written.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_on_first_machine() -> bool:
    """Return whether this process shares the files of the first one; torchrun numbers processes by machines."""
    return count() == 1 or os.environ["GROUP_RANK"] == "0"


def is_first_of_machine() -> bool:
    return count() == 1 or os.environ["LOCAL_RANK"] == "0"


def shard(n: int, process: int | None = None) -> slice:
    """Return a process's shard of n rows, by default this one's; shards differ by at most one row."""
    process = rank() if process is None else process
    return slice(n * process // count(), n * (process + 1) // count())


def wait() -> None:
    """Wait until every process calls this."""
    if count() > 1:
        dist.barrier()


def broadcast(value: Any) -> Any:
    """Return the first process's value."""
    if count() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def any_process(device: torch.device, *flags: bool) -> list[bool]:
    """Return which flags any process raised: decisions by clocks or signals must be the same in every process."""
    if count() == 1:
        return list(flags)
    values = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return [bool(flag) for flag in values.tolist()]


def check_same(value: Any, what: str) -> None:
    """Raise RuntimeError where the first process has another `value` than this one."""
    if broadcast(value) != value:
        raise RuntimeError(f"machines that train together have different {what}")


def rows_for_first_machine(own: torch.Tensor, n: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first row, rows) of a tensor of n rows in all, of which each process calls this with its shard.

    A process of the first machine gets its own shard; the first process of all also gets those of other machines, in
    blocks.
    """
    if is_on_first_machine():
        yield shard(n).start, own
    others = range(int(os.environ["LOCAL_WORLD_SIZE"]), count()) if rank() == 0 else \
        [] if is_on_first_machine() else [rank()]
    step = max(1, BLOCK // (math.prod(own.shape[1:]) * own.element_size()))
    for process in others:
        part = shard(n, process)
        for first in range(part.start, part.stop, step):
            end = min(first + step, part.stop)
            if rank() == process:
                dist.send(own[first - part.start:end - part.start].contiguous(), 0)
            else:
                rows = own.new_empty(end - first, *own.shape[1:])
                dist.recv(rows, process)
                yield first, rows


def copy_to_other_machines(folder: Path) -> None:
    """Make the files in `folder` of every machine those of the first one."""
    if count() == 1 or os.environ["GROUP_WORLD_SIZE"] == "1":
        return
    writes = not is_on_first_machine() and is_first_of_machine()
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
    found = broadcast([(file.name, file.stat().st_size) for file in folder.iterdir()] if rank() == 0 else None)
    for name, size in found:
        content = torch.empty(0, dtype=torch.uint8)
        if rank() == 0 or writes:    # mapped
            content = torch.from_file(str(folder / name), shared=writes, size=size, dtype=torch.uint8)
        for start in range(0, size, BLOCK):
            end = min(start + BLOCK, size)
            block = content[start:end].to(device()) if rank() == 0 else \
                torch.empty(end - start, dtype=torch.uint8, device=device())
            dist.broadcast(block, 0)
            if writes:
                content[start:end] = block.cpu()
    wait()


def sum_over_processes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over processes of a tensor of the same shape, in place."""
    if count() > 1:
        dist.all_reduce(tensor)
    return tensor


def mean_over_processes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over processes of a tensor of the same shape, in place."""
    return sum_over_processes(tensor).div_(count()) if count() > 1 else tensor


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients over processes; a missing gradient counts as zero where another process has one."""
    if count() == 1:
        return
    weights = list(parameters)
    device = weights[0].device
    has_grad = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.uint8, device=device)
    dist.all_reduce(has_grad, dist.ReduceOp.MAX)
    trained = [weight for weight, has in zip(weights, has_grad.tolist(), strict=True) if has]
    for weight in trained:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    if not trained:
        return
    flat = mean_over_processes(torch.cat([weight.grad.ravel() for weight in trained if weight.grad is not None]))
    for weight, grad in zip(trained, flat.split([weight.numel() for weight in trained]), strict=True):
        weight.grad = grad.view_as(weight)


def by_shares(sizes: np.ndarray, encode: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
    """Return encode(all texts), (n, d), of which each process computes its share; sizes (n,): tokens of each text.

    A share is every so many-th text by size: of queries and label texts one after another, a process would get the
    short labels, and wait for the others at every step. In training the gradient of a share goes back to its process,
    times the number of processes, so that the mean of `average_gradients` is the gradient of the whole. Random draws in
    `encode` change no later draw, so that processes stay in sync.
    """
    seed = int(torch.randint(1 << 62, ()))
    state = torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.manual_seed(seed + rank())    # dropout differs between processes
    order = np.argsort(sizes, kind="stable")
    own = encode(order[rank()::count()])
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
    return _Gather.apply(own, torch.from_numpy(order).to(own.device))


class _Gather(torch.autograd.Function):
    """(own rows, d) of each process, every count-th of `order`, -> (n, d)."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(order)
        n = len(order)
        padded = own.new_zeros(-(-n // count()), own.shape[1])
        padded[:len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(count())]
        dist.all_gather(parts, padded)
        in_turn = torch.stack(parts, 1).flatten(0, 1)[:n]    # a row of each process, again and again
        return torch.empty_like(in_turn).index_copy_(0, order, in_turn)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (order,) = ctx.saved_tensors
        return gradient[order[rank()::count()]] * count(), None
