"""Predicts the memory, disk space and time that training takes at a given size.

Bytes are extrapolated: a method's model and optimisers are built for two small numbers of labels, and grow linearly in
it. Seconds follow from rates that `benchmarks.bench_rates` measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcmodels.method import Method, Round, Stage
from xcmodels.mining import grouped_index, query_groups
from xcmodels.mining.refresh import index_kind_on_cpu
from xcmodels.nn.transformer import build_transformer, load_transformer
from xcmodels.retrieval.examples import MAX_EXAMPLES
from xcmodels.retrieval.vector_codes import codes_of
from xcmodels.training.optimisers import Optimisers
from xcmodels.training.step_graph import EMBED, training_steps

PROBED = (1000, 2000)    # numbers of labels for which models are built
RATES = Path(__file__).with_name("rates.json")
GPU_KINDS = {"train", "encode"}    # of a GPU: clustering and processes are the host's, and search is told as its
RATE_KINDS = GPU_KINDS | {"process", "cluster", "search exact", "search grouped", "rescore", "find group", "build"}
DASK_TEXTS, DASK_WORKERS = 1 << 19, 2    # points and labels from which on a run's Dask workers refresh; how many
THREAD_BYTES = 5e4    # that a thread which searches by groups takes for each dimension, whatever the labels
GROUP_SHARE, GROUP_PASSES = 0.24, 2.5    # share of the labels that groups score; how often a query meets all centres
DEVICE, HOST, DISK = "device", "host", "disk"
ROUND, REFRESH = "a round", "a refresh"
MACHINE = "machine"


@dataclass(frozen=True)
class Size:
    """The size of a data set, and the number of accelerators to train on; 0 = the CPU.

    gpus: of each machine; machines: that train together, of which the first one refreshes.
    """

    labels: int
    points: int
    positives: float = 5.0     # of a point
    tokens: float = 14.0       # of a text
    vocabulary: int = 30_522
    gpus: int = 0
    machines: int = 1

    @property
    def texts(self) -> int:
        """Points and labels together."""
        return self.labels + self.points


@dataclass(frozen=True)
class Part:
    """Bytes needed: where, in which phase ("" = always), of what, and whether the kernel can reclaim them."""

    where: str
    phase: str
    what: str
    size: float
    mapped: bool = False


@dataclass(frozen=True)
class Estimate:
    """What a method needs at a size; seconds are None where no rate was measured, or nothing is mined (every: 0)."""

    parts: list[Part]
    epoch: float | None
    refresh: float | None
    every: int               # epochs between two refreshes; of one, those after it
    timed: str = ""          # the stage that the times are of, where a method has several

    def held(self, where: str, *phases: str) -> list[Part]:
        """Return what is held at once in a place, in the phase that needs most: of `phases`, by default of all."""
        local = [part for part in self.parts if part.where == where]
        by_phase = [[part for part in local if part.phase in ("", phase)] for phase in phases or (ROUND, REFRESH)]
        return max(by_phase, key=lambda parts: sum(part.size for part in parts))


@dataclass(frozen=True)
class _Sketch:
    """The part of a corpus that models are built from."""

    n_labels: int
    idf: np.ndarray
    graphs: Mapping[str, Any] = field(default_factory=dict)


def with_width(config: Any, width: int | None) -> Any:
    """Return a method's settings with label vectors of `width`: a bag's from scratch, a transformer's by a head.

    None keeps their width, which a transformer without a head decides; a bag still starts from scratch, so that nothing
    has to be loaded.
    Raises ValueError where the width is that of the transformer and cannot change.
    """
    if hasattr(config, "base"):
        return replace(config, base=with_width(config.base, width))
    if config.encoder.kind == "bag":
        return replace(config, encoder=replace(config.encoder, source="random", dim=width or config.encoder.dim))
    if hasattr(config, "dim"):
        config = replace(config, dim=width or config.dim)
        if config.dim:
            return config
        own = int(load_transformer(config.encoder.source).config.hidden_size)
        return replace(config, encoder=replace(config.encoder, dim=own))
    other = f", not {width}" if width else ""
    raise ValueError(f"vectors of this method are as wide as its encoder {config.encoder.source!r}{other}; "
                     "plan with a preset whose encoder is a bag, or another method")


def estimate(method: Method, size: Size, rates: Mapping[str, Any], stage: str = "") -> Estimate:
    """Return what a stage needs, by default the one that holds most for a label; rates: what `read_rates` returns."""
    probed = [(candidate, *_stage_bytes(candidate, method.width, size)) for candidate in method.stages
              if stage in ("", candidate.name)]
    label_stage, (table, moments), _, _ = max(probed, key=lambda probe: (sum(probe[1]), probe[2]))
    held = {candidate: sum(of_labels) * size.labels + rest for candidate, of_labels, rest, _ in probed}
    state = max(held.values())    # at a round's end, and of a step checkpoint
    # of the stage that holds most of it: a later one may leave the encoder as it is, without moments
    fixed = state - (table + moments) * size.labels
    encoder = max(probe[3] for probe in probed)
    refreshes = [round_ for round_ in label_stage.rounds if round_.mines]
    timed = method.stages[0] if label_stage.on_fixed_vectors else label_stage    # rates are of the stage that encodes
    width, processes = method.width, max(size.gpus, 1)
    shares = processes * size.machines
    train = DEVICE if size.gpus else HOST
    parts = [
        Part(train, ROUND, "label vectors", table * size.labels / shares),
        Part(train, ROUND, "their moments", moments * size.labels / shares),
        Part(train, ROUND, "the encoder, its gradients and moments", fixed),
        Part(HOST, ROUND, "the order of an epoch", 24.0 * size.points),
        Part(HOST, "", "processes", _rates_at(rates, "cpu", method, width).get("process", 0.0) * processes),
        Part(HOST, "", "files mapped, as far as there is room", _corpus(size), mapped=True),
        Part(DISK, "", "the packed data", _corpus(size)),
        Part(DISK, "", "checkpoints of rounds, until the retriever stands",
             sum(len(candidate.rounds) * own for candidate, own in held.items())),
        Part(DISK, ROUND, "its step checkpoint beside the last one, or beside its result", state),
        Part(DISK, "", "the retriever", encoder + _examples(size) + 24 * size.vocabulary
             + (2 * 4.0 * width + codes_of(width) / 2 + 6 * size.tokens) * size.labels),
    ]
    if method.encoder.keeps_states:
        states = _states(method, size)
        parts += [Part(DISK, "", "states of frozen layers", states),
                  Part(HOST, "", "states of frozen layers, mapped as far as there is room", states, mapped=True)]
    if label_stage.on_fixed_vectors:    # others encode the labels' texts part by part
        parts.append(Part(HOST, ROUND, "what label vectors start from", 4.0 * width * size.labels))
    if embeds := any(step.kind == EMBED for step in training_steps(method)):
        parts.append(Part(DISK, "", "vectors of points and labels", 4.0 * width * size.texts))
    if refreshes:
        parts += _refresh_parts(label_stage, refreshes[-1], size, width)
        parts.append(Part(HOST, REFRESH, "the model that it mines with", table * size.labels + fixed / 3))
        if _on_dask(size) and not embeds:
            parts.append(Part(DISK, REFRESH, "what Dask workers share", _shared_files(refreshes[-1], size, width)))
    mined = _refresh_epochs(timed)
    every = mined[-1] - mined[-2] if len(mined) > 1 else timed.rounds[-1].stop - mined[0] if mined else 0
    return Estimate(parts, *_seconds(method, timed, size, width, rates), every,
                    timed.name if len(method.stages) > 1 else "")


def _refresh_epochs(stage: Stage[Any]) -> list[int]:
    """Return the first epoch that each refresh of a stage serves."""
    return sorted({round_.mined_by: round_.first for round_ in reversed(stage.rounds) if round_.mines}.values())


def _shared_files(mining: Round, size: Size, width: int) -> float:
    """Return the bytes of vectors, index and negatives in the files of a refresh on Dask workers."""
    searched = (4.0 + 5.0) * width * size.labels if mining.n_negatives else 0.0    # vectors, the index's own, its codes
    return searched + 4.0 * (width + mining.n_negatives) * size.points


def _index_kind(stage: Stage[Any], labels: int) -> str:
    return index_kind_on_cpu(str(stage.settings.get("index", "auto")), labels)


def _on_dask(size: Size) -> bool:
    """Return whether a run's own Dask workers refresh, by files that they share; they would share a GPU, too."""
    return size.texts >= DASK_TEXTS and not size.gpus


