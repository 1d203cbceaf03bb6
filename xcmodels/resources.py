"""What training would take at a size that nobody has tried: memory, disk, time, and what gives way first.

Bytes follow from what a method builds: its model and optimisers are made for two small numbers of labels, and what
they hold is a straight line through both. Seconds follow from rates that `benchmarks.bench_rates` measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xcmodels.method import Method, Round, Stage
from xcmodels.retrieval import ann
from xcmodels.retrieval.examples import KEPT
from xcmodels.training.optimisers import Optimisers

PROBED = (1000, 2000)    # labels for which models are made
RATES = Path(__file__).with_name("rates.json")
WANTED = {"train", "process", "encode", "cluster", "search exact", "search quantised", "score proposed", "build"}
DEVICE, HOST, DISK = "device", "host", "disk"
ROUND, REFRESH = "a round", "a refresh"


@dataclass(frozen=True)
class Size:
    """How large a data set is, and on how many accelerators it is to be trained; 0 = on the CPU."""

    labels: int
    points: int
    positives: float = 5.0     # of a point
    tokens: float = 14.0       # of a text
    vocabulary: int = 30_522
    gpus: int = 0

    @property
    def texts(self) -> int:
        """Points and labels together."""
        return self.labels + self.points


@dataclass(frozen=True)
class Part:
    """Some bytes: where, in which phase ("" = always), of what, and whether the kernel may take them back."""

    where: str
    phase: str
    what: str
    size: float
    mapped: bool = False


@dataclass(frozen=True)
class Budget:
    """What a method takes at a size; seconds are None where nothing of the kind was measured, or nothing is mined."""

    parts: list[Part]
    epoch: float | None
    refresh: float | None
    every: int               # epochs between two refreshes

    def held(self, where: str, *phases: str) -> list[Part]:
        """Return what is held at once in a place, in the phase of those given, else of all, in which that is most."""
        here = [part for part in self.parts if part.where == where]
        by_phase = [[part for part in here if part.phase in ("", phase)] for phase in phases or (ROUND, REFRESH)]
        return max(by_phase, key=lambda parts: sum(part.size for part in parts))


@dataclass(frozen=True)
class _Sketch:
    """As much of a corpus as models are made of."""

    n_labels: int
    idf: np.ndarray
    graphs: Mapping[str, Any] = field(default_factory=dict)


def with_width(config: Any, width: int | None) -> Any:
    """Return a method's settings with label vectors of `width`: a bag's from scratch, a transformer's by a head.

    None is the width that they have; a bag is from scratch all the same, so that nothing has to be loaded.
    Raises ValueError where vectors are as wide as the transformer that makes them.
    """
    if hasattr(config, "base"):
        return replace(config, base=with_width(config.base, width))
    if config.encoder.kind == "bag":
        return replace(config, encoder=replace(config.encoder, source="random", dim=width or config.encoder.dim))
    if hasattr(config, "dim"):
        return replace(config, dim=width or config.dim)
    other = f", not {width}" if width else ""
    raise ValueError(f"vectors of this method are as wide as its encoder {config.encoder.source!r}{other}; "
                     "plan with a preset whose encoder is a bag, or another method")


def budget(method: Method, size: Size, rates: Mapping[str, Any], stage: str = "") -> Budget:
    """Return what a stage of a method takes, by default the largest; rates: what `read_rates` returns."""
    probed = [(each, *_held(each, method.width, size)) for each in method.stages if stage in ("", each.name)]
    largest, (table, kept), fixed, _ = max(probed, key=lambda each: sum(each[1]) * size.labels + each[2])
    encoder = max(each[3] for each in probed)
    rounds = largest.rounds
    refreshes = [round_ for round_ in rounds if round_.mines]
    width, shares = method.width, max(size.gpus, 1)
    train = DEVICE if size.gpus else HOST
    parts = [
        Part(train, ROUND, "label vectors", table * size.labels / shares),
        Part(train, ROUND, "their moments", kept * size.labels / shares),
        Part(train, ROUND, "the encoder, its gradients and moments", fixed),
        Part(HOST, ROUND, "what label vectors start from", 4.0 * width * size.labels),
        Part(HOST, ROUND, "the order of an epoch", 24.0 * size.points),
        Part(HOST, "", "processes", _at(rates, "cpu", method, width).get("process", 0.0) * shares),
        Part(HOST, "", "files mapped, as far as there is room", _corpus(size), mapped=True),
        Part(DISK, "", "the packed data", _corpus(size)),
        Part(DISK, "", "checkpoints of rounds, until the retriever stands",
             len(rounds) * ((table + kept) * size.labels + fixed)),
        Part(DISK, "", "the retriever", encoder + _examples(size) + 24 * size.vocabulary
             + (2 * 4.0 * width + ann.codes_of(width) / 2 + 6 * size.tokens) * size.labels),
    ]
    if refreshes:
        parts += _refresh(refreshes[-1], size, width, len(refreshes))
        parts.append(Part(HOST, REFRESH, "the model that it mines with", table * size.labels + fixed / 3))
    return Budget(parts, *_seconds(method, refreshes[-1] if refreshes else None, size, width, rates),
                  refreshes[-1].last - refreshes[-1].first if refreshes else 0)


def _refresh(mining: Round, size: Size, width: int, refreshes: int) -> list[Part]:
    """Return what a refresh holds: it runs on the host, whatever trains."""
    vectors, codes = 4.0 * width, ann.codes_of(width) / 2
    parts = [Part(HOST, REFRESH, "vectors of the points", vectors * size.points)]
    if mining.cluster_size:
        parts.append(Part(HOST, REFRESH, "the same in the order of clusters", (vectors + 16) * size.points))
    if mining.negatives:
        parts += [Part(HOST, REFRESH, "vectors and codes of the labels", (vectors + codes) * size.labels),
                  Part(HOST, REFRESH, "hard negatives", 4.0 * mining.negatives * size.points)]
    kept = 4.0 * (mining.negatives + bool(mining.cluster_size)) * size.points
    return [*parts, Part(DISK, "", "what refreshes mined", refreshes * kept)]


def _held(stage: Stage[Any], width: int, size: Size) -> tuple[tuple[float, float], float, float]:
    """Return the bytes of a label's vectors, of its moments, of all that does not grow with the labels, of a model."""
    made = [_probe(stage, width, n, size.vocabulary) for n in PROBED]
    slope = [(more - less) / (PROBED[1] - PROBED[0]) for less, more in zip(*made, strict=True)]
    return (slope[0], slope[1]), sum(made[0]) - sum(slope) * PROBED[0], made[0][0] - slope[0] * PROBED[0]


