"""Claims that need no trained variant: of an estimator, of what a step and a refresh cost."""

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO

import numpy as np
import torch

from benchmarks import bench_classifier_step
from benchmarks.claims.lab import Lab, Variant
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.astra.stages import JointStage
from xcmodels.methods.ngame.stages import EncoderModule
from xcmodels.methods.presets import resolve
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval import ann


@dataclass(frozen=True)
class Shown:
    """What a paper says, and what shows it: lines to print, and whether it holds."""

    number: int
    says: str
    paper: str
    show: Callable[[Lab], tuple[list[str], bool]]


def unbiased(lab: Lab, draws: int = 2000, queries: int = 64) -> tuple[list[str], bool]:
    """Compare the mean of many draws of the estimate with the loss over every label."""
    corpus = lab.corpus("thousand")
    config = replace(Variant("astra").build(0)[0], positives=2, hard=20, uniform=50)
    sampled, every = JointStage(config), JointStage(replace(config, every_label=True))
    model = sampled.build(corpus, {})
    sampled.begin(model, corpus, None)
    (round_,) = (each for each in sampled.rounds if each.index == len(sampled.rounds) - 1)
    mined = sampled.mine(sampled.vectors(model, corpus), corpus, round_)
    rows = corpus.training_rows()[:queries]

    def loss(stage: JointStage, rng: np.random.Generator) -> float:
        with torch.no_grad():
            batch = stage.batch(corpus, round_, mined, rows, rng)
            return float(sum(stage.loss(model, batch).values()))  # type: ignore[arg-type]

    model.eval()
    whole = loss(every, seeds.generator(0, "none"))
    found = np.array([loss(sampled, seeds.generator(0, "draw", draw)) for draw in range(draws)])
    off, error = found.mean() - whole, found.std(ddof=1) / draws**0.5
    return [f"over every label {whole:.4f}; {draws:,} draws of {config.hard} hard and {config.uniform} uniform "
            f"negatives of {corpus.n_labels:,}: {found.mean():.4f} (standard error {error:.4f})"], abs(off) < 3 * error


def cost_of_a_step(lab: Lab) -> tuple[list[str], bool]:
    """Time ASTRA's classifier step and the one over all labels, at 131K and at 1.3M labels."""
    held = StringIO()
    with redirect_stdout(held):
        bench_classifier_step.main()
    lines = held.getvalue().splitlines()
    small, large = ([float(part.replace(",", "")) for part in line.split()] for line in lines[-2:])
    return lines, large[1] < 2 * small[1] and large[2] > 5 * small[2]


def cost_of_mining(lab: Lab, timed: int = 5, batch: int = 64) -> tuple[list[str], bool]:
    """Time what NGAME and ANCE refresh beside an epoch with MiniLM; the epoch is told by some of its steps."""
    corpus = lab.whole
    config = resolve("ngame", "minilm", {"m1.batch_size": str(batch)}).method
    stage = EncoderModule(config)  # type: ignore[arg-type]
    model = stage.build(corpus, {})
    rows = corpus.training_rows()
    rng = seeds.generator(0, "claims", "mining")
    steps = []
    for part in np.split(rng.permutation(rows)[:timed * batch], timed):
        began = time.perf_counter()
        made = stage.batch(corpus, stage.rounds[0], Mined(), part, rng)
        sum(stage.loss(model.train(), made).values()).backward()  # type: ignore[union-attr]
        model.zero_grad()
        steps.append(time.perf_counter() - began)
    epoch = float(np.median(steps)) * len(rows) / batch
    embed = {}
    for side, view in (("train", QUERY), ("label", LABEL)):
        some = rng.permutation(len(corpus.sides[side]))[:512]
        embed[side] = _seconds(partial(encode_all, model, corpus.sides[side], view, rows=some)) / 512
    queries, labels = (_unit(rng, count) for count in (len(rows), corpus.n_labels))
    cluster = _seconds(lambda: balanced_kmeans(queries, 8, seed=0))
    search = _seconds(lambda: ann.build(labels, "exact").search(queries[:4096], 50)) * len(rows) / 4096
    embedding, both = embed["train"] * len(rows), embed["train"] * len(rows) + embed["label"] * corpus.n_labels
    shares = {"NGAME, clusters alone": cluster / 5, "NGAME, with the queries embedded anew": (cluster + embedding) / 5,
              "ANCE, every epoch": both + search}
    lines = [f"an epoch of {len(rows):,} queries with MiniLM: {epoch:,.0f} s, told by {timed} steps of {batch}",
             *(f"{name}: {100 * seconds / epoch:.1f}% of an epoch" for name, seconds in shares.items())]
    ours = 100 * shares["NGAME, clusters alone"] / epoch
    return lines, ours <= 1 and 100 * shares["ANCE, every epoch"] / epoch >= 59


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _unit(rng: np.random.Generator, count: int, dim: int = 384) -> np.ndarray:
    vectors = rng.standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


SHOWN = [
    Shown(3, "ASTRA: the estimate of the loss is unbiased", "Lemma 4.1", unbiased),
    Shown(4, "ASTRA: time and memory of a classifier step do not grow from 131K to 1.3M labels, those over all do",
          "Tables 3 and 4: 1.5 ms against 12 to 85 of all labels'; 62 to 669 times less memory", cost_of_a_step),
    Shown(9, "NGAME: mining costs at most 1% of an epoch with a transformer, ANCE's refresh 59 to 210%",
          "Table 5", cost_of_mining),
]
