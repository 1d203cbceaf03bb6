"""How long does each thing that training does take, for each of what it is done to? `xc plan --labels` counts with it.

    python -m benchmarks.bench_rates [FILE]    (HOME/rates.json is preferred to the project's xcmodels/rates.json)

Seconds: to train on a point, to encode a text, to cluster a point once (over the logarithm of the clusters), to search
for a point over a label, to score what codes propose for a point, to build the index of a label; at two widths, over a
corpus that is made up. And the bytes that a process that trains holds beside those that are counted. Each method and
width has a process of its own, three times by turns, and the middle one is kept: a neighbour's busy minute is not to be
taken for the machine's pace.
"""

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks.asked import answer, new_file
from benchmarks.bench_loop import looped
from benchmarks.made import Shape, made, most_held
from xcmodels.data.corpus import Corpus
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.negatives import CHUNK, hard_negatives
from xcmodels.resources import HOST, RATES, ROUND, Size, budget, read_rates, with_width
from xcmodels.retrieval import ann
from xcmodels.training.loop import device, fast_products

SHAPE = Shape(queries=180_000, labels=260_000, positives=22.2, tokens=14.0)    # LF-AmazonTitles-1.3M's positives
NAMES = ("astra", "unidec", "ngame")
WIDTHS, STEPS, CLUSTER, DEPTH, TURNS = (64, 384), 168, 8, 10, 3
FIRST, FEW, MANY = 256, 130_000, 1_300_000    # points searched for first; labels of an index


def spent(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return what an action makes, and its seconds."""
    began = time.perf_counter()
    return action(), time.perf_counter() - began


@fast_products()
def rates(name: str, width: int, corpus: Corpus, scratch: Path) -> dict[str, float]:
    """Return the rates of one method at one width."""
    method = METHODS[name].make(with_width(resolve(name, "cpu", {}).method, width))
    stage = method.stages[0]
    size = Size(SHAPE.labels, SHAPE.queries, SHAPE.positives, SHAPE.tokens)
    counted = budget(method, size, {}, stage.name).held(HOST, ROUND)
    # Their mean: an epoch has the slow steps, too.
    out = {"train": float(looped(stage, corpus, scratch, STEPS).mean()) / stage.plan.batch_size}
    out["process"] = most_held() - sum(part.size for part in counted)
    vectors = stage.vectors(stage.build(corpus, {}).to(device()), corpus)
    queries, took = spent(vectors["queries"])
    out["encode"] = took / len(queries)
    _, took = spent(lambda: balanced_kmeans(queries, CLUSTER, seed=0))
    out["cluster"] = took / len(queries) / np.log2(len(queries) / CLUSTER)
    labels, rows = vectors["labels"](), corpus.training_rows()[:CHUNK]

    def searched(index: ann.Index) -> float:
        """Return the seconds for a point, once threads are started and pages are read."""
        hard_negatives(index, queries, corpus, rows[:FIRST], DEPTH)
        return spent(lambda: hard_negatives(index, queries, corpus, rows, DEPTH))[1] / len(rows)

    out["search exact"] = searched(ann.build(labels[:FEW], "exact")) / FEW
    index, built = spent(lambda: ann.build(np.resize(labels, (MANY, width)), "quantised"))
    out["build"] = built / MANY
    some, most = searched(ann.build(labels, "quantised")), searched(index)
    out["search quantised"] = (most - some) / (MANY - len(labels))
    out["score proposed"] = max(some - len(labels) * out["search quantised"], 0.0)
    return out


def kept(word: str) -> Path:
    """Read the path of a file of rates, or of one that can be made."""
    path = new_file(word)
    try:
        if path.exists():
            read_rates(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return path


def main(file: Annotated[Path, kept] = RATES) -> None:
    """Measure, and write the rates of this machine's device over those in the file."""
    held = read_rates(file) if file.exists() else {}
    found: dict[tuple[str, int], list[dict[str, float]]] = {(name, width): [] for name in NAMES for width in WIDTHS}
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        made(Path(scratch) / "corpus", SHAPE)
        for _ in range(TURNS):
            for (name, width), turns in found.items():
                child = [sys.executable, "-m", "benchmarks.bench_rates", "--of", name, str(width), scratch]
                of = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)
                turns.append(of)
                print(f"{name:<8}{width:>4}" + "".join(f"  {about} {value:.3g}" for about, value in of.items()),
                      flush=True)
    middle = {name: {str(width): _middle(found[name, width]) for width in WIDTHS} for name in NAMES}
    file.write_text(json.dumps({**held, device().type: middle}, indent=1, sort_keys=True) + "\n")


def _middle(turns: list[dict[str, float]]) -> dict[str, float]:
    return {about: float(f"{np.median([turn[about] for turn in turns]):.3g}") for about in turns[0]}


def _child(name: str, width: str, scratch: str) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        print(json.dumps(rates(name, int(width), Corpus(Path(scratch) / "corpus"), Path(folder))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        _child(*sys.argv[2:])
    else:
        answer(main, __doc__)
