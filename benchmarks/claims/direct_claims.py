"""Claims that need no trained variants: an unbiased estimator, and the costs of a step and of a refresh."""

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO

import numpy as np
import torch

from benchmarks import bench_classifier_step
from benchmarks.claims.claims import Claim
from benchmarks.claims.experiments import Experiments, Variant
from benchmarks.measuring import timed
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined
from xcmodels.methods.astra.stages import AstraStage
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.methods.presets import resolve
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.autograd import normalise
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval import ann


def unbiased(experiments: Experiments, draws: int = 2000, queries: int = 64) -> tuple[list[str], bool]:
    """Compare the mean of many sampled losses with the loss over every label."""
    corpus = experiments.corpus("thousand")
    config = replace(Variant("astra", {"start": "label"}).build(0)[0], positives=2, hard=20, uniform=50)
    sampled, every = AstraStage(config), AstraStage(replace(config, every_label=True))
    model = sampled.build(corpus, {})
    sampled.begin(model, corpus, None)
    (round_,) = (each for each in sampled.rounds if each.index == len(sampled.rounds) - 1)
    mined = sampled.mine(sampled.vectors(model, corpus), corpus, round_)
    rows = corpus.training_rows()[:queries]

    def loss(stage: AstraStage, rng: np.random.Generator) -> float:
        with torch.no_grad():
            batch = stage.batch(corpus, round_, mined, rows, rng)
            return float(sum(stage.loss(model, batch).values()))  # type: ignore[arg-type]

    model.eval()
    full = loss(every, seeds.generator(0, "none"))
    estimates = np.array([loss(sampled, seeds.generator(0, "draw", draw)) for draw in range(draws)])
    bias, error = estimates.mean() - full, estimates.std(ddof=1) / draws**0.5
    return [f"over every label {full:.4f}; {draws:,} draws of {config.hard} hard and {config.uniform} uniform "
            f"negatives of {corpus.n_labels:,}: {estimates.mean():.4f} (standard error {error:.4f})"], \
        abs(bias) < 3 * error


def cost_of_a_step(experiments: Experiments) -> tuple[list[str], bool]:
    """Time ASTRA's classifier step and the step over all labels, with 131K and 1.3M labels, and count their memory.

    It holds if the first takes less than twice as much of each with 1.3M labels, and the second more than five times.
    """
    output = StringIO()
    with redirect_stdout(output):
        bench_classifier_step.main(64, 131_000, 1_300_000)
    lines = output.getvalue().splitlines()
    # "-": the step over all labels does not fit in memory
    small, large = ([float("inf") if part == "-" else float(part.replace(",", "")) for part in line.split()]
                    for line in lines[-2:])
    # columns: labels, ASTRA ms, all ms, ratio, ASTRA MB, all MB
    return lines, all(large[own] < 2 * small[own] and large[dense] > 5 * small[dense]
                      for own, dense in ((1, 2), (4, 5)))


def cost_of_mining(experiments: Experiments, steps: int = 5, batch_size: int = 64) -> tuple[list[str], bool]:
    """Time an epoch of NGAME and of ANCE with MiniLM, refreshes included, against one without, from some steps.

    ANCE encodes the negatives that it has mined for each query as well, as many as in its preset.
    """
    corpus, mined = experiments.full, resolve("ance", "minilm", {}).method.negatives
    rows, rng = corpus.training_rows(), seeds.generator(0, "claims", "mining")
    drawn = np.split(rng.permutation(rows)[:steps * batch_size], steps)
    plain, with_mined = (_seconds_of_a_step(corpus, drawn, count) for count in (0, mined))
    model = EncoderModule(resolve("ngame", "minilm", {}).method).build(corpus, {})
    embed = {}
    for side, view in (("train", QUERY), ("label", LABEL)):
        some = rng.permutation(len(corpus.sides[side]))[:512]
        embed[side] = timed(partial(encode_all, model, corpus.sides[side], view, rows=some))[1] / 512
    queries, labels = (normalise(rng.standard_normal((count, 384), dtype=np.float32))
                       for count in (len(rows), corpus.n_labels))
    _, cluster = timed(lambda: balanced_kmeans(queries, 8, seed=0))
    _, search_some = timed(lambda: ann.build(labels, "exact").search(queries[:4096], 50))
    embedding = embed["train"] * len(rows)
    refresh = embedding + embed["label"] * corpus.n_labels + search_some * len(rows) / 4096
    count = len(rows) / batch_size
    more = {"NGAME, clusters alone": cluster / 5, "NGAME, with the queries embedded anew": (cluster + embedding) / 5,
            "ANCE, a refresh every epoch": refresh,
            f"ANCE, {mined} negatives a query encoded": (with_mined - plain) * count}
    shares = {name: 100 * seconds / (plain * count) for name, seconds in more.items()}
    lines = [f"an epoch of {len(rows):,} queries with MiniLM: {plain * count:,.0f} s, "
             f"extrapolated from {steps} steps of {batch_size}",
             *(f"{name}: {share:.1f}% more" for name, share in shares.items())]
    ours, _, *ances = shares.values()
    return lines, ours <= 1 and sum(ances) >= 59


def _seconds_of_a_step(corpus: Corpus, drawn: Sequence[np.ndarray], mined: int) -> float:
    """Return the median time of forward and backward pass of NGAME's module M1 with MiniLM over these rows."""
    stage = EncoderModule(resolve("ngame", "minilm", {"m1.mined": str(mined)}).method)
    model, rng = stage.build(corpus, {}).train(), seeds.generator(0, "claims", "steps")
    hardest = rng.integers(0, corpus.n_labels, (corpus.n_queries, max(mined, 1)), dtype=np.int32)

    def step(rows: np.ndarray) -> None:
        batch = stage.batch(corpus, stage.rounds[0], Mined(negatives=hardest if mined else None), rows, rng)
        sum(stage.loss(model, batch).values()).backward()  # type: ignore[union-attr]
        model.zero_grad()

    return float(np.median([timed(partial(step, rows))[1] for rows in drawn]))


DIRECT_CLAIMS = [
    Claim(3, "ASTRA: the estimate of the loss is unbiased", "Lemma 4.1", measure=unbiased),
    Claim(4, "ASTRA: a classifier step takes no more time and memory (by formula) with 1.3M labels than with 131K; a "
             "step over all labels does",
          "Tables 3 and 4: forward 1.3 to 1.6 ms, against .6 to 77 of all labels'; 62 to 669 times less memory",
          measure=cost_of_a_step),
    Claim(9, "NGAME: mining costs at most 1% of an epoch with a transformer, ANCE's 59 to 210%", "Table 5",
          measure=cost_of_mining),
]
