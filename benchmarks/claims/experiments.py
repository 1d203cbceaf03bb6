"""Train the variants that claims compare on sampled corpora, in parallel, and store their figures."""

import inspect
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import to_jsonable_python
from scipy import stats

from benchmarks.claims import subsample
from benchmarks.claims.figures import Figures, test_figures
from benchmarks.measuring import process_pool, write_whole
from tasks.core.code_digest import code_digests
from tasks.core.store import digest_of
from tasks.training.recipe import modules_of
from xcmodels.data.corpus import Corpus
from xcmodels.method import EncoderStage, Method
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.methods.ramen.method import RamenRetrieverBuilder
from xcmodels.methods.ramen.stages import GraphStage
from xcmodels.methods.retriever_builder import EncoderRetrieverBuilder
from xcmodels.retrieval.serving_config import ENCODER
from xcmodels.training.local_run import train_all

# Methods rank as in their papers. ASTRA has a hard negative for eight uniform ones, as Table 6's first row.
AS_PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "astra": {"hard": "50", "uniform": "400", "serve": "classifier"}, "unidec": {"serve": "sum"},
    **{dual_encoder: {"serve": "encoder"} for dual_encoder in ("depsl", "dpr", "ance", "ramen-ance")},
    "siamesexml": {"serve": "mixed"}, "siamesexml++": {"serve": "mixed"}}


@dataclass(frozen=True)
class Variant:
    """A method with changes to its CPU preset.

    corpus: sample | texts (with label texts as training points) | thousand (1,000 labels drawn uniformly, with 20,000
    of their queries at most) | whole (the corpus that the others are sampled from).
    alone: the first stage alone is trained, and labels are ranked by its embeddings.
    build_method: builds a method that is not in the registry from its configuration.
    curve: whether to measure the precision of the embeddings after each round of the first stage.
    """

    method: str
    settings: Mapping[str, str] = field(default_factory=dict)
    corpus: str = "sample"
    alone: bool = False
    build_method: Callable[[Any], Method] | None = None
    curve: bool = False

    def build(self, seed: int) -> tuple[Any, Method]:
        """Return the configuration and the method."""
        settings = {**AS_PUBLISHED.get(self.method, {}), **self.settings, "seed": str(seed)}
        base = "base." if self.method.startswith("ramen") else ""
        config = resolve(self.method, "cpu", {f"{base}{name}" if name == "serve" else name: value
                                              for name, value in settings.items()}).method
        method = (self.build_method or METHODS[self.method].make)(config)
        return config, first_stage(method, config) if self.alone else method


def first_stage(method: Method, config: Any) -> Method:
    """Return the method without its later stages, served by the embeddings of the first."""
    first = method.stages[0]
    assert isinstance(first, EncoderStage)
    if not isinstance(first, GraphStage):
        builder = EncoderRetrieverBuilder(method.name, replace(config, serve=ENCODER), first)
        return replace(method, stages=[first], build_retriever=builder)
    builder = EncoderRetrieverBuilder(method.name, replace(config.base, serve=ENCODER), first.base)
    return replace(method, stages=[first], build_retriever=RamenRetrieverBuilder(builder, first))


class Results:
    """The figures of each variant, one set per seed."""

    def __init__(self, by_variant: Mapping[str, list[Figures]]) -> None:
        self.by_variant = by_variant

    def by_seed(self, variant: str, figure: str) -> np.ndarray:
        """Return a figure of a variant for each seed: shape (seeds,)."""
        return np.array([figures[figure] for figures in self.by_variant[variant]])

    def mean(self, variant: str, figure: str) -> float:
        """Return the mean over seeds."""
        return float(self.by_seed(variant, figure).mean())

    def deviation(self, variant: str, figure: str) -> float:
        """Return the standard deviation over seeds, 0 for a single seed."""
        values = self.by_seed(variant, figure)
        return float(values.std(ddof=1)) if len(values) > 1 else 0.0

    def beats(self, one: str, other: str, figure: str, figure_of_other: str = "") -> bool:
        """Return whether `one` is larger seed by seed: by the paired t-test, one-sided, at 5%."""
        gains = self.by_seed(one, figure) - self.by_seed(other, figure_of_other or figure)
        if len(gains) < 2 or not gains.std():
            return bool(gains.mean() > 0)
        return bool(stats.ttest_1samp(gains, 0, alternative="greater").pvalue < 0.05)


