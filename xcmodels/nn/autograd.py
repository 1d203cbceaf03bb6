"""Operations whose gradients torch takes the long way, or whose draws.

Scores of which few are trained, sums of embeddings, vectors at unit length, dropout.
"""

from typing import Any

import torch
import torch.nn.functional as F


class Products:
    """The inner products of rows (R, d) with columns (C, d).

    A loss over the hardest pairs trains some thirty scores of a row's thousand. As a dense matrix their gradient is
    zeros for the most part, multiplied all the same, at twice what the scores themselves cost.
    """

    def __init__(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        self.rows, self.columns = rows, columns
        with torch.no_grad():
            self.values = rows @ columns.T    # (R, C), to look at

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Return the scores at `places` (R, k), columns of each row, to train: their gradient reaches both sides."""
        chosen: torch.Tensor = _Chosen.apply(self.rows, self.columns, self.values, places)
        return chosen


class _Chosen(torch.autograd.Function):
    """rows (R, d), columns (C, d), their products (R, C), places (R, k) -> (R, k)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor,
                places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, columns, places)
        return values.gather(1, places)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, columns, places = ctx.saved_tensors
        if rows.is_cuda:    # whose dense products take less time than sorting
            dense = gradient.new_zeros(len(rows), len(columns)).scatter_add_(1, places, gradient)
            return dense @ columns, dense.T @ rows, None, None
        of_rows = F.embedding_bag(places, columns, per_sample_weights=gradient, mode="sum") \
            if ctx.needs_input_grad[0] else None
        # The same the other way round: for each column the rows that chose it.
        order = places.flatten().argsort(stable=True)
        starts = places.flatten().bincount(minlength=len(columns)).cumsum(0).roll(1)
        starts[0] = 0
        of_columns = F.embedding_bag(order // places.shape[1], rows, starts, mode="sum",
                                     per_sample_weights=gradient.flatten()[order])
        return of_rows, of_columns, None, None


def direction(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors (..., d) at unit length; the origin stays where it is, and has no gradient.

    The gradient of v / |v| is that of its direction without the part along it, over |v|: a quarter of the time that
    torch's own takes, which follows each operation of F.normalize.
    """
    found: torch.Tensor = _Direction.apply(vectors)
    return found


class _Direction(torch.autograd.Function):
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
    """Return S sums of rows for each of n texts, end to end (n, S * d).

    rows (u, d); weights (S, T) of T tokens; ids (T,) their rows; offsets (n + 1,) where each text's begin. Two thirds
    of the time that as many of torch's own embedding bags take.
    """
    found: torch.Tensor = _Sums.apply(rows, weights, ids, offsets)
    return found


class _Sums(torch.autograd.Function):
    """rows (u, d), weights (S, T), ids (T,), offsets (n + 1,) -> (n, S * d)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor,
                offsets: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weights, ids, offsets)
        return torch.cat([_bags(ids, rows, offsets, each) for each in weights], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, weights, ids, offsets = ctx.saved_tensors
        sums, n = len(weights), len(offsets) - 1
        text = torch.arange(n, device=ids.device).repeat_interleave(offsets.diff(), output_size=len(ids))
        of_rows = of_weights = None
        if ctx.needs_input_grad[0]:
            # The same the other way round: for each row the sums that it is in.
            order = ids.argsort(stable=True)
            within = (sums * text[order][:, None] + torch.arange(sums, device=ids.device)).flatten()
            starts = sums * F.pad(ids.bincount(minlength=len(rows)).cumsum(0), (1, 0))
            of_rows = _bags(within, gradient.reshape(sums * n, -1), starts, weights[:, order].T.flatten())
        if ctx.needs_input_grad[1]:
            of_weights = torch.stack([torch.ops.aten._embedding_bag_per_sample_weights_backward(
                each.contiguous(), rows, ids, offsets[:-1], text, 0) for each in gradient.chunk(sums, dim=1)])
        return of_rows, of_weights, None, None


def _bags(ids: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(ids, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)


def dropout(vectors: torch.Tensor, share: float, training: bool) -> torch.Tensor:
    """Return what F.dropout does, by draws that take half of its time on a CPU, where it draws with one thread."""
    if not (training and share):
        return vectors
    if vectors.is_cuda:
        return F.dropout(vectors, share)
    return vectors * torch.rand_like(vectors).ge_(share).div_(1 - share)
