"""Refreshing between rounds: embed with the newest checkpoint, mine what the next round trains on."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.check import validate
from data_contracts.schemas import SCHEMAS
from tasks.graphs import contract_view
from tasks.steps import Job, Step
from xcmodels.checkpoint import load_model
from xcmodels.corpus import Corpus
from xcmodels.encoders import QUERY, encode_all
from xcmodels.method import Method, Mined, Round
from xcmodels.training import device

SHARD = 1 << 20   # rows of a mined file's shard


def mine_step(method: Method, round_: Round, source: dict[str, str]) -> Step:
    """Return the step that mines for a round; source: {"start": a checkpoint's step} or {"vectors": an embed step}."""
    settings = {**method.settings(round_.stage), "round": round_}
    return Step(f"mine {round_.name}", "mined", partial(mine, method, round_), _code(method), settings,
                {"tables": "read", "corpus": "pack", **source})


def embed_step(method: Method, stage: str, model: str) -> Step:
    """Return the step that embeds every training query and label with a stage's trained model."""
    return Step(f"embed {stage}", "vectors", partial(embed, method, stage), _code(method),
                method.settings(stage), {"corpus": "pack", "model": model})


def _code(method: Method) -> tuple[str, ...]:
    return ("tasks.refresh", type(method).__module__)


def mine(method: Method, round_: Round, job: Job) -> None:
    """Cluster the training queries and hold the table of clusters against its contract."""
    corpus = Corpus(job.inputs["corpus"])
    rows = corpus.training_rows()
    if "vectors" in job.inputs:
        vectors = np.load(job.inputs["vectors"] / "queries.npy", mmap_mode="r")[rows]
    else:
        model = method.build(corpus, round_.stage, {})
        load_model(model, job.inputs["start"])
        vectors = encode_all(model.to(device()), corpus.sides["train"], QUERY, rows=rows)  # type: ignore[arg-type]
    clusters = method.mine(vectors, round_)
    table = job.out / "clusters"
    table.mkdir()
    for number, start in enumerate(range(0, max(len(rows), 1), SHARD)):
        part = slice(start, start + SHARD)
        pq.write_table(pa.table([rows[part], clusters[part]], schema=SCHEMAS["clusters"]),
                       table / f"part-{number:05d}.parquet")
    view = contract_view(job.scratch / "view", {"clusters": job.out, "queries.train": job.inputs["tables"],
                                                "labels": job.inputs["tables"]})
    validate(view, only=["clusters"], report_dir=job.scratch / "report").raise_for_failure()
    job.say(f"{len(rows):,} queries in {int(clusters.max(initial=-1)) + 1:,} clusters of {round_.cluster_size}")


def embed(method: Method, stage: str, job: Job) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever stand on."""
    corpus = Corpus(job.inputs["corpus"])
    model = method.build(corpus, stage, {})
    load_model(model, job.inputs["model"])
    for name, vectors in method.vectors(model.to(device()), corpus):
        np.save(job.out / f"{name}.npy", vectors)
        job.say(f"{len(vectors):,} {name}")


def read_mined(mined: Path | None, vectors: Path | None) -> Mined:
    """Return what a round is given, from the folders of its mined files and of its fixed vectors."""
    clusters = None
    if mined is not None:
        shards = sorted((mined / "clusters").glob("part-*.parquet"))
        clusters = np.concatenate([pq.read_table(shard)["cluster"].to_numpy() for shard in shards])
    return Mined(clusters, read_vectors(vectors) if vectors else {})


def read_vectors(folder: Path) -> dict[str, np.ndarray]:
    """Map the vectors of an embed step into memory, by side."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("queries", "labels")}