def _probe(stage: Stage[Any], width: int, n: int, vocabulary: int) -> tuple[float, float]:
    """Return the bytes of a model for n labels, and of what trains it."""
    corpus: Any = _Sketch(n, np.ones(2 * vocabulary, dtype=np.float32))
    vectors = {name: np.zeros((n, width), np.float32) for name in ("labels", "queries")}
    model = stage.build(corpus, vectors)
    optimisers = Optimisers(model, model.tables(), stage.plan)
    dense = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    return (float(sum(each.nbytes for each in model.state_dict().values())),
            float(sum(each.nbytes for each in optimisers.rows_state().values()) + 3 * dense))


def _examples(size: Size) -> float:
    """Return the bytes of the training texts that a retriever shows: their tokens, texts and labels."""
    return (10 * size.tokens + 8 * size.positives + 32) * min(size.points, KEPT * size.labels)


def _corpus(size: Size) -> float:
    """Return the bytes of a packed corpus: tokens, labels of points, texts of labels."""
    rows = (4 * size.tokens + 12) * size.texts + (8 * size.positives + 16) * size.points
    return rows + 6 * size.tokens * size.labels + 16 * size.vocabulary


def _seconds(method: Method, mining: Round | None, size: Size, width: int,
             rates: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return how long an epoch and a refresh take: what is mined, and by what it is searched, is the CPU's to find."""
    device, host = (_at(rates, kind, method, width) for kind in ("cuda" if size.gpus else "cpu", "cpu"))
    epoch = device["train"] * size.points / max(size.gpus, 1) if device else None
    if mining is None or not (host and device):
        return epoch, None
    refresh = device["encode"] * size.texts
    if mining.cluster_size:
        refresh += host["cluster"] * size.points * float(np.log2(max(size.points / mining.cluster_size, 2)))
    if mining.negatives:
        kind = ann.choose("auto", size.labels)
        refresh += host[f"search {kind}"] * size.points * size.labels
        if kind == "quantised":
            refresh += host["score proposed"] * size.points + host["build"] * size.labels
    return epoch, refresh


def _at(rates: Mapping[str, Any], device: str, method: Method, width: int) -> dict[str, float]:
    """Return the rates of a method on a device at a width, by a line through those measured; none where none were."""
    measured = rates.get(device, {}).get(method.timed_as, {}) if method.encoder.kind == "bag" else {}
    (narrow, low), (wide, high) = sorted((int(at), of) for at, of in measured.items()) or [(0, {}), (1, {})]
    share = (width - narrow) / (wide - narrow)
    return {about: low[about] + share * (high[about] - low[about]) for about in low}


def rates_file(home: Path) -> Path:
    """Return where the rates measured on this machine are, in its home; else those measured where this was written."""
    own = home / RATES.name
    return own if own.exists() else RATES


def read_rates(file: Path = RATES) -> dict[str, Any]:
    """Return the rates in a file, by device, method and width; ValueError where they are not what is counted with."""
    try:
        rates: dict[str, Any] = json.loads(file.read_text())
        widths = [of for device in rates.values() for of in device.values()]
        sound = all(len(of) == 2 and all(each.keys() >= WANTED for each in of.values()) for of in widths)
    except (ValueError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"{file} does not hold the rates of each method at two widths that times follow from; "
                         f"remove it, and python -m benchmarks.bench_rates {file} measures them again")
    return rates
