"""Matrices of which a batch touches few rows: token embeddings, label classifiers.

A dense optimiser would read and write the whole matrix at every step. Here a step gathers the rows that
a batch names into a small leaf, lets autograd fill its gradient, and scatters the updated rows back, so a step
costs what the batch touches, whatever the size of the vocabulary or of the label set.
"""

import torch
from torch import nn


class RowTable(nn.Module):
    """An (n, d) matrix trained by rows."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []

    def gather(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rows (u, d), place (k,)) with `rows[place]` the rows of `ids` (k,).

        In training mode the rows are leaves whose gradient the table's optimiser will use.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self.weight, ids
        unique, place = torch.unique(ids, return_inverse=True)
        leaf = self.weight[unique].requires_grad_()
        self._gathered.append((unique, leaf))
        return leaf, place

    def take_gradients(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the touched rows' ids (u,), sorted, and gradients (u, d), and forget them; None if untouched."""
        touched = [(ids, leaf.grad) for ids, leaf in self._gathered if leaf.grad is not None]
        self._gathered.clear()
        if len(touched) <= 1:
            return touched[0] if touched else None
        ids, place = torch.unique(torch.cat([ids for ids, _ in touched]), return_inverse=True)
        gradients = self.weight.new_zeros(len(ids), self.weight.shape[1])
        return ids, gradients.index_add_(0, place, torch.cat([g for _, g in touched]))


class RowAdam:
    """Adam over the rows that a batch touches; a row's moments wait while it is not touched.

    The update is torch's SparseAdam: moments of untouched rows do not decay, the bias correction
    counts the optimiser's steps.
    """

    def __init__(self, table: RowTable, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.table, self.betas, self.eps, self.steps = table, betas, eps, 0
        self.mean = torch.zeros_like(table.weight)
        self.square = torch.zeros_like(table.weight)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the touched rows with learning rate `lr`."""
        self.steps += 1
        touched = self.table.take_gradients()
        if touched is None:
            return
        ids, gradients = touched
        first, second = self.betas
        mean = self.mean[ids].lerp_(gradients, 1 - first)
        square = self.square[ids].mul_(second).addcmul_(gradients, gradients, value=1 - second)
        self.mean[ids], self.square[ids] = mean, square
        scale = lr * (1 - second**self.steps) ** 0.5 / (1 - first**self.steps)
        self.table.weight[ids] -= scale * mean / square.sqrt_().add_(self.eps)

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint must hold."""
        return {"mean": self.mean, "square": self.square, "steps": torch.tensor(self.steps)}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Take up the state of a checkpoint."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.steps = int(state["steps"])
