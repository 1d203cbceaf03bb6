"""A packed corpus that trains in seconds: each label has words of its own, queries contain words of their labels."""

import json
import pickle
import shutil
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from tests.support.shared import shared
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.tokens import Tokenizer
from xcmodels.method import Method
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.astra.config import AstraConfig
from xcmodels.methods.ngame.config import ClassifierModuleConfig, NgameConfig
from xcmodels.methods.ngame_m1 import EncoderModuleConfig
from xcmodels.methods.presets import resolve
from xcmodels.methods.ramen.config import GraphConfig, RamenConfig
from xcmodels.methods.siamesexml.config import LikelihoodConfig, SiamesexmlConfig
from xcmodels.methods.unidec.config import UnidecConfig
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.predictions import match
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving_config import FusionConfig
from xcmodels.training.local_run import TrainedMethod, run_round, train_all
from xcmodels.training.loop import P1, Interrupted, Progress, Watch

WORDS = 5        # of a label; its title shows the first two, so the others must be learned
FILLERS = 12     # words of no label
MOST = 3         # labels of a query, at most


def backend(labels: int) -> Backend:
    """Return a tokenizer of whole words with fixed ids."""
    words = ["[PAD]", "[UNK]", *(f"filler{i}" for i in range(FILLERS)),
             *(word(label, i) for label in range(labels) for i in range(WORDS))]
    made = Backend(models.WordLevel({text: i for i, text in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return made


def word(label: int, i: int) -> str:
    return f"l{label}w{i}"


def toy_corpus(folder: Path, *, queries: int = 600, labels: int = 60, tests: int = 150, seed: int = 0,
               validation: int = 60, augment: bool = False) -> Corpus:
    """Write the corpus in the layout of `xcmodels.data.corpus` and open it; the same arguments give the same files.

    A filter pair of a training query is a label whose words the query mentions though it is none of its positives;
    a filter pair of a test query is one of its positives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    Tokenizer(backend(labels), max_title=12, max_content=12).save(folder / "tokenizer")
    tokenizer = Tokenizer.load(folder / "tokenizer")
    counts = {"train": queries, "test": tests, "label": labels}
    texts = {"label": ([f"{word(i, 0)} {word(i, 1)}" for i in range(labels)],
                       [f"filler{i % FILLERS} {word(i, 0)}" for i in range(labels)])}
    for split in ("train", "test"):
        positives, filters, texts[split] = _queries(rng, counts[split], labels, split)
        if split == "train" and augment:
            positives += [[label] for label in range(labels)]
            filters += [[]] * labels
            texts[split] = tuple(mine + labels_ for mine, labels_ in zip(texts[split], texts["label"], strict=True))
        _ragged(positives).save(folder, f"positives.{split}")
        _ragged(filters).save(folder, f"filters.{split}")
    for side, (titles, contents) in texts.items():
        tokens = tokenizer(titles, contents)
        Ragged(tokens.offsets.numpy(), tokens.ids.numpy().astype(np.int32)).save(folder, f"{side}.tokens")
        np.save(folder / f"{side}.titles.npy", tokens.titles.numpy().astype(np.int32))
        Texts.save(folder, f"{side}.title", list(titles))
        Texts.save(folder, f"{side}.content", list(contents))
        Texts.save(folder, f"{side}.uid", [f"{side}:{i}" for i in range(len(titles))])
    Texts.save(folder, "train.text", list(texts["train"][0])[:queries])
    _write_graph(folder, tokenizer, labels, rng)
    np.save(folder / "idf.npy", _idf(tokenizer, [texts["train"], texts["label"]]))
    np.save(folder / "validation.npy", np.sort(rng.permutation(queries)[:validation]))
    facts = counts | {"name": "toy", "augmented": labels if augment else 0, "vocabulary": tokenizer.size,
                      "anchors": ["group"], "propensity": [0.55, 1.5]}
    (folder / "corpus.json").write_text(json.dumps(facts))
    return Corpus(folder)


GROUP = 3        # labels that share an anchor


def weighted(corpus: Corpus, weights: np.ndarray) -> Corpus:
    """Return the corpus whose training positives have `weights` (n,) in training."""
    made = copy(corpus)
    for cached in ("train_positives", "train_weights"):
        vars(made).pop(cached, None)
    made.weights = weights.astype(np.float32)
    return made


def _write_graph(folder: Path, tokenizer: Tokenizer, labels: int, rng: np.random.Generator) -> None:
    """An anchor for each group of labels, whose text is of words that the labels' own do not show, and noisy edges."""
    groups = -(-labels // GROUP)
    texts = [" ".join(word(label, 2) for label in range(group * GROUP, min(labels, (group + 1) * GROUP)))
             for group in range(groups)]
    tokens = tokenizer(texts, [""] * groups)
    Ragged(tokens.offsets.numpy(), tokens.ids.numpy().astype(np.int32)).save(folder, "anchors.group.tokens")
    np.save(folder / "anchors.group.titles.npy", tokens.titles.numpy().astype(np.int32))
    truth = Ragged.load(folder, "positives.train")
    for side, rows in (("train", [truth[row] for row in range(len(truth))]), ("label", np.arange(labels)[:, None])):
        edges = [{*(row // GROUP).tolist(), *rng.choice(groups, int(rng.random() < 0.3)).tolist()} for row in rows]
        _ragged([sorted(row) for row in edges]).save(folder, f"walks.group.{side}")


def _queries(rng: np.random.Generator, n: int, labels: int, split: str):
    """Positives, filters, and (titles, contents) of n queries; frequent labels are drawn more often."""
    share = 1 / np.arange(1, labels + 1) ** 0.3
    positives, filters, titles, contents = [], [], [], []
    for _ in range(n):
        drawn = rng.choice(labels, rng.integers(1, MOST + 1), replace=False, p=share / share.sum()).tolist()
        title = [word(label, i) for label in drawn for i in rng.permutation(WORDS)[:3]]
        content = [word(drawn[0], int(rng.integers(WORDS))), f"filler{rng.integers(FILLERS)}"]
        filtered = []
        if rng.random() < 0.2:
            if split == "train":
                filtered = [int(rng.choice(np.setdiff1d(np.arange(labels), drawn)))]
                content += [word(filtered[0], i) for i in range(WORDS)]
            elif len(drawn) > 1:
                filtered = drawn[:1]
        title.append(f"filler{rng.integers(FILLERS)}")
        positives.append(sorted(drawn))
        filters.append(filtered)
        titles.append(" ".join(title))
        contents.append(" ".join(content))
    return positives, filters, (titles, contents)


def _ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.cumsum([0] + [len(row) for row in rows]), np.array([x for row in rows for x in row], np.int32))


def _idf(tokenizer: Tokenizer, sides: list) -> np.ndarray:
    """log((n + 1) / (df + 1)) of each token in titles, then of each token in contents."""
    df, n = np.zeros((2, tokenizer.size)), 0
    for titles, contents in sides:
        n += len(titles)
        for field, part in enumerate(tokenizer.title_and_content_ids(titles, contents)):
            for ids in part:
                for token in set(ids):
                    df[field, token] += 1
    return np.log((n + 1) / (df + 1)).astype(np.float32).ravel()


_BAG = EncoderConfig(source="random", dim=32, batch=256)
_FUSION = FusionConfig(shortlist=20, min_leaf=20)
NGAME = NgameConfig(
    m1=EncoderModuleConfig(epochs=12, batch_size=64, lr=2e-3, table_lr=1e-2, warmup=5, refresh_from=4, refresh_every=4,
                    double_every=4, cluster_size=4, cluster_max=8),
    m2=ClassifierModuleConfig(epochs=6, batch_size=64, table_lr=1e-2, warmup=5, refresh_from=0, refresh_every=6,
                    double_every=6, cluster_size=4, cluster_max=8, positives=3, dropout=0.3),
    fusion=_FUSION, encoder=replace(_BAG, token_dropout=0.1, idf_power=1.0))
ASTRA = AstraConfig(epochs=8, batch_size=64, lr=2e-3, token_lr=1e-2, label_lr=0.1, warmup=5, refresh_from=3,
                    refresh_every=3, ahead=1, positives=3, hard=5, uniform=20, encoder=_BAG)
UNIDEC = UnidecConfig(epochs=8, batch_size=64, lr=2e-3, token_lr=1e-2, label_lr=1e-2, warmup=5, refresh_from=4,
                      refresh_every=2, double_every=2, cluster_size=4, cluster_max=8, negatives=3, positives=2,
                      encoder=_BAG)
SIAMESEXML = SiamesexmlConfig(
    siamese=LikelihoodConfig(epochs=30, batch_size=32, lr=2e-3, table_lr=1e-2, warmup=5, c=0.9, d=1.5, negatives=3),
    extreme=LikelihoodConfig(epochs=6, batch_size=64, lr=2e-3, table_lr=1e-2, warmup=5, c=0.75, d=3.0, negatives=3),
    shortlist=20, mined=8, dropout=0.1, token_lr=3e-3, encoder=_BAG)


def _relative(name: str, refresh_every: int) -> UnidecConfig:
    """UniDEC's toy settings with what makes it another dual encoder."""
    own = resolve(name, "cpu", {}).method
    return replace(UNIDEC, refresh_every=refresh_every, **{key: getattr(own, key) for key in (
        "balance", "serve", "positives", "pooled", "symmetric", "cluster_size", "cluster_max", "negatives",
        "every_label")})


def low_bytes(config: Any) -> Any:
    """Return a method's settings with its tables in bfloat16, and moments of rows."""
    parts = [name for name in ("base", "m1", "m2", "siamese", "extreme") if getattr(config, name, None) is not None]
    own = {"table_dtype": "bfloat16", "table_moments": "rowwise"} if hasattr(config, "table_dtype") else {}
    return replace(config, **own, **{name: low_bytes(getattr(config, name)) for name in parts})


_ANCE, _ADAPT = _relative("ance", 2), GraphConfig(adapt=True)
# Settings that learn the toy corpus in seconds; a name begins with its method's.
FAMILIES: dict[str, Any] = {
    "ngame": NGAME, "astra": ASTRA, "renee": replace(ASTRA, every_label=True), "unidec": UNIDEC,
    "depsl": replace(UNIDEC, balance=1.0, serve="encoder"), "siamesexml": SIAMESEXML,
    "siamesexml partitions": replace(SIAMESEXML, partitions=3, correlation=False, scored_centroid=0.25),
    "siamesexml++": replace(SIAMESEXML, joint=True, scored_centroid=0.5, scored_query="intermediate",
                            siamese=replace(SIAMESEXML.siamese, epochs=10, least_steps=8)),    # passes, resumed too
    "ramen": RamenConfig(NGAME, _ADAPT), "ramen-ance": RamenConfig(_ANCE, _ADAPT),
    "ramen-unidec": RamenConfig(UNIDEC, _ADAPT)}
VARIANTS: dict[str, Any] = {
    "dpr": _relative("dpr", 2), "ance": _ANCE,
    "tas": replace(_relative("tas", 10_000), refresh_from=0, cluster_size=64, cluster_max=64),
    "dexml": _relative("dexml", 2),
    **{f"astra {name}": replace(ASTRA, **changed) for name, changed in {
        "random": {"negatives": "random"}, "hard": {"negatives": "hard"}, "curriculum": {"negatives": "curriculum"},
        "over the encoder": {"source": "encoder"}, "fresh": {"ahead": 0}, "one positive": {"positives": 1},
        "bottleneck": {"dim": 24}, "after M1": {"start": "encoder", "m1": NGAME.m1}}.items()},
    **{f"unidec {name}": replace(UNIDEC, **changed) for name, changed in {
        "tanh": {"head": "tanh", "dim": 24}, "supcon": {"loss": "supcon", "symmetric": 0.0}, "bce": {"bce": 0.1},
        "bce alone": {"softmax": 0.0, "bce": 3.0},
        "classifier": {"balance": 0.0, "serve": "classifier"},
        "fused": {"serve": "fused", "unit": False, "fusion": _FUSION}}.items()},
    **{f"{name} low bytes": low_bytes(FAMILIES[name]) for name in (
        "ngame", "astra", "renee", "unidec", "siamesexml", "siamesexml++", "ramen-ance")},
    "ngame unit": replace(NGAME, m2=replace(NGAME.m2, unit=True)),
    "ngame mined": replace(NGAME, m1=replace(NGAME.m1, cluster_size=0, mined=2, refresh_from=0)),
    "ramen fixed": RamenConfig(NGAME), "ramen labels": RamenConfig(NGAME, GraphConfig(sides="labels")),
    "ramen-ance fixed": RamenConfig(_ANCE), "ramen-ance unpruned": RamenConfig(_ANCE, GraphConfig(prune=False)),
    "ramen-ance queries": RamenConfig(_ANCE, GraphConfig(sides="queries"))}


def toy_config(**overrides: Any) -> NgameConfig:
    """Return NGAME's settings for the toy corpus, changed."""
    return replace(NGAME, **overrides)


def made_by(name: str, config: Any) -> Method:
    """Return the method of a name in FAMILIES or VARIANTS for other settings."""
    return METHODS[name.split(maxsplit=1)[0]].make(config)


_RESULTS = ("mined", "starts", "befores", "outs", "metrics", "vectors", "measured")


@cache
def trained(name: str) -> TrainedMethod:
    """Return what FAMILIES or VARIANTS has under `name`, trained on the toy corpus with one thread, once a session.

    The first process that asks trains it, for seconds; the others read what it left.
    """
    torch.set_num_threads(1)
    corpus, method = _shared_corpus(), made_by(name, (FAMILIES | VARIANTS)[name])

    def make(folder: Path) -> None:
        shutil.rmtree(folder / "made", ignore_errors=True)    # of a process that failed: nothing may go on from it
        made = train_all(corpus, method, folder / "made")
        (folder / "results").write_bytes(pickle.dumps({part: getattr(made, part) for part in _RESULTS}))

    folder = shared(f"toy {name}", make)
    results = pickle.loads((folder / "results").read_bytes())
    return TrainedMethod(corpus, method, folder / "made" / "retriever", **results)


@cache
def _shared_corpus() -> Corpus:
    return Corpus(shared("toy", lambda folder: toy_corpus(folder / "corpus")) / "corpus")


def precision(made: TrainedMethod) -> float:
    """Return P@1 of a trained method on the test split, in percent; check the validation curve of each stage.

    No stage may end more than 5 points below its first epoch, and the last one must end above 75.
    """
    curves = {stage.name: [epoch[P1] for name, round_ in made.rounds.items() if round_.stage == stage.name
                         for epoch in made.metrics[name]] for stage in made.method.stages}
    assert all(curve[-1] >= curve[0] - 5 for curve in curves.values()), curves
    assert list(curves.values())[-1][-1] > 75, curves
    ids, _ = predict(Retriever.load(made.retriever), made.corpus, 10)
    truth, filters = made.corpus.positives["test"], made.corpus.filters["test"]
    return 100 * match(ids, truth, filters, made.corpus.n_labels).hits[:, 0].mean()


def ends_the_same_when_stopped(made: TrainedMethod, folder: Path, every: int) -> None:
    """Train every round again, stopped and resumed every `every` steps; checkpoints must equal those of `made`."""
    for name, round_ in made.rounds.items():
        stage, mined, stops = made.method.stage(round_.stage), made.mined[name], 0
        while True:
            done: list[Progress] = []
            watch = Watch(report=done.append, stop=lambda done=done: len(done) >= every)
            try:
                out, measured = run_round(made.corpus, stage, round_, mined, folder / name, start=made.starts[name],
                                          before=made.befores[name], watch=watch)
                break
            except Interrupted:
                assert len(list((folder / name / "scratch").glob("*.safetensors"))) == 1
                stops += 1
        rows = len(stage.order(made.corpus, mined, round_.first))
        assert stops == (round_.stop - round_.first) * stage.plan.steps_an_epoch(rows) // every
        assert measured == made.metrics[name]
        for file in ("model.safetensors", "optimiser.safetensors"):
            mine, wanted = load_file(out / file), load_file(made.outs[name] / file)
            assert mine.keys() == wanted.keys()
            assert all(torch.equal(mine[key], wanted[key]) for key in wanted)
