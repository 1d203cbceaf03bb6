"""The only training loop: one round of one stage, resumable at every step."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcmodels.data import seeds
from xcmodels.data.batching import Batch
from xcmodels.data.corpus import Corpus
from xcmodels.data.judged_answers import JudgedAnswers
from xcmodels.data.sorted_ids import isin_sorted, unique
from xcmodels.method import Mined, Round, Stage
from xcmodels.nn import distributed
from xcmodels.nn.devices import device, fast_products, keep_freed_memory
from xcmodels.nn.row_table import Model
from xcmodels.training.checkpoint import (
    OPTIMISER,
    Position,
    StepCheckpoints,
    dense_digest,
    load_model,
    read,
    save_model,
    write,
)
from xcmodels.training.optimisers import Optimisers

VALIDATION_QUERIES = 500       # of an epoch, at most
VALIDATION_LABELS = 200_000    # with more labels, epochs are not validated
P1 = "validation/P@1"
MAKERS = 4                     # threads that make batches for an accelerator, at most
_TOGETHER = 64                 # queries scored at once: 50 MB for 200,000 labels


class Interrupted(Exception):
    """Training stopped on request, with its state saved."""


@dataclass(frozen=True)
class Progress:
    """The state after a step, for a progress line."""

    stage: str
    epoch: int
    done: int       # steps of the stage taken so far
    steps: int      # steps of the stage in all
    loss: float


@dataclass(frozen=True)
class Watch:
    """Callbacks of a round: progress, stopping, step checkpoints; none changes its result."""

    report: Callable[[Progress], None] = lambda progress: None
    stop: Callable[[], bool] = lambda: False
    save_every: float = 60.0    # seconds between step checkpoints


@fast_products()
def train_round(stage: Stage[Any], model: Model, corpus: Corpus, round_: Round, mined: Mined, *,
                start: Path | None, scratch: Path, out: Path, before: Path | None = None,
                watch: Watch = Watch()) -> list[dict[str, float]]:
    """Train one round and write its model and optimiser to `out`; return one dict of metrics an epoch.

    start: the folder of the previous round of the same stage, or None; before: that of the last round of the previous
    stage, or None; scratch: the folder of step checkpoints.
    Raises Interrupted when `watch.stop()` turns true, and FloatingPointError at a loss that is not finite; in both
    cases the newest step checkpoint stays in `scratch`, and the same call resumes from it.
    """
    keep_freed_memory()
    model.to(device())
    optimisers = Optimisers(model, stage.plan)
    if start is not None:
        load_model(model, start)
        optimisers.restore(read(start / OPTIMISER, optimisers.row_ranges()))
    checkpoints = StepCheckpoints(scratch)
    position = checkpoints.restore(model, optimisers)
    if position is None:
        position = Position(epoch=round_.first)
        if start is None:
            stage.begin(model, corpus, before)
    if distributed.count() > 1:
        distributed.check_same((asdict(position), dense_digest(model)), "weights or step checkpoints to begin with")
    model.train()
    loop = _Loop(stage, model, corpus, round_, mined, optimisers)
    while position.epoch < round_.stop:
        loop.epoch(position, checkpoints, watch)
    optimisers.apply_pending_decay(seeds.key_of(stage.seed, "rounding decay", stage.name, round_.stop))
    save_model(model, out)
    write(out / OPTIMISER, optimisers.state(), optimisers.row_ranges())
    return position.epochs or []


@dataclass(frozen=True)
class _PendingLoss:
    """The loss of a step that was taken, still on the device."""

    step: int
    rows: np.ndarray
    loss: torch.Tensor


@dataclass(frozen=True)
class _Loop:
    stage: Stage[Any]
    model: Model
    corpus: Corpus
    round_: Round
    mined: Mined
    optimisers: Optimisers

    def epoch(self, position: Position, checkpoints: StepCheckpoints, watch: Watch) -> None:
        """Train from `position` to the end of its epoch, moving `position` along."""
        orders = self.orders(position.epoch)
        n, steps = len(orders[0]), self.stage.plan.steps_an_epoch(len(orders[0]))
        unread = deque[_PendingLoss]()

        def read_losses(but_last: int = 0) -> None:
            while len(unread) > but_last:
                self.read_loss(unread.popleft(), position, steps, watch)

        for rows, batch in self.batches(orders, position.epoch, range(position.step, steps)):
            done = position.epoch * steps + position.step
            loss = self.step(rows, batch, position, self.stage.plan.lr_factor(done, n))
            unread.append(_PendingLoss(position.step, rows, loss))
            position.step += 1
            # an accelerator gets its next step before this process waits for the loss of the last
            read_losses(0 if device().type == "cpu" else 1)
            overdue = time.monotonic() - checkpoints.saved > watch.save_every
            stopping, due = distributed.any_process(device(), watch.stop(), overdue)
            if stopping or due:
                read_losses()
                checkpoints.save(position, self.model, self.optimisers)
            if stopping:
                raise Interrupted(f"saved at step {done + 1} of {self.stage.plan.epochs * steps} of {self.stage.name}")
        read_losses()
        measured = {"epoch": float(position.epoch), "loss": position.loss / steps, **self.validate()}
        position.epochs = [*(position.epochs or []), measured]
        position.epoch, position.step, position.loss = position.epoch + 1, 0, 0.0

    def validate(self) -> dict[str, float]:
        """Return P@1 of the model on validation queries, where that is cheap; leave the model in training mode."""
        if not validation_is_cheap(self.corpus) or not len((judged := JudgedAnswers.of(self.corpus)).truth):
            return {}
        try:
            return {P1: validation_precision(self.stage, self.model.eval(), self.corpus, self.mined, judged)}
        finally:
            self.model.train()

    def orders(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of an epoch in the order of each of its passes, which are numbered across epochs."""
        def order(number: int) -> np.ndarray:
            return self.stage.order(self.corpus, self.mined, number)

        rows = order(epoch)
        passes = self.stage.plan.passes(len(rows))
        return [rows] if passes == 1 else [order(epoch * passes + number) for number in range(passes)]

    def batches(self, orders: Sequence[np.ndarray], epoch: int, steps: range) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yield the rows and the batch of each step; the next ones are made while this one is trained on."""
        ahead = deque[Future[tuple[np.ndarray, Batch]]]()
        rows_of = [rows for order in orders for rows in self.stage.plan.batches(order)]

        def make(step: int) -> tuple[np.ndarray, Batch]:
            rows = rows_of[step]
            rng = seeds.generator(self.stage.seed, *self._purpose(epoch, step))
            batch = self.stage.batch(self.corpus, self.round_, self.mined, rows, rng)
            return rows, batch.map(torch.Tensor.pin_memory) if device().type == "cuda" else batch

        with ThreadPoolExecutor(threads := _makers()) as worker:
            for step in steps:
                ahead.append(worker.submit(make, step))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
            for last in ahead:
                yield last.result()

    def _purpose(self, epoch: int, step: int) -> tuple[str | int, ...]:
        return "batch", self.stage.name, epoch, step

    def step(self, rows: np.ndarray, batch: Batch, position: Position, factor: float) -> torch.Tensor:
        """Take one optimiser step on the batch of `rows` and return its loss, on the device."""
        seeds.seed_torch(self.stage.seed, *self._purpose(position.epoch, position.step))
        terms = self.stage.loss(self.model, batch.to(device()))
        loss = torch.stack(list(terms.values())).sum()
        self.optimisers.begin(factor, seeds.key_of(self.stage.seed, "rounding", *self._purpose(
            position.epoch, position.step)))
        loss.backward()
        self.optimisers.finish()
        return loss.detach()

    def read_loss(self, pending: _PendingLoss, position: Position, steps: int, watch: Watch) -> None:
        """Add a step's loss to its epoch's, and report it; raise FloatingPointError where it is not finite.

        steps: of an epoch. Losses are read before a checkpoint is saved, so that no checkpoint holds a diverged model.
        """
        value = float(pending.loss)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"loss is {value} at {self.stage.name} epoch {position.epoch} step {pending.step} "
                f"(training rows {pending.rows[:5].tolist()}...); lower {self.stage.name}'s learning rate or check the "
                "batch")
        position.loss += value
        if distributed.rank() == 0:
            done = position.epoch * steps + pending.step + 1
            watch.report(Progress(self.stage.name, position.epoch, done, self.stage.plan.epochs * steps, value))


def _makers() -> int:
    """Return how many threads make batches: on a processor one, since a step takes all cores."""
    return 1 if device().type == "cpu" else max(1, min(MAKERS, (os.cpu_count() or 1) - 1))


def validation_is_cheap(corpus: Corpus) -> bool:
    """Return whether epochs are validated: only where that costs little beside training.

    A dual encoder encodes every label's text for it, forward only: with as many labels as training texts, a sixth of
    the epoch's forward and backward passes, and more with more labels. So it is skipped with more than
    VALIDATION_LABELS labels, or more labels than training texts.
    """
    return corpus.n_labels <= min(VALIDATION_LABELS, len(corpus.training_rows()))


def validated_places(judged: JudgedAnswers) -> np.ndarray:
    """Return the places in the split of the validation queries that epochs are validated on, evenly spaced."""
    places = unique(judged.truth // len(judged.has_query))
    return places[np.linspace(0, len(places) - 1, min(VALIDATION_QUERIES, len(places))).astype(np.int64)]


def validation_precision(stage: Stage[Any], model: Model, corpus: Corpus, mined: Mined, judged: JudgedAnswers) -> float:
    """Return P@1 of validation queries, in percent, by exact search among the labels that are judged.

    No random number is drawn and no weight changed, so training ends with the same bits with or without it.
    """
    places = validated_places(judged)
    queries, labels = stage.ranking_vectors(model, corpus, mined, corpus.validation[places])
    best = np.empty(len(places), np.int64)
    for start in range(0, len(places), _TOGETHER):
        part = places[start:start + _TOGETHER]
        scores = queries[start:start + _TOGETHER] @ labels.T
        unjudged, lengths = judged.unjudged.take(part)
        scores[np.repeat(np.arange(len(part)), lengths), unjudged] = -np.inf
        scores[:, ~judged.has_query] = -np.inf
        best[start:start + _TOGETHER] = scores.argmax(1)
    return 100 * float(isin_sorted(places * corpus.n_labels + best, judged.truth).mean())