def _refresh_parts(stage: Stage[Any], mining: Round, size: Size, width: int) -> list[Part]:
    """Return what a refresh needs on the host; where a GPU has room for the labels it searches, faster."""
    vectors, kind, files = 4.0 * width, _index_kind(stage, size.labels), _on_dask(size)
    parts = [Part(HOST, REFRESH, "vectors of the points", vectors * size.points, files)]
    if mining.cluster_size:
        parts.append(Part(HOST, REFRESH, "their order by clusters", 40.0 * size.points))    # five arrays of row numbers
    if mining.n_negatives:
        # of a graph: faiss' copy of the vectors, and 64 links of four bytes
        own = {"exact": 0.0, grouped_index.KIND: width, "quantised": codes_of(width) / 2, "hnsw": vectors + 256}[kind]
        parts += [Part(HOST, REFRESH, "hard negatives", 4.0 * mining.n_negatives * size.points),
                  Part(HOST, REFRESH, "vectors of the labels, and their index", (vectors + own) * size.labels, files)]
        if kind == grouped_index.KIND:
            threads = DASK_WORKERS if files else torch.get_num_threads()    # a worker has one
            # of 8 groups at once the scores of all labels and the chosen ids, of one the codes of these
            of_a_label = 8 * (4 + 8 * GROUP_SHARE) + GROUP_SHARE * width
            parts.append(Part(HOST, REFRESH, f"the search, by {threads} thread{'s' * (threads > 1)}",
                              threads * (THREAD_BYTES * width + of_a_label * size.labels)))
    refreshes = len(_refresh_epochs(stage))
    kept = 4.0 * (mining.n_negatives + bool(mining.cluster_size)) * size.points
    return [*parts, Part(DISK, "", "what refreshes mined", refreshes * kept),
            Part(HOST, ROUND, "what was mined, mapped as far as there is room", kept, mapped=True)]


