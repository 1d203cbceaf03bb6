"""How long a stage of a method trains, on what batches and at what rates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

# A stage on few texts needs more steps than `batch_size` gives: batches shrink until a pass over the texts has
# MIN_STEPS_PER_PASS of them, but keep at least MIN_BATCH_ROWS rows. NGAME's P@1 on 400 texts rises from 42.7 to 78.7
# (docs/methods.md, "Few texts").
MIN_STEPS_PER_PASS = 20    # steps of a pass, at least, where that leaves batches of enough rows
MIN_BATCH_ROWS = 64        # rows of a batch, at least, where `batch_size` is larger


@dataclass(frozen=True)
class RowRule:
    """How the rows of a table are trained: by SGD where `momentum` is set, otherwise by Adam."""

    lr: float
    momentum: float | None = None
    weight_decay: float = 0.0     # decoupled (SGD)
    rowwise: bool = False         # optimiser moments are kept for each row, not for each value


@dataclass(frozen=True)
class TrainingPlan:
    """How long a stage trains, on what batches and at what rates; epochs count from 0 in each stage.

    Plans are made for tens of thousands of rows and more. On fewer, batches are smaller than `batch_size`, and an epoch
    repeats passes until it has `least_steps`. Otherwise 400 texts would be 8 steps in all, of which nothing is learned.
    On many more, an epoch ends after `most_steps`, within a pass: each epoch trains on other rows, drawn anew.
    """

    epochs: int
    batch_size: int      # rows of a batch, at most
    lr: float            # of the dense parameters
    tables: Mapping[str, RowRule]  # of each matrix trained by rows, by its name
    warmup: int          # steps of linear warm-up; the decay to zero begins at step 0, too, and both factors multiply
    decay: str = "linear"  # linear | cosine
    least_steps: int = 0  # of an epoch
    most_steps: int = 0   # of an epoch; 0 = all of its passes

    @classmethod
    def of(cls, config: Any, tables: Mapping[str, RowRule]) -> "TrainingPlan":
        """Return the plan of a configuration whose settings are called as the fields here are.

        A table at rate 0 is not in it: it stays as it is, and costs neither a gradient nor moments.
        """
        trained = {name: rule for name, rule in tables.items() if rule.lr}
        return cls(config.epochs, config.batch_size, getattr(config, "lr", 0.0), trained, config.warmup,
                   decay=getattr(config, "decay", "linear"), least_steps=config.least_steps,
                   most_steps=config.most_steps)

    def batch_size_for(self, n: int) -> int:
        """Return the most rows of a batch of n training rows; all batches have that many, or a few less."""
        return min(self.batch_size, max(n // MIN_STEPS_PER_PASS, MIN_BATCH_ROWS))

    def steps_per_pass(self, n: int) -> int:
        """Return the number of batches in one pass over n rows."""
        return max(1, -(-n // self.batch_size_for(n)))

    def batches(self, order: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each batch of a pass over rows in this order.

        As many in each, to within one, as in clusters: where those are as large as batches, a batch is one of them but
        for a few rows. None is left short.
        """
        edges = np.arange((steps := self.steps_per_pass(len(order))) + 1) * len(order) // steps
        return [order[first:stop] for first, stop in pairwise(edges)]

    def passes(self, n: int) -> int:
        """Return the number of passes over n rows in an epoch."""
        return max(1, -(-self.least_steps // self.steps_per_pass(n)))

    def steps_an_epoch(self, n: int) -> int:
        """Return the number of steps in an epoch over n rows."""
        steps = self.passes(n) * self.steps_per_pass(n)
        return min(steps, self.most_steps or steps)

    def steps(self, n: int) -> int:
        """Return the number of optimiser steps of the whole stage over n rows."""
        return self.epochs * self.steps_an_epoch(n)

    def lr_factor(self, step: int, n: int) -> float:
        """Return the factor on the learning rates at optimiser step `step`, counted from 0."""
        progress = min(step / self.steps(n), 1.0)
        remaining = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return min(1.0, (step + 1) / max(self.warmup, 1)) * remaining
