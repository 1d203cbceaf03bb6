"""How long does a step take on what a transformer's frozen layers made of the texts, and how long on the texts?

    python -m benchmarks.bench_frozen_layers [NUMBER of trained layers ...]

NGAME's module M1, preset `cpu-minilm`, on a synthetic corpus; both kinds of step in alternation, as the training loop
takes them. Running the frozen layers once is timed as well.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.arguments import Count, run
from benchmarks.bench_loop import loop_seconds
from benchmarks.measuring import timed
from benchmarks.synthetic import CorpusShape, synthetic_corpus
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.nn.devices import device
from xcmodels.training.local_run import run_frozen_layers

SHAPE = CorpusShape(queries=20_000, labels=20_000, positives=2.2, tokens=22.0)    # texts as long as WordNet's
STEPS, REPEATS = 8, 2


def main(*layers: Count) -> None:
    """Print one row for each number of trained layers, by default two and one."""
    print(f"{device()}, {torch.get_num_threads()} threads; {SHAPE.queries + SHAPE.labels:,} texts")
    print(f"{'trained layers':<16}{'frozen once, s':>16}{'a step, s':>12}{'on all layers, s':>18}{'share':>8}")
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        corpus = synthetic_corpus(Path(scratch) / "corpus", SHAPE)
        for trained in layers or (2, 1):
            config = resolve("ngame", "cpu-minilm", {"encoder.trained_layers": str(trained)}).method
            whole = replace(config, encoder=replace(config.encoder, cache_frozen=False))
            method, on_texts = METHODS["ngame"].make(config), METHODS["ngame"].make(whole).stages[0]
            known, once = timed(partial(run_frozen_layers, corpus, method, Path(scratch) / f"below {trained}"))
            kinds = (method.stages[0], known), (on_texts, corpus)
            steps = [[loop_seconds(*kind, scratch, STEPS) for kind in kinds] for _ in range(REPEATS)]
            ours, all_layers = (float(np.median(np.concatenate(each))) for each in zip(*steps, strict=True))
            print(f"{trained:<16}{once:>16.1f}{ours:>12.2f}{all_layers:>18.2f}{ours / all_layers:>8.2f}", flush=True)


if __name__ == "__main__":
    run(main, __doc__)
