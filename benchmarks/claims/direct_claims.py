"""Claims that need no trained variants: an unbiased estimator, and the costs of a step and of a refresh."""

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
from xcmodels.method import Mined
from xcmodels.methods.astra.stages import JointStage
from xcmodels.methods.encoder_module import EncoderModule
from xcmodels.methods.presets import resolve
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval import ann


def unbiased(experiments: Experiments, draws: int = 2000, queries: int = 64) -> tuple[list[str], bool]:
    """Compare the mean of many sampled losses with the loss over every label."""
    corpus = experiments.corpus("thousand")
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
    full = loss(every, seeds.generator(0, "none"))
    estimates = np.array([loss(sampled, seeds.generator(0, "draw", draw)) for draw in range(draws)])
    bias, error = estimates.mean() - full, estimates.std(ddof=1) / draws**0.5
    return [f"over every label {full:.4f}; {draws:,} draws of {config.hard} hard and {config.uniform} uniform "
            f"negatives of {corpus.n_labels:,}: {estimates.mean():.4f} (standard error {error:.4f})"], \
        abs(bias) < 3 * error


def cost_of_a_step(experiments: Experiments) -> tuple[list[str], bool]:
    """Time ASTRA's classifier step and the step over all labels, with 131K and 1.3M labels."""
    output = StringIO()
    with redirect_stdout(output):
        bench_classifier_step.main()
    lines = output.getvalue().splitlines()
    small, large = ([float(part.replace(",", "")) for part in line.split()] for line in lines[-2:])
    return lines, large[1] < 2 * small[1] and large[2] > 5 * small[2]


def cost_of_mining(experiments: Experiments, steps: int = 5, batch_size: int = 64) -> tuple[list[str], bool]:
    """Time the refreshes of NGAME and ANCE against an epoch with MiniLM, extrapolated from some steps."""
    corpus = experiments.full
    config = resolve("ngame", "minilm", {"m1.batch_size": str(batch_size)}).method
    stage = EncoderModule(config)  # type: ignore[arg-type]
    model = stage.build(corpus, {})
    rows = corpus.training_rows()
    rng = seeds.generator(0, "claims", "mining")

    def step(part: np.ndarray) -> None:
        batch = stage.batch(corpus, stage.rounds[0], Mined(), part, rng)
        sum(stage.loss(model.train(), batch).values()).backward()  # type: ignore[union-attr]
        model.zero_grad()

    seconds = [timed(partial(step, part))[1] for part in np.split(rng.permutation(rows)[:steps * batch_size], steps)]
    epoch = float(np.median(seconds)) * len(rows) / batch_size
    embed = {}
    for side, view in (("train", QUERY), ("label", LABEL)):
        some = rng.permutation(len(corpus.sides[side]))[:512]
        embed[side] = timed(partial(encode_all, model, corpus.sides[side], view, rows=some))[1] / 512
    queries, labels = (_unit_vectors(rng, count) for count in (len(rows), corpus.n_labels))
    _, cluster = timed(lambda: balanced_kmeans(queries, 8, seed=0))
    _, search_some = timed(lambda: ann.build(labels, "exact").search(queries[:4096], 50))
    search = search_some * len(rows) / 4096
    embedding, both = embed["train"] * len(rows), embed["train"] * len(rows) + embed["label"] * corpus.n_labels
    shares = {"NGAME, clusters alone": cluster / 5, "NGAME, with the queries embedded anew": (cluster + embedding) / 5,
              "ANCE, every epoch": both + search}
    lines = [f"an epoch of {len(rows):,} queries with MiniLM: {epoch:,.0f} s, "
             f"extrapolated from {steps} steps of {batch_size}",
             *(f"{name}: {100 * seconds / epoch:.1f}% of an epoch" for name, seconds in shares.items())]
    ours = 100 * shares["NGAME, clusters alone"] / epoch
    return lines, ours <= 1 and 100 * shares["ANCE, every epoch"] / epoch >= 59


def _unit_vectors(rng: np.random.Generator, count: int, dim: int = 384) -> np.ndarray:
    vectors = rng.standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


DIRECT_CLAIMS = [
    Claim(3, "ASTRA: the estimate of the loss is unbiased", "Lemma 4.1", measure=unbiased),
    Claim(4, "ASTRA: a classifier step takes no more time and memory with 1.3M labels than with 131K; a step over all "
             "labels does", "Tables 3 and 4: 1.5 ms against 12 to 85 of all labels'; 62 to 669 times less memory",
          measure=cost_of_a_step),
    Claim(9, "NGAME: mining costs at most 1% of an epoch with a transformer, ANCE's refresh 59 to 210%", "Table 5",
          measure=cost_of_mining),
]
