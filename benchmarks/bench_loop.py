"""What does the training loop keep of the throughput of its bare steps: forward, loss, backward, optimiser alone?

    python -m benchmarks.bench_loop [method.preset[.rows] ...]

Both take the same steps on the same made-up corpus of WordNet's shape, by turns; bare steps find their batches made.
rows: of a batch, the preset's unless given.
"""

import tempfile
import time
from argparse import ArgumentTypeError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from benchmarks.asked import answer
from benchmarks.made import WORDNET, made
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Stage
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.training.loop import Interrupted, Progress, Watch, device, fast_products, train_round
from xcmodels.training.optimisers import Optimisers

STEPS, WARM, TURNS = 16, 4, 3
ASKED = ("ngame.cpu", "unidec.cpu", "astra.cpu", "siamesexml.cpu", "ngame.minilm.64")


class Clock:
    """Notes when each step of a round is done, and stops the round after `steps`."""

    def __init__(self, steps: int) -> None:
        self.steps, self.times = steps, [time.perf_counter()]

    def note(self, progress: Progress) -> None:
        """Take a step's time."""
        self.times.append(time.perf_counter())

    def over(self) -> bool:
        """Whether all steps are done."""
        return len(self.times) > self.steps

    def seconds(self) -> np.ndarray:
        """Return how long each step took, less those to warm up."""
        return np.diff(self.times)[WARM:]


def looped(stage: Stage[Any], corpus: Corpus, folder: Path, steps: int = STEPS) -> np.ndarray:
    """Return the seconds of each step of the training loop."""
    clock = Clock(steps)
    model = stage.build(corpus, {})
    with suppress(Interrupted):
        train_round(stage, model, corpus, stage.rounds[0], Mined(), start=None, scratch=folder / "steps", out=folder,
                    watch=Watch(clock.note, clock.over, save_every=float("inf")))
    return clock.seconds()


@fast_products()
def bare(stage: Stage[Any], corpus: Corpus) -> np.ndarray:
    """Return the seconds of each step on batches that are made, and on the device, before the clock starts."""
    model = stage.build(corpus, {}).to(device())
    optimisers = Optimisers(model, model.tables(), stage.plan)
    stage.begin(model, corpus, None)
    model.train()
    order = stage.order(corpus, Mined(), 0)
    size = stage.plan.rows(len(order))
    batches = []
    for step in range(STEPS):
        rng = seeds.generator(stage.seed, "batch", stage.name, 0, step)
        rows = order[step * size:(step + 1) * size]
        batches.append(stage.batch(corpus, stage.rounds[0], Mined(), rows, rng).to(device()))
    clock = Clock(STEPS)
    for step, batch in enumerate(batches):
        loss = torch.stack(list(stage.loss(model, batch).values())).sum()
        loss.backward()
        optimisers.step(stage.plan.rate(step, len(order)))
        clock.note(Progress(stage.name, 0, step, STEPS, float(loss.detach())))
    return clock.seconds()


def trial(word: str) -> str:
    """Read what to train: method.preset, or method.preset.rows."""
    parts = word.split(".")
    if len(parts) not in (2, 3):
        raise ArgumentTypeError(f"method.preset or method.preset.rows is wanted, got {word!r}")
    try:
        _settings(*parts)
    except ValueError as error:
        raise ArgumentTypeError(f"{word!r}: {error}") from None
    return word


def main(*asked: Annotated[str, trial]) -> None:
    """Print one row a method."""
    print(f"{device()}, {torch.get_num_threads()} threads")
    print(f"{'':<24}{'rows':>8}{'bare ms':>12}{'loop ms':>12}{'kept':>8}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        corpus = made(Path(scratch) / "corpus", WORDNET)
        for name in asked or ASKED:
            called, preset, *given = name.split(".")
            method = METHODS[called].make(_settings(called, preset, *given))
            stage = method.stages[0]
            size = stage.plan.batch_size
            took: dict[str, list[np.ndarray]] = {"bare": [], "loop": []}
            for turn in range(TURNS):
                folder = Path(scratch) / f"{name}-{turn}"
                folder.mkdir()
                took["bare"].append(bare(stage, corpus))
                took["loop"].append(looped(stage, corpus, folder))
            medians = {of: 1000 * float(np.median(np.concatenate(each))) for of, each in took.items()}
            print(f"{name:<24}{size:>8,}{medians['bare']:>12.1f}{medians['loop']:>12.1f}"
                  f"{medians['bare'] / medians['loop']:>8.2f}", flush=True)


def _settings(method: str, preset: str, rows: str = "") -> Any:
    """Return a preset's settings of a method, with as many rows a batch as given."""
    settings: Any = resolve(method, preset, {}).method
    if not rows:
        return settings
    if hasattr(settings, "m1"):
        return replace(settings, m1=replace(settings.m1, batch_size=int(rows)))
    return replace(settings, batch_size=int(rows))


if __name__ == "__main__":
    answer(main, __doc__)
