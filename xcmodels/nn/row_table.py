"""Matrices trained by rows: token embeddings, classifiers.

A dense optimiser would read and write the whole matrix at every step. Here a step gathers the rows that a batch uses
into a small leaf, lets autograd fill its gradient, and scatters the updated rows back, so the cost of a step does not
depend on the size of the vocabulary or of the label set.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from xcmodels.nn import distributed
from xcmodels.nn.autograd import normalise

BLOCK = 1 << 16    # rows of a whole table that are computed at once
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}    # that a table can be held in

Rows = tuple[torch.Tensor, torch.Tensor]    # ids (u,), sorted and unique, with the gradient of each (u, d)


class RowTable(nn.Module):
    """An (n, d) matrix trained by rows; of several processes, each holds some rows, from `first` on.

    Rows are read as float32, whether they are held in float32 or in bfloat16.
    name: that of its RowRule in a TrainingPlan, "tokens" or "labels".
    """

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor, *, name: str = "tokens", n: int | None = None, first: int = 0) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.name, self.n, self.first = name, len(weight) if n is None else n, first
        self.holds_all_rows = n is None or distributed.count() == 1    # alike in every process: all of them then sum
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._summed: list[Rows] = []    # gradients of rows gathered earlier in the step
        self.trained = True    # whether it has an optimiser; otherwise its rows need no gradient
        self.in_parts = False    # each row is gathered once a step, so that its gradient is then complete
        self.update: Callable[[torch.Tensor, torch.Tensor], None] | None = None    # in a step: of its optimiser
        self.decay: Decay | None = None    # of its weights, pending for rows that are not touched

    @classmethod
    def sharded(cls, n: int, rows: Callable[[slice], torch.Tensor]) -> "RowTable":
        """Return a table of this process's shard of the rows of n labels; `rows` returns those of a slice."""
        part = distributed.shard(n)
        return cls(rows(part), name="labels", n=n, first=part.start)

    @classmethod
    def zeros(cls, n: int, dim: int, dtype: str = "float32") -> "RowTable":
        """Return a table of this process's shard of n labels' rows of zeros."""
        return cls.sharded(n, lambda part: torch.zeros(part.stop - part.start, dim, dtype=DTYPES[dtype]))

    @property
    def dtype(self) -> torch.dtype:
        """The type in which rows are read and updated."""
        return torch.float32 if self.weight.dtype == torch.bfloat16 else self.weight.dtype

    def set_all(self, rows: Callable[[np.ndarray], np.ndarray]) -> None:
        """Set every row that is held here; `rows` returns those of ids (m,), BLOCK at a time."""
        for start in range(0, len(self.weight), BLOCK):
            part = self.weight[start:start + BLOCK]
            part.copy_(torch.from_numpy(rows(np.arange(start, start + len(part)) + self.first)))

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of `ids` (k,), sorted and unique; the same ids in every process."""
        begun = self.update is not None    # parts of a backward pass read the rows that the forward pass did
        if self.holds_all_rows:
            return self.current(ids, before=begun)
        local, part = self._local(ids)
        rows = self.weight.new_zeros(len(ids), self.weight.shape[1], dtype=self.dtype)
        rows[part] = self.current(local, before=begun)
        return distributed.sum_over_processes(rows)

    def read_all(self) -> np.ndarray:
        """Return every row, (n, d), as `read` does."""
        return self.read(torch.arange(self.n, device=self.weight.device)).cpu().numpy()

    def current(self, ids: torch.Tensor, *, before: bool = False) -> torch.Tensor:
        """Return the rows of `weight` (k,) with pending decay applied; the table is unchanged.

        before: without the decay of the step that was begun last, which must not have updated them yet.
        """
        rows = self.weight.index_select(0, ids).to(self.dtype)
        return rows if self.decay is None else rows.mul_(self.decay.missed(ids, before=before))

    def gather(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rows (u, d), inverse (k,)) with `rows[inverse]` the rows of `ids` (k,).

        In training mode the rows of a table that is trained are a leaf whose gradient `take_gradients` will return.
        """
        learns = self.trained and self.training and torch.is_grad_enabled()
        if not learns and self.holds_all_rows and self.dtype == self.weight.dtype:
            return self.weight, ids
        unique, inverse = torch.unique(ids.long(), return_inverse=True)    # rows are written back by int64 ids
        leaf = self.read(unique)
        if learns:
            self._pass_on()
            self._gathered.append((unique, leaf.requires_grad_()))
        return leaf, inverse

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows (k, d) of `ids` (k,), none of which may be there twice; trained as those of `gather`."""
        rows, inverse = self.gather(ids)
        return rows[inverse]

    def _local(self, ids: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows of `weight` for those of the sorted `ids` that are held here, and the slice of these ids."""
        ends = torch.tensor([self.first, self.first + len(self.weight)], device=ids.device)
        start, stop = torch.searchsorted(ids, ends).tolist()
        return ids[start:stop] - self.first, slice(start, stop)

    def score_pairs(self, queries: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, *,
                    unit: bool = False) -> torch.Tensor:
        """Return the inner products (p,) of queries[rows] with the table's rows `ids`, at unit length where `unit`.

        queries (q, d); rows, ids (p,). Only these rows of the table are read and trained.
        """
        unique, inverse = self.gather(ids)
        # Not unique[inverse]: the gradient of indexing is summed in random order by several threads.
        vectors = F.embedding(inverse, unique)
        return (F.embedding(rows, queries) * (normalise(vectors) if unit else vectors)).sum(1)

    def take_gradients(self) -> Rows | None:
        """Return which rows of `weight` were touched (u,), sorted, with their gradients (u, d), and clear them.

        None where no row was touched.
        """
        touched = [*self._summed, *((ids, leaf.grad) for ids, leaf in self._gathered if leaf.grad is not None)]
        self._gathered.clear()
        self._summed.clear()
        return self._own(self._sum(touched)) if touched else None

    def _pass_on(self) -> None:
        """Give the gradients that earlier gathered rows have received to the optimiser, or add them to one sum.

        They have some where parts of the backward pass gather rows anew. Kept until the step, the rows of all parts
        would be the whole table, twice.
        """
        done = [(ids, leaf.grad) for ids, leaf in self._gathered if leaf.grad is not None]
        if not done:
            return
        self._gathered = [(ids, leaf) for ids, leaf in self._gathered if leaf.grad is None]
        if self.in_parts and self.update is not None:
            self.update(*self._own(self._sum(done)))
        else:
            self._summed = [self._sum([*self._summed, *done])]

    def _sum(self, touched: Sequence[Rows]) -> Rows:
        """Return the sum of gradients of several sets of rows."""
        if len(touched) == 1:
            return touched[0]
        ids, inverse = torch.unique(torch.cat([ids for ids, _ in touched]), return_inverse=True)
        gradients = self.weight.new_zeros(len(ids), self.weight.shape[1], dtype=self.dtype)
        return ids, gradients.index_add_(0, inverse, torch.cat([g for _, g in touched]))

    def _own(self, touched: Rows) -> Rows:
        """Return which rows of `weight` were touched, with their gradients; the same where every process has all."""
        ids, gradients = touched
        if self.holds_all_rows:    # every process has a copy, which must stay equal
            return ids, distributed.mean_over_processes(gradients)
        local, part = self._local(ids)
        return local, gradients[part]