def _stage_bytes(stage: Stage[Any], width: int, size: Size) -> tuple[tuple[float, float], float, float]:
    """Return (bytes of a label's vectors, of its moments), all bytes without labels, and those of the model alone."""
    probes = [_probe(stage, width, n, size.vocabulary) for n in PROBED]
    slope = [(more - less) / (PROBED[1] - PROBED[0]) for less, more in zip(*probes, strict=True)]
    return (slope[0], slope[1]), sum(probes[0]) - sum(slope) * PROBED[0], probes[0][0] - slope[0] * PROBED[0]


def _probe(stage: Stage[Any], width: int, n: int, vocabulary: int) -> tuple[float, float]:
    """Return the bytes of a model for n labels, and of its moments and gradients."""
    corpus: Any = _Sketch(n, np.ones(2 * vocabulary, dtype=np.float32))
    vectors = {name: np.zeros((n, width), np.float32) for name in ("labels", "queries")}
    model = stage.build(corpus, vectors)
    optimisers = Optimisers(model, stage.plan)
    dense = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    return (float(sum(tensor.nbytes for tensor in model.state_dict().values())),
            float(sum(tensor.nbytes for tensor in optimisers.rows_state().values()) + 3 * dense))


def _examples(size: Size) -> float:
    """Return the bytes of the training texts that a retriever shows: their tokens, texts and labels."""
    return (10 * size.tokens + 8 * size.positives + 32) * min(size.points, MAX_EXAMPLES * size.labels)


