"""Operations whose gradients or random draws are faster than torch's own.

Scores of which few are trained, sums of embeddings, normalisation, dropout.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")
V = TypeVar("V", torch.Tensor, np.ndarray)


class SparseGradScores:
    """The inner products of rows (R, d) with columns (C, d).

    A loss over the hardest pairs trains some thirty scores of a row's thousand. Their gradient as a dense matrix is
    mostly zeros, and multiplying by it costs twice as much as the scores themselves.
    """

    def __init__(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        self.rows, self.columns = rows, columns
        with torch.no_grad():
            self.values = rows @ columns.T    # (R, C), without gradient

    def pick(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the scores at `slots` (R, k), columns of each row, with gradient to both sides."""
        return _Pick.apply(self.rows, self.columns, self.values, slots)


class _Pick(torch.autograd.Function):
    """rows (R, d), columns (C, d), their products (R, C), slots (R, k) -> (R, k)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor,
                slots: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, columns, slots)
        return values.gather(1, slots)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, columns, slots = ctx.saved_tensors
        if rows.is_cuda:    # where dense products are faster than sorting
            dense = gradient.new_zeros(len(rows), len(columns)).scatter_add_(1, slots, gradient)
            return dense @ columns, dense.T @ rows, None, None
        row_gradient = F.embedding_bag(slots, columns, per_sample_weights=gradient, mode="sum") \
            if ctx.needs_input_grad[0] else None
        # transposed: for each column the rows that chose it
        order = slots.flatten().argsort(stable=True)
        starts = slots.flatten().bincount(minlength=len(columns)).cumsum(0).roll(1)
        starts[0] = 0
        column_gradient = F.embedding_bag(order // slots.shape[1], rows, starts, mode="sum",
                                          per_sample_weights=gradient.flatten()[order])
        return row_gradient, column_gradient, None, None


def normalise(vectors: V) -> V:
    """Return vectors (..., d) at unit length, of arrays as float32; zero vectors stay, with zero gradient.

    The gradient of v / |v| is the incoming gradient without its part along v, divided by |v|: a quarter of the time of
    F.normalize, whose operations torch differentiates one by one.
    """
    if isinstance(vectors, torch.Tensor):
        return _Normalise.apply(vectors)
    lengths = np.sqrt(np.vecdot(vectors, vectors))[..., None]
    return (vectors / np.where(lengths <= 1e-12, np.inf, lengths)).astype(np.float32, copy=False)


class _Normalise(torch.autograd.Function):
    """(..., d) -> (..., d)."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor) -> torch.Tensor:
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        scale = torch.where(lengths <= 1e-12, 0.0, lengths.reciprocal())
        out = vectors * scale
        ctx.save_for_backward(out, scale)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        out, scale = ctx.saved_tensors
        return torch.addcmul(gradient, out, (gradient * out).sum(-1, keepdim=True), value=-1).mul_(scale)


def weighted_sums(rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return S weighted sums of rows for each of n texts, concatenated, (n, S * d).

    rows (u, d); weights (S, T) of T tokens; ids (T,) their rows; offsets (n + 1,) of the texts. Two thirds of the time
    of S of torch's own embedding bags.
    """
    return _Sums.apply(rows, weights, ids, offsets)


class _Sums(torch.autograd.Function):
    """rows (u, d), weights (S, T), ids (T,), offsets (n + 1,) -> (n, S * d)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor,
                offsets: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weights, ids, offsets)
        return torch.cat([_bags(ids, rows, offsets, sum_weights) for sum_weights in weights], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, weights, ids, offsets = ctx.saved_tensors
        sums, n = len(weights), len(offsets) - 1
        text = torch.arange(n, device=ids.device).repeat_interleave(offsets.diff(), output_size=len(ids))
        row_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            # transposed: for each row the sums that it is in
            order = ids.argsort(stable=True)
            within = (sums * text[order][:, None] + torch.arange(sums, device=ids.device)).flatten()
            starts = sums * F.pad(ids.bincount(minlength=len(rows)).cumsum(0), (1, 0))
            row_gradient = _bags(within, gradient.reshape(sums * n, -1), starts, weights[:, order].T.flatten())
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.stack([torch.ops.aten._embedding_bag_per_sample_weights_backward(
                part.contiguous(), rows, ids, offsets[:-1], text, 0) for part in gradient.chunk(sums, dim=1)])
        return row_gradient, weight_gradient, None, None


def _bags(ids: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(ids, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)


def recomputed(function: Callable[..., T], *tensors: torch.Tensor) -> T:
    """Return function(*tensors), of which nothing is kept: the backward pass computes it again, with the same draws."""
    return cast(T, checkpoint(function, *tensors, use_reentrant=True))


def dropout(vectors: torch.Tensor, share: float, training: bool) -> torch.Tensor:
    """Return vectors with dropout; on a CPU in half the time of F.dropout, which draws in one thread."""
    if not (training and share):
        return vectors
    if vectors.is_cuda:
        return F.dropout(vectors, share)
    return vectors * torch.rand_like(vectors).ge_(share).div_(1 - share)
