"""Trains the variants that claims compare, on a sampled corpus, several at a time, and remembers their figures."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.claims.measured import measured
from tasks.core.code_digest import code_digests
from tasks.core.step import plain
from tasks.core.store import digest_of
from tasks.training.steps import modules_of
from xcmodels.data.corpus import Corpus
from xcmodels.data.subsample import sample
from xcmodels.method import Method
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.training.local_run import train_all

Figures = dict[str, float]

NEGATIVES = {"astra": {"hard": "50", "uniform": "400"}}    # Table 6's, the shares of 131K labels that they are there


@dataclass(frozen=True)
class Variant:
    """A method with settings over its CPU preset.

    corpus: sample | texts (label texts are training points, too) | thousand (1,000 labels, every query of theirs).
    made: how the method is built of its configuration, where it is none of the package's.
    curve: the precision of the embeddings is measured after every round of the first stage.
    """

    method: str
    settings: Mapping[str, str] = field(default_factory=dict)
    corpus: str = "sample"
    made: Callable[[Any], Method] | None = None
    curve: bool = False

    def build(self, seed: int) -> tuple[Any, Method]:
        """Return its configuration and its method."""
        config = resolve(self.method, "cpu", {**NEGATIVES.get(self.method, {}), **self.settings,
                                              "seed": str(seed)}).method
        return config, (self.made or METHODS[self.method].make)(config)


class Results:
    """The figures of variants, one a seed."""

    def __init__(self, found: Mapping[str, list[Figures]]) -> None:
        self.found = found

    def of(self, variant: str, figure: str) -> np.ndarray:
        """Return a figure of a variant, (seeds,)."""
        return np.array([each[figure] for each in self.found[variant]])

    def mean(self, variant: str, figure: str) -> float:
        """Return the mean over seeds."""
        return float(self.of(variant, figure).mean())

    def spread(self, variant: str, figure: str) -> float:
        """Return the standard deviation over seeds, 0 of a single one."""
        found = self.of(variant, figure)
        return float(found.std(ddof=1)) if len(found) > 1 else 0.0

    def more(self, one: str, other: str, figure: str, figure_of_other: str = "") -> bool:
        """Return whether `one` has more of a figure than `other`, by more than the seeds differ."""
        a, b = self.of(one, figure), self.of(other, figure_of_other or figure)
        spreads = self.spread(one, figure), self.spread(other, figure_of_other or figure)
        return bool(a.mean() - b.mean() > np.sqrt(np.square(spreads).mean()))


class Lab:
    """Corpora sampled from HOME's, and the figures of what was trained on them, kept in HOME/claims."""

    def __init__(self, home: Path, *, labels: int, queries: int, seeds: int, workers: int) -> None:
        packed = sorted(home.glob("objects/*/corpus.json")) or sys.exit(
            f"no corpus in {home}; make one with: xc prepare --data DIR --home {home}")
        self.whole, self.folder = Corpus(packed[0].parent), home / "claims"
        self.seeds, self.workers = range(seeds), workers
        self.folder.mkdir(exist_ok=True)
        drawn = {"labels": labels, "queries": queries, "together": True}
        self.corpora = {"sample": self._sampled(drawn), "texts": self._sampled({**drawn, "augment": True}),
                        "thousand": self._sampled({"labels": 1000, "queries": 20_000})}

    def train(self, variants: Iterable[Variant]) -> None:
        """Train, on one thread each and `workers` at a time, what has no figures yet."""
        wanted = {self._kept(variant, seed): (variant, seed) for seed in self.seeds for variant in variants}
        missing = {path: each for path, each in wanted.items() if not path.exists()}
        with ProcessPoolExecutor(self.workers, get_context("spawn")) as pool:
            jobs = {pool.submit(_train, *each, self.corpora[each[0].corpus], path): each
                    for path, each in missing.items()}
            for done, job in enumerate(as_completed(jobs), start=1):
                variant, seed = jobs[job]
                print(f"  trained {done} of {len(jobs)}: {variant.method} "
                      f"{' '.join(f'{k}={v}' for k, v in variant.settings.items())} seed {seed}, "
                      f"{job.result():.0f} s of CPU", file=sys.stderr, flush=True)

    def results(self, variants: Mapping[str, Variant]) -> Results:
        """Return the figures of every variant and seed."""
        return Results({name: [json.loads(self._kept(variant, seed).read_text()) for seed in self.seeds]
                        for name, variant in variants.items()})

    def corpus(self, name: str) -> Corpus:
        """Return a sampled corpus."""
        return Corpus(self.corpora[name])

    def _sampled(self, drawn: Mapping[str, Any]) -> Path:
        folder = self.folder / ("corpus-" + digest_of({"from": self.whole.folder.name, **drawn})[:12])
        if not folder.exists():
            scratch = Path(tempfile.mkdtemp(dir=self.folder))
            sample(self.whole, scratch / "made", **drawn)
            (scratch / "made").rename(folder)
            scratch.rmdir()
        return folder

    def _kept(self, variant: Variant, seed: int) -> Path:
        config, method = variant.build(seed)
        made = variant.made.__name__ if variant.made else ""
        code = {name for part in (*method.stages, method.build_retriever) for name in modules_of(part)}
        return self.folder / (digest_of({
            "config": plain(config), "corpus": self.corpora[variant.corpus].name, "curve": variant.curve, "made": made,
            "code": code_digests("xcmodels.training.local_run", *sorted(code))}) + ".json")


def _train(variant: Variant, seed: int, folder: Path, kept: Path) -> float:
    """Train a variant and keep its figures; return the seconds of CPU that training took."""
    torch.set_num_threads(1)
    corpus = Corpus(folder)
    scratch = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        began = time.process_time()
        trial = train_all(corpus, variant.build(seed)[1], scratch)
        seconds = time.process_time() - began
        figures = {**measured(trial, curve=variant.curve), "seconds": seconds}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    kept.with_suffix(".tmp").write_text(json.dumps(figures, indent=1))
    kept.with_suffix(".tmp").rename(kept)
    return seconds