def normal_rows(n: int, dim: int, part: slice, std: float = 1.0, dtype: str = "float32") -> torch.Tensor:
    """Return the rows `part` of an (n, dim) draw from the normal distribution; a row is the same in any part."""
    out = torch.empty(part.stop - part.start, dim, dtype=DTYPES[dtype])
    for start in range(0, n, BLOCK):
        block = torch.randn(min(BLOCK, n - start), dim)
        low, high = max(part.start, start), min(part.stop, start + len(block))
        if low < high:
            out[low - part.start:high - part.start] = block[low - start:high - start] * std
    return out


class Decay:
    """Logarithms of a weight's decay: of all steps (`log_total`), and of those applied to each row (`log_applied`).

    log_before: of all steps before the last one.

    The table reads it and the optimiser writes it. A table that held its optimiser would be a reference cycle, which
    keeps a model of gigabytes alive until Python's garbage collector runs.
    """

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        self.log_total = self.log_before = torch.zeros((), dtype=torch.float64)
        self.log_applied = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
        self.dtype = dtype    # of rows that are read

    def missed(self, ids: torch.Tensor, *, before: bool = False) -> torch.Tensor:
        """Return the factors of the decay that rows missed, (k, 1); before: without the last step's."""
        log_total = self.log_before if before else self.log_total
        return (log_total.to(self.log_applied.device) - self.log_applied[ids]).exp().to(self.dtype)[:, None]


class Model(nn.Module):
    """A module some of whose matrices are trained by rows.

    lr_share: the learning rate of its dense parameters, as a share of the plan's.
    """

    lr_share = 1.0

    def tables(self) -> dict[str, RowTable]:
        """Return the matrices trained by rows, by name."""
        return {module.name: module for module in self.modules() if isinstance(module, RowTable)}
