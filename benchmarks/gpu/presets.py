"""How accurate are the presets `minilm` of all methods on WordNet, in the time that one GPU has for each?

A method whose whole schedule would not fit is trained by a shorter one: all its epochs, refreshes and warm-ups are cut
by the same share, which the row says. P and PSP are of the validation queries (a twentieth of the training queries,
which no method trains on), ranked exactly by the vectors of the last stage, by the answers that a test would judge. So
they are not the test figures of other pages, and of a shortened schedule they are a lower bound.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.scale import Scale
from benchmarks.gpu.steps import loop_figures, tried
from benchmarks.gpu.tables import Row
from benchmarks.measuring import mined_at_random
from xcmodels import metrics
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.judged_answers import JudgedAnswers
from xcmodels.data.propensity import inverse_propensity
from xcmodels.method import Method
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import PRESETS, flat, resolve
from xcmodels.nn.devices import device, fast_products
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import TrainedMethod, train_all

EACH = 24.0       # seconds of training a method, mining and embedding beside
SHARED = 0.7      # of them that are steps: the rest embeds and mines
SCHEDULE = ("epochs", "refresh_from", "refresh_every", "double_every", "warmup")
BEST = 5
TOGETHER = 256    # queries that are ranked at once


def shortened(config: Any, share: float) -> Any:
    """Return a method's settings with every number of epochs and of warm-up steps cut to a share, at least 1."""
    changes: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            changes[field.name] = shortened(value, share)
        elif field.name in SCHEDULE and value:
            changes[field.name] = max(1, round(share * value))
    return replace(config, **changes)


def epochs(method: Method) -> int:
    """Return the epochs of all stages."""
    return sum(stage.plan.epochs for stage in method.stages)


def seconds_needed(scale: Scale, method: Method, corpus: Corpus) -> float:
    """Return the seconds that all steps of a method would take, by those of its first stage."""
    stage, n = method.stages[0], len(corpus.training_rows())
    each, _ = loop_figures(scale, stage, corpus, mined_at_random(stage, corpus))
    return each * sum(stage.plan.steps(n) for stage in method.stages)


@fast_products()
def accuracy(trained: TrainedMethod) -> dict[str, float]:
    """Return P and PSP of the validation queries, ranked exactly by the vectors of the last stage.

    As in training, pairs that training shows the other way round do not count, nor labels that no training query has;
    where no query is left, nothing is returned.
    """
    corpus, stage = trained.corpus, trained.method.stages[-1]
    judged = JudgedAnswers.of(corpus)
    places, true_labels = np.divmod(judged.truth, corpus.n_labels)
    validated = np.unique(places)
    if not len(validated):
        return {}
    model = read_model(stage, corpus, trained.models[stage.name], trained.vectors).to(device()).eval()
    queries, labels = stage.ranking_vectors(model, corpus, trained.mined[stage.rounds[-1].name],
                                            corpus.validation[validated])
    targets, has_query = (torch.from_numpy(array).to(device()) for array in (labels, judged.has_query))
    found = []
    for start in range(0, len(validated), TOGETHER):
        scores = torch.from_numpy(queries[start:start + TOGETHER]).to(device()) @ targets.T
        unjudged, lengths = judged.unjudged.take(validated[start:start + TOGETHER])
        scores[np.repeat(np.arange(len(lengths)), lengths), unjudged] = -torch.inf
        found.append(scores.where(has_query, -torch.inf).topk(min(BEST, len(targets)), 1).indices.cpu().numpy())
    truth = Ragged.of_pairs(np.searchsorted(validated, places), true_labels, len(validated))
    measured = metrics.evaluate(np.concatenate(found), (truth.offsets, truth.values), None,
                                inverse_propensity(corpus), ks=(1, BEST), recall_ks=())
    return {metrics.name_of(name): measured[name] for name in metrics.SHOWN[:4]}


def trained_row(scale: Scale, corpus: Corpus, name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what a method reaches within its time."""
    config, make = resolve(name, "minilm", dict(settings)).method, METHODS[name].make
    whole, began = make(config), time.perf_counter()
    share = min(1.0, SHARED * EACH * scale.share / seconds_needed(scale, whole, corpus))
    method = replace(make(shortened(config, share)), build_retriever=lambda *given: {})    # vectors are measured
    scale.forget_memory()
    with tempfile.TemporaryDirectory(dir=scale.scratch) as folder:
        trained = train_all(corpus, method, Path(folder))
        found = accuracy(trained)
    return {"epochs": epochs(method), "of the preset's": epochs(whole), **found,
            "s": time.perf_counter() - began, "GB": scale.peak_memory()}


def wordnet(scale: Scale) -> Corpus:
    """Return the corpus to train on: the packed one or the raw data that was named, or WordNet, fetched."""
    folder = scale.data
    if folder and (folder / "corpus.json").exists():
        return Corpus(folder)
    from tasks.core.dask_workers import Workers
    from tasks.core.step import run_all
    from tasks.core.store import Store
    from tasks.data.sources.wordnet import write_wordnet
    from tasks.plan import pipeline

    if folder is None:
        folder = scale.scratch / "wordnet"
        write_wordnet(folder)
    store = Store(scale.scratch / "home")
    with store.run_lock(), Workers(count=0) as workers:
        plan = pipeline(folder, "ngame", "minilm", {})
        return Corpus(store.open(run_all(plan.prepare, store, workers)["pack"]))


def small_settings(scale: Scale, name: str) -> dict[str, str]:
    """Return settings that train a method in a second on the small corpus; none for a whole measurement."""
    if not scale.small:
        return {}
    known, source = flat(resolve(name, "minilm", {})), str(scale.encoder("MiniLM-sized"))
    return {key: "8" if key.endswith("batch_size") else source for key in known
            if key.endswith(("batch_size", "encoder.source"))}


def rows(scale: Scale) -> Iterator[Row]:
    """Yield a row for each method that has the preset."""
    corpus = scale.synthetic("corpus", scale.sizes.corpus) if scale.small else wordnet(scale)
    for name in PRESETS:
        if "minilm" not in PRESETS[name]:
            continue
        if name.startswith("ramen") and not corpus.graphs:
            yield {"method": name, "note": "the data has no metadata graphs"}
            continue
        yield {"method": name, **tried(lambda name=name: trained_row(scale, corpus, name, small_settings(scale, name)))}