def packed_corpus(home: Path) -> Corpus:
    """Return the one corpus that is packed in HOME; ends the program where there is none, or several."""
    packed = sorted(home.glob("objects/*/corpus.json")) or sys.exit(
        f"no corpus in {home}; make one with: xc prepare --data DIR --home {home}")
    if len(packed) > 1:
        sys.exit(f"{home} has {len(packed)} corpora; name a home with one, a new one for example: "
                 "xc prepare --data DIR --home NEW")
    return Corpus(packed[0].parent)


class Experiments:
    """Corpora sampled from the corpus in HOME, and the figures of variants trained on them, stored in HOME/claims."""

    def __init__(self, home: Path, *, labels: int, queries: int, seeds: int, workers: int) -> None:
        self.full, self.folder = packed_corpus(home), home / "claims"
        self.seeds, self.workers = range(seeds), workers
        self.folder.mkdir(exist_ok=True)
        options = {"labels": labels, "queries": queries, "together": True}
        self.corpora = {"whole": self.full.folder, "sample": self._sampled(options),
                        "texts": self._sampled({**options, "augment": True}),
                        "thousand": self._sampled({"labels": 1000, "queries": 20_000})}

    def train(self, variants: Iterable[Variant]) -> None:
        """Train the variants without stored figures, `workers` at a time with one thread each.

        An error ends it as soon as those that are being trained have ended; what was trained stays.
        """
        trainings = {self._figures_file(variant, seed): (variant, seed) for seed in self.seeds for variant in variants}
        missing = {path: training for path, training in trainings.items() if not path.exists()}
        with process_pool(self.workers) as pool:
            jobs = {pool.submit(_train, variant, seed, self.corpora[variant.corpus], path): (variant, seed)
                    for path, (variant, seed) in missing.items()}
            try:
                for done, job in enumerate(as_completed(jobs), start=1):
                    variant, seed = jobs[job]
                    print(f"  trained {done} of {len(jobs)}: {variant.method} "
                          f"{' '.join(f'{k}={v}' for k, v in variant.settings.items())} seed {seed}, "
                          f"{job.result():.0f} s of CPU", file=sys.stderr, flush=True)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)    # or the others were waited for, for hours
                raise

    def results(self, variants: Mapping[str, Variant]) -> Results:
        """Return the figures of every variant and seed."""
        return Results({name: [json.loads(self._figures_file(variant, seed).read_text()) for seed in self.seeds]
                        for name, variant in variants.items()})

    def corpus(self, name: str) -> Corpus:
        """Return a sampled corpus."""
        return Corpus(self.corpora[name])

    def _sampled(self, options: Mapping[str, Any]) -> Path:
        """Return the folder of a sampled corpus; sample it at the first call."""
        code = inspect.getsource(subsample)
        folder = self.folder / ("corpus-" + digest_of({"from": self.full.folder.name, "code": code, **options})[:12])
        if not folder.exists():
            scratch = Path(tempfile.mkdtemp(dir=self.folder))
            subsample.sample(self.full, scratch / "corpus", **options)
            (scratch / "corpus").rename(folder)
            scratch.rmdir()
        return folder

    def _figures_file(self, variant: Variant, seed: int) -> Path:
        """Return the file of a training's figures, named by a digest of its settings, code and corpus."""
        config, method = variant.build(seed)
        builder = variant.build_method.__name__ if variant.build_method else ""
        # no code of the benchmarks themselves is among the digests of the project's code
        own = [part.__module__ for part in (test_figures, variant.build_method) if part]
        code = {name for part in (*method.stages, method.build_retriever) for name in modules_of(part)}
        return self.folder / (digest_of({
            "config": to_jsonable_python(config), "corpus": self.corpora[variant.corpus].name, "curve": variant.curve,
            "stages": [stage.name for stage in method.stages],
            "builder": builder, "own code": [inspect.getsource(sys.modules[name]) for name in own],
            "code": code_digests("xcmodels.training.local_run", "xcmodels.retrieval.ranker", "xcmodels.metrics",
                                 *sorted(code))}) + ".json")


def _train(variant: Variant, seed: int, corpus_folder: Path, out: Path) -> float:
    """Train a variant and write its figures to `out`; return the CPU seconds of training."""
    torch.set_num_threads(1)
    corpus = Corpus(corpus_folder)
    scratch = Path(tempfile.mkdtemp(dir=out.parent))
    try:
        start = time.process_time()
        trained = train_all(corpus, variant.build(seed)[1], scratch)
        seconds = time.process_time() - start
        figures = {**test_figures(trained, curve=variant.curve), "seconds": seconds}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_whole(out, json.dumps(figures, indent=1))
    return seconds
