"""How much of the throughput of its bare steps (forward, loss, backward, optimiser) does the training loop keep?

    python -m benchmarks.bench_loop [method.preset[.rows] ...]

Both run the same steps on a synthetic corpus of WordNet's shape, in alternation. The batches of the bare steps are made
before the clock starts. rows: the batch size, by default the preset's.
"""

import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from benchmarks.arguments import parsed_by, run
from benchmarks.measuring import OWN_STAGE
from benchmarks.synthetic import WORDNET, synthetic_corpus
from xcmodels.data import seeds
from xcmodels.data.batching import Batch
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Stage
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import flat, resolve
from xcmodels.nn.devices import device, fast_products, keep_freed_memory
from xcmodels.training.loop import Interrupted, Watch, train_round
from xcmodels.training.optimisers import Optimisers

STEPS, WARM_UP, REPEATS = 16, 4, 3
DEFAULTS = ("ngame.cpu", "unidec.cpu", "astra.cpu", "siamesexml.cpu", "ngame.minilm.64")


def loop_seconds(stage: Stage[Any], corpus: Corpus, scratch: str, steps: int = STEPS,
                 mined: Mined | None = None, *, warm_up: int = WARM_UP) -> np.ndarray:
    """Return the seconds of each step of the training loop after the warm-up.

    The steps are of the stage's last round where `mined` is given for it, else of its first.
    """
    folder, ends = Path(tempfile.mkdtemp(dir=scratch)), list[float]()
    model = stage.build(corpus, {})
    with suppress(Interrupted):
        train_round(stage, model, corpus, stage.rounds[-1 if mined else 0], mined or Mined(), start=None,
                    scratch=folder / "steps", out=folder, watch=Watch(
                        lambda progress: ends.append(time.perf_counter()), lambda: len(ends) == steps,
                        save_every=float("inf")))
    return np.diff(ends)[warm_up - 1:]


class BareSteps:
    """Steps on batches that were made before and are on the device; mined: as of `loop_seconds`."""

    def __init__(self, stage: Stage[Any], corpus: Corpus, mined: Mined | None, steps: int) -> None:
        self.stage, self.model = stage, stage.build(corpus, {}).to(device())
        self.optimisers = Optimisers(self.model, stage.plan)
        stage.begin(self.model, corpus, None)
        self.model.train()
        round_, mined = stage.rounds[-1 if mined else 0], mined or Mined()
        rows_of = stage.plan.batches(stage.order(corpus, mined, 0))
        began, self.batches = time.perf_counter(), list[Batch]()
        for step in range(steps):
            rng = seeds.generator(stage.seed, "batch", stage.name, 0, step)
            self.batches.append(stage.batch(corpus, round_, mined, rows_of[step % len(rows_of)], rng))
        self.making = (time.perf_counter() - began) / steps
        self.batches = [batch.to(device()) for batch in self.batches]

    def step(self, number: int) -> torch.Tensor:
        """Take one step, without waiting for the device; return the loss."""
        loss = torch.stack(list(self.stage.loss(self.model, self.batches[number]).values())).sum()
        self.optimisers.begin(self.stage.plan.lr_factor(number, 10**6))
        loss.backward()
        self.optimisers.finish()
        return loss.detach()

    def numbers_of_steps(self) -> list[torch.Tensor]:
        """Return the tensors in which AdamW counts its steps, on the host."""
        dense = self.optimisers.dense
        return [state["step"] for state in dense.state.values() if not state["step"].is_cuda] if dense else []


@fast_products()
def bare_seconds(stage: Stage[Any], corpus: Corpus) -> np.ndarray:
    """Return the seconds of each bare step after the warm-up."""
    keep_freed_memory()    # as the loop does
    bare, ends = BareSteps(stage, corpus, None, STEPS), list[float]()
    for number in range(STEPS):
        float(bare.step(number))    # waits for the device
        ends.append(time.perf_counter())
    return np.diff(ends)[WARM_UP - 1:]


def named_stage(word: str) -> tuple[str, Stage[Any]]:
    """Parse method.preset or method.preset.rows; return it, and the method's first stage with these settings."""
    method, *options = word.split(".")
    if len(options) not in (1, 2):
        raise ValueError(f"expected method.preset or method.preset.rows, got {word!r}")
    preset, *rows = options
    try:
        settings = flat(resolve(method, preset, {}))
        own = OWN_STAGE[method] if settings.get("start") == "encoder" else {}
        # the first is that of the first stage
        keys = [key for key in settings if key.rpartition(".")[2] == "batch_size"][:1]
        changed = resolve(method, preset, {**own, **dict(zip(keys, rows, strict=False))})
        return word, METHODS[method].make(changed.method).stages[0]
    except ValueError as error:
        raise ValueError(f"{word!r}: {error}") from None


def main(*stages: Annotated[tuple[str, Stage[Any]], parsed_by(named_stage)]) -> None:
    """Print one row per configuration."""
    print(f"{device()}, {torch.get_num_threads()} threads")
    print(f"{'':<24}{'rows':>8}{'bare ms':>12}{'loop ms':>12}{'kept':>8}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        corpus = synthetic_corpus(Path(scratch) / "corpus", WORDNET)
        for name, stage in stages or map(named_stage, DEFAULTS):
            bare, loop = list[np.ndarray](), list[np.ndarray]()
            for _ in range(REPEATS):
                bare.append(bare_seconds(stage, corpus))
                loop.append(loop_seconds(stage, corpus, scratch))
            bare_ms, loop_ms = (1000 * float(np.median(np.concatenate(seconds))) for seconds in (bare, loop))
            print(f"{name:<24}{stage.plan.batch_size:>8,}{bare_ms:>12.1f}{loop_ms:>12.1f}{bare_ms / loop_ms:>8.2f}",
                  flush=True)


if __name__ == "__main__":
    run(main, __doc__)
