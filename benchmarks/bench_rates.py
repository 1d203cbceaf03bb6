"""Measure the rates of this machine, from which `xc plan --labels` predicts training times.

    python -m benchmarks.bench_rates [FILE]    (HOME/rates.json takes precedence over the project's xcmodels/rates.json)

On a synthetic corpus and for two widths of vectors, in seconds: to train on a point (in the last round of a stage, on
negatives drawn at random, as many as are mined), to encode a text, to cluster a point (divided by the logarithm of the
number of clusters), to search for a point exactly (per label) and by groups (per label that its group scores), what the
latter takes beside it, to find its group (per centre), to build the index (per label). And in bytes: what a training
process uses beyond what the memory estimate counts. Each method and width runs in a process of its own, three times in
alternation, and the median is kept, so that a minute when a neighbour is busy does not count.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks.arguments import file_to_write, parsed_by, run
from benchmarks.bench_loop import loop_seconds
from benchmarks.measuring import (
    cpu_config,
    in_new_process,
    machine,
    mined_at_random,
    peak_memory,
    timed,
    write_whole,
)
from benchmarks.synthetic import CorpusShape, synthetic_corpus
from xcmodels.data.corpus import Corpus
from xcmodels.method import Vectors
from xcmodels.methods.all_methods import METHODS
from xcmodels.mining import grouped_index, query_groups
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.mining.int8_products import quantised_rows
from xcmodels.mining.label_index import LabelIndex
from xcmodels.mining.per_query_index import PerQueryIndex
from xcmodels.mining.refresh import nearest_negatives
from xcmodels.nn.devices import device, fast_products
from xcmodels.resources import (
    GPU_KINDS,
    GROUP_SHARE,
    HOST,
    MACHINE,
    RATES,
    ROUND,
    Size,
    estimate,
    read_rates,
    with_width,
)
from xcmodels.retrieval import ann

SHAPE = CorpusShape(queries=180_000, labels=260_000, positives=22.2, tokens=14.0)    # positives of LF-AmazonTitles-1.3M
METHOD_NAMES = ("astra", "unidec", "ngame")
WIDTHS, STEPS, CLUSTER_SIZE, DEPTH, REPEATS = (64, 384), 168, 8, 10, 3
WARM_UP_QUERIES, EXACT_LABELS, GROUPED_LABELS, CENTRES = 256, 130_000, 1_300_000, 8192


@fast_products()
def training_rates(name: str, width: int, corpus: Corpus, scratch: Path,
                   steps: int = STEPS) -> tuple[dict[str, float], Vectors]:
    """Return the rates of one method at one width on the device, and its vectors."""
    method = METHODS[name].make(with_width(cpu_config(name), width))
    stage, shape = method.stages[0], corpus.train_positives
    size = Size(corpus.n_labels, len(shape), float(shape.lengths.mean()), SHAPE.tokens)
    counted = estimate(method, size, {}, stage.name).held(HOST, ROUND)
    seconds = loop_seconds(stage, corpus, str(scratch), steps, mined_at_random(stage, corpus))
    # the mean, not the median: an epoch has slow steps, too
    out = {"train": float(seconds.mean()) / stage.plan.batch_size}
    out["process"] = peak_memory() - sum(part.size for part in counted)
    vectors = stage.vectors(stage.build(corpus, {}).to(device()), corpus)
    queries, took = timed(vectors["queries"])
    out["encode"] = took / len(queries)
    return out, {"queries": lambda: queries, "labels": vectors["labels"]}


@fast_products()
def rates(name: str, width: int, scratch: Path) -> dict[str, float]:
    """Return the rates of one method at one width, on the corpus in `scratch`; of a GPU those that are its own."""
    corpus = Corpus(scratch / "corpus")
    out, vectors = training_rates(name, width, corpus, scratch)
    if device().type != "cpu":
        return {kind: out[kind] for kind in sorted(GPU_KINDS)}
    queries = vectors["queries"]()
    _, seconds = timed(lambda: balanced_kmeans(queries, CLUSTER_SIZE, seed=0))
    out["cluster"] = seconds / len(queries) / np.log2(len(queries) / CLUSTER_SIZE)
    labels, rows = vectors["labels"](), corpus.training_rows()[:PerQueryIndex.chunk]

    def index_of(some: np.ndarray) -> grouped_index.GroupedIndex:
        return replace(grouped_index.build(some, queries, DEPTH, seed=0), share=GROUP_SHARE)

    def search_seconds(index: LabelIndex) -> float:
        """Return the seconds per point, after threads were started and pages were read."""
        nearest_negatives(index, queries, corpus, rows[:WARM_UP_QUERIES], DEPTH)
        return timed(lambda: nearest_negatives(index, queries, corpus, rows, DEPTH))[1] / len(rows)

    out["search exact"] = search_seconds(PerQueryIndex(ann.build(labels[:EXACT_LABELS], "exact"))) / EXACT_LABELS
    many = np.resize(labels, (GROUPED_LABELS, width))
    small_index, (large_index, seconds) = index_of(labels), timed(lambda: index_of(many))
    out["build"] = seconds / GROUPED_LABELS
    rows = small_index.search_order(queries, corpus.training_rows())[:PerQueryIndex.chunk]
    # two sizes of index: what grows with the labels, and what does not
    small, large = (search_seconds(index) for index in (small_index, large_index))
    out["search grouped"] = (large - small) / (GROUPED_LABELS - len(labels)) / GROUP_SHARE
    out["rescore"] = max(small - len(labels) * GROUP_SHARE * out["search grouped"], 0.0)
    codes = quantised_rows(queries[rows])
    centres = np.resize(small_index.centres, (CENTRES, width))
    out["find group"] = timed(lambda: query_groups.nearest(codes, centres))[1] / len(rows) / CENTRES
    return out


def rates_file(word: str) -> Path:
    """Parse the path of a file of rates that exists or can be created."""
    path = file_to_write(word)
    if path.exists():
        read_rates(path)
    return path


def write_rates(file: Path, rates: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Write rates of other devices, those measured on this one, and what each device is."""
    kind = device().type
    machines = {**rates.get(MACHINE, {}), kind: machine()}
    write_whole(file, json.dumps({**rates, kind: measured, MACHINE: machines}, indent=1, sort_keys=True) + "\n")


def main(file: Annotated[Path, parsed_by(rates_file)] = RATES) -> None:
    """Measure the rates of this machine's device and write them to the file; those of other devices stay."""
    other_devices = read_rates(file) if file.exists() else {}
    measured: dict[tuple[str, int], list[dict[str, float]]] = {
        (name, width): [] for name in METHOD_NAMES for width in WIDTHS}
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as scratch:
        synthetic_corpus(Path(scratch) / "corpus", SHAPE)
        for _ in range(REPEATS):
            for (name, width), repeats in measured.items():
                repeats.append(in_new_process(rates, name, width, Path(scratch)))
                print(f"{name:<8}{width:>4}" + "".join(f"  {rate} {value:.3g}" for rate, value in repeats[-1].items()),
                      flush=True)
    medians = {name: {str(width): {
        rate: float(f"{np.median([repeat[rate] for repeat in repeats]):.3g}") for rate in repeats[0]}
        for width in WIDTHS for repeats in [measured[name, width]]} for name in METHOD_NAMES}
    write_rates(file, other_devices, medians)


if __name__ == "__main__":
    run(main, __doc__)