def _corpus(size: Size) -> float:
    """Return the bytes of a packed corpus: tokens, labels of points, texts of labels."""
    rows = (4 * size.tokens + 12) * size.texts + (8 * size.positives + 16) * size.points
    return rows + 6 * size.tokens * size.labels + 16 * size.vocabulary


def _states(method: Method, size: Size) -> float:
    """Return the bytes of what frozen layers make of all texts: float16, of each token that is read and two marks."""
    width = build_transformer(method.encoder, np.ones(2 * size.vocabulary, np.float32)).dim
    return 2.0 * width * (min(size.tokens, method.encoder.max_tokens or size.tokens) + 2) * size.texts


def _seconds(method: Method, stage: Stage[Any], size: Size, width: int,
             rates: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the seconds of an epoch and of the last refresh, whose clustering and search run on the CPU."""
    mining = next((round_ for round_ in reversed(stage.rounds) if round_.mines), None)
    device, host = (_rates_at(rates, kind, method, width) for kind in ("cuda" if size.gpus else "cpu", "cpu"))
    passes = stage.plan.steps_an_epoch(size.points) / stage.plan.steps_per_pass(size.points)
    # not divided by the processes: rates are of bags of tokens, whose steps each process computes in full
    epoch = device["train"] * passes * size.points if device else None
    if mining is None or not (host and device):
        return epoch, None
    refresh = device["encode"] * (size.texts if mining.n_negatives else size.points)
    if mining.cluster_size:
        refresh += host["cluster"] * size.points * float(np.log2(max(size.points / mining.cluster_size, 2)))
    if mining.n_negatives:
        kind = _index_kind(stage, size.labels)
        if kind not in ("exact", grouped_index.KIND):
            return epoch, None    # searches by codes or a graph are not measured
        if kind == "exact":
            refresh += host["search exact"] * size.points * size.labels
        else:
            found = GROUP_PASSES * host["find group"] * size.points / query_groups.QUERIES
            refresh += (host["search grouped"] * GROUP_SHARE * size.labels + host["rescore"] + found) * size.points
            refresh += host["build"] * size.labels
    return epoch, refresh


def _rates_at(rates: Mapping[str, Any], device: str, method: Method, width: int) -> dict[str, float]:
    """Return the rates of a method on a device at a width, interpolated linearly; none where none were measured."""
    measured = rates.get(device, {}).get(method.base or method.name, {}) if method.encoder.kind == "bag" else {}
    (narrow, low), (wide, high) = sorted((int(dim), by_kind) for dim, by_kind in measured.items()) or [(0, {}), (1, {})]
    share = (width - narrow) / (wide - narrow)
    return {kind: low[kind] + share * (high[kind] - low[kind]) for kind in low}


def rates_file(home: Path) -> Path:
    """Return the file of the rates measured on this machine, in `home`; without one, that of the packaged rates."""
    measured = home / RATES.name
    return measured if measured.exists() else RATES


def read_rates(file: Path = RATES) -> dict[str, Any]:
    """Return the rates in a file, by device, method and width; raise ValueError where some are missing.

    Beside the devices MACHINE, which may be missing: by device, what its rates were measured on.
    """
    try:
        rates: dict[str, Any] = json.loads(file.read_text())
        sound = isinstance(rates.get(MACHINE, {}), dict) and all(len(by_width) == 2 and all(
            by_kind.keys() >= (RATE_KINDS if device == "cpu" else GPU_KINDS) for by_kind in by_width.values())
            for device, methods in rates.items() if device != MACHINE for by_width in methods.values())
    except (ValueError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"{file} does not hold the rates of each method at two widths that times follow from; "
                         f"remove it, and python -m benchmarks.bench_rates {file} measures them again")
    return rates
