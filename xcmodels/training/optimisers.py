"""A model's optimisers: AdamW for dense parameters, row optimisers for row tables."""

from collections.abc import Mapping
from typing import Any

import torch

from xcmodels.data import seeds
from xcmodels.nn import distributed
from xcmodels.nn.row_optimisers import RowAdam, RowOptimiser, RowSGD, RowwiseAdam, RowwiseSGD
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.training_plan import RowRule, TrainingPlan

# Tensor name -> (first row held here, rows in all), for tensors that hold only a range of the rows of a larger one.
RowRanges = Mapping[str, tuple[int, int]]


class Optimisers:
    """The optimisers of a model: torch's AdamW for dense parameters, and one for each row table that the plan names."""

    def __init__(self, model: Model, plan: TrainingPlan) -> None:
        self.plan, self.factor = plan, 1.0
        groups = _by_lr_share(model)
        self.dense = torch.optim.AdamW(
            groups, lr=plan.lr, weight_decay=0.0, fused=_on_gpu(model) or None) if groups else None
        self.rows = {name: _row_optimiser(table, plan.tables[name]) for name, table in model.tables().items()
                     if name in plan.tables}
        for name, table in model.tables().items():
            table.trained = name in self.rows

    def begin(self, factor: float, key: int = 0) -> None:
        """Begin a step before the backward pass, which then updates tables in parts as it computes their gradients.

        factor: of the plan's learning rates. key: of the random rounding of tables that are held in bfloat16.
        """
        self.factor = factor
        for name, rows in self.rows.items():
            rows.begin(self.plan.tables[name].lr * factor, seeds.key_of(key, name))
            rows.table.update = rows.update

    def finish(self) -> None:
        """Finish the step that was begun: update what the backward pass has not, and clear the gradients."""
        if self.dense:
            for group in self.dense.param_groups:
                group["lr"] = self.plan.lr * self.factor * group["lr_share"]
                distributed.average_gradients(group["params"])
            self.dense.step()
            self.dense.zero_grad()
        for rows in self.rows.values():
            if (touched := rows.table.take_gradients()) is not None:
                rows.update(*touched)
            rows.table.update = None    # a table that held its optimiser would be a reference cycle

    def apply_pending_decay(self, key: int = 0) -> None:
        """Bring every row of every table up to date; key: as of `begin`."""
        for name, rows in self.rows.items():
            rows.apply_pending_decay(seeds.key_of(key, name))

    def row_ranges(self) -> RowRanges:
        """Return which tensors of `state` hold only a range of the rows of a larger one."""
        return {f"rows.{name}.{key}": (rows.table.first, rows.table.n) for name, rows in self.rows.items()
                if not rows.table.holds_all_rows for key, value in rows.state().items() if value.ndim}

    def state(self) -> dict[str, torch.Tensor]:
        """Return every moment as one flat dict."""
        flat = self.rows_state()
        dense = self.dense.state_dict()["state"] if self.dense else {}
        return flat | {f"dense.{index}.{key}": value for index, state in dense.items() for key, value in state.items()}

    def rows_state(self) -> dict[str, torch.Tensor]:
        """Return the moments of the row tables, which exist even before the first step."""
        return {f"rows.{name}.{key}": value for name, rows in self.rows.items() for key, value in rows.state().items()}

    def restore(self, flat: dict[str, torch.Tensor]) -> None:
        for name, rows in self.rows.items():
            rows.restore({key: flat[f"rows.{name}.{key}"] for key in rows.state()})
        if not self.dense:
            return
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in flat.items():
            kind, _, rest = key.partition(".")
            if kind == "dense":
                index, _, field = rest.partition(".")
                state.setdefault(int(index), {})[field] = value
        self.dense.load_state_dict({"state": state, "param_groups": self.dense.state_dict()["param_groups"]})


def _on_gpu(model: Model) -> bool:
    """Return whether AdamW can be one kernel; on a processor it stays as it is, since its last digits would differ."""
    return any(parameter.is_cuda for parameter in model.parameters())


def _row_optimiser(table: RowTable, rule: RowRule) -> RowOptimiser:
    """Return the optimiser of a table that is trained by `rule`."""
    if rule.momentum is None:
        return RowwiseAdam(table) if rule.rowwise else RowAdam(table)
    kind = RowwiseSGD if rule.rowwise else RowSGD
    return kind(table, momentum=rule.momentum, weight_decay=rule.weight_decay)


def _by_lr_share(model: Model) -> list[dict[str, Any]]:
    """Return the trained dense parameters in groups of one share of the rate, that of the innermost Model."""
    shares = {parameter: module.lr_share for module in model.modules() if isinstance(module, Model)
             for parameter in module.parameters() if parameter.requires_grad}
    return [{"lr_share": share, "params": [parameter for parameter, own in shares.items() if own == share]}
            for share in dict.fromkeys(shares.values())]
