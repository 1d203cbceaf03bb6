"""Optimisers of row tables: Adam and SGD over the rows that a batch touches, their moments by value or by row.

A step is `begin` and then `update`, once for all rows that it touches or several times for some of them. Rows are
computed in float32; those of a bfloat16 table are rounded stochastically, by the step's `key`.
"""

import math

import torch

from xcmodels.nn.rounding import round_rows
from xcmodels.nn.row_table import BLOCK, Decay, RowTable

_BETAS, _EPSILON = (0.9, 0.999), 1e-8    # of Adam
_CACHED = 200_000                        # values that are updated at once: four arrays of so many fit a cache


class RowOptimiser:
    """What every optimiser of a row table can do.

    moments: the names of its tensors that a checkpoint must hold, with a row for each row of the table.
    """

    moments: tuple[str, ...] = ()

    def __init__(self, table: RowTable) -> None:
        self.table, self.lr, self.key = table, 0.0, 0

    def begin(self, lr: float, key: int = 0) -> None:
        """Begin a step at rate `lr`; key: of its rounding."""
        self.lr, self.key = lr, key

    @torch.no_grad()
    def update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Update rows (u,), sorted and unique, by their gradients (u, d).

        On a processor as many at once as a cache holds: each of a dozen passes over 8,000 rows of 384 values would read
        them from memory, and take half as much time again.
        """
        together = max(1, len(ids) if gradients.is_cuda else _CACHED // gradients.shape[1])
        for some, theirs in zip(ids.split(together), gradients.split(together), strict=True):
            self._update(some, theirs)

    def _update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Update rows by their gradients, as `update` does."""
        raise NotImplementedError

    def apply_pending_decay(self, key: int = 0) -> None:
        """Bring every row up to date; by default no update of a row is ever pending."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint must hold."""
        return {name: getattr(self, name) for name in self.moments}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        for name in self.moments:
            getattr(self, name).copy_(state[name])

    def _write(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Set rows."""
        if self.table.weight.dtype == torch.bfloat16:
            rows = round_rows(rows, ids + self.table.first, self.key)
        self.table.weight.index_copy_(0, ids, rows)

    def _zeros(self) -> torch.Tensor:
        """Return a moment of each value, (n, d)."""
        return torch.zeros_like(self.table.weight, dtype=self.table.dtype)


class RowAdam(RowOptimiser):
    """Adam over the rows that a batch touches; for a row, the steps that touch it are all there are.

    Its moments wait while it is not touched, and their bias is corrected by the number of its own touches. torch's
    SparseAdam corrects by the optimiser's steps: in the thousandth of them the first gradient of a row moves it by 2.5
    times the rate, the tenth by 5, so that rare tokens and labels are trained faster than frequent ones.
    """

    moments = ("mean", "square", "touches")

    def __init__(self, table: RowTable) -> None:
        super().__init__(table)
        self.mean, self.square, self.touches = self._zeros(), self._zeros(), _counts(table, torch.int32)

    def _update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        first, second = _BETAS
        mean = self.mean.index_select(0, ids).lerp_(gradients, 1 - first)
        square = self.square.index_select(0, ids).mul_(second).addcmul_(gradients, gradients, value=1 - second)
        self.mean.index_copy_(0, ids, mean)
        self.square.index_copy_(0, ids, square)
        touches = _touch(self.touches, ids)
        bias = _share(first, touches).div_(_share(second, touches).sqrt_()).to(mean.dtype)
        mean.div_(bias[:, None])
        self._write(ids, self.table.current(ids).addcdiv_(mean, square.sqrt_().add_(_EPSILON), value=-self.lr))


class RowwiseAdam(RowOptimiser):
    """RowAdam with two numbers a row in place of two a value: the mean of the second moments, and how often it moved.

    There is no first moment: a gradient is taken for its unbiased mean, so that learning rates are RowAdam's.
    """

    moments = ("square", "touches")

    def __init__(self, table: RowTable) -> None:
        super().__init__(table)
        self.square = table.weight.new_zeros(len(table.weight), dtype=table.dtype)
        self.touches = _counts(table, torch.int32)

    def _update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        _, second = _BETAS
        square = self.square[ids].mul_(second).add_(gradients.square().mean(1), alpha=1 - second)
        self.square.index_copy_(0, ids, square)
        bias = _share(second, _touch(self.touches, ids)).sqrt_().to(square.dtype)
        scale = bias.div_(square.sqrt_().add_(_EPSILON))
        self._write(ids, self.table.current(ids).addcmul_(gradients, scale[:, None], value=-self.lr))


class RowSGD(RowOptimiser):
    """SGD with momentum and decoupled weight decay over the rows that a batch touches.

    A row's momentum waits while it is not touched, as RowAdam's moments do. Decay does not wait: a step at rate lr
    shrinks every row by the share lr * weight_decay, and a row catches up with the steps it missed when next read, so
    that the cost of a step is that of the touched rows: w <- w * product over missed t of (1 - lr_t * weight_decay).
    """

    moments = ("velocity",)

    def __init__(self, table: RowTable, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(table)
        self.momentum, self.weight_decay = momentum, weight_decay
        self._build_moments()
        self.decay = Decay(table.weight, table.dtype)
        table.decay = self.decay if weight_decay else None

    def _build_moments(self) -> None:
        self.velocity = self._zeros()

    def begin(self, lr: float, key: int = 0) -> None:
        super().begin(lr, key)
        self.decay.log_before = self.decay.log_total
        self.decay.log_total = self.decay.log_total + math.log1p(-lr * self.weight_decay)

    def _update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Update rows; each of their values is read and written once."""
        velocity = self._velocity(ids, gradients)
        self._write(ids, self.table.current(ids).sub_(velocity, alpha=self.lr))

    def _velocity(self, ids: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        """Return what rows move along, (u, d)."""
        velocity = self.velocity.index_select(0, ids).mul_(self.momentum).add_(gradients)
        self.velocity.index_copy_(0, ids, velocity)
        return velocity

    def _write(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Set rows without pending decay."""
        super()._write(ids, rows)
        self.decay.log_applied[ids] = self.decay.log_total.to(self.decay.log_applied.device)

    @torch.no_grad()
    def apply_pending_decay(self, key: int = 0) -> None:
        """Apply the pending decay of every row, so that the whole table can be read."""
        self.key = key
        for start in range(0, len(self.table.weight), BLOCK):
            ids = torch.arange(start, min(start + BLOCK, len(self.table.weight)), device=self.table.weight.device)
            self._write(ids, self.table.current(ids))

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint must hold.

        Pending decay is not applied for it: the result of a run must not depend on when it was saved.
        """
        return {name: getattr(self, name) for name in self.moments} | {
            "log_applied": self.decay.log_applied, "log_total": self.decay.log_total}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        super().restore(state)
        self.decay.log_applied.copy_(state["log_applied"])
        self.decay.log_total = state["log_total"].double().cpu()


class RowwiseSGD(RowSGD):
    """RowSGD with one number a row in place of one a value: how often it moved.

    There is no momentum: the k-th gradient of a row moves it by as much as k equal gradients would with momentum, so
    that learning rates are RowSGD's.
    """

    moments = ("touches",)

    def _build_moments(self) -> None:
        short = self.momentum**255 < 1e-6    # to 255: 0.9^255 is 0 in all digits that matter, 0.99^255 is not
        self.touches = _counts(self.table, torch.uint8 if short else torch.int32)

    def _velocity(self, ids: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        share = _share(self.momentum, _touch(self.touches, ids)).to(gradients.dtype)
        return gradients * share.div_(1 - self.momentum)[:, None]


def _counts(table: RowTable, dtype: torch.dtype) -> torch.Tensor:
    """Return a count of each row, (n,)."""
    return table.weight.new_zeros(len(table.weight), dtype=dtype)


def _touch(touches: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Count a touch of rows (u,), as far as the type of `touches` counts; return how many each has had, float64."""
    counts = touches[ids].long().add_(1).clamp_(max=torch.iinfo(touches.dtype).max)
    touches[ids] = counts.to(touches.dtype)
    return counts.double()


def _share(beta: float, touches: torch.Tensor) -> torch.Tensor:
    """Return 1 - beta^k, (u,): of a value that does not change, the share in its moving mean after k touches."""
    return torch.expm1(touches * math.log(beta)).neg_() if beta else torch.ones_like(touches)
