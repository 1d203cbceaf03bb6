"""Refreshing between rounds: embed with the newest checkpoint, mine what the next round trains on."""

from collections.abc import Callable
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
from xcmodels.method import Method, Mined, Round, Vectors
from xcmodels.training import device

SHARD = 1 << 20   # rows of a shard that a contract is held against
SIDES = ("queries", "labels")
CLUSTERS, NEGATIVES = "clusters.npy", "negatives.npy"


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
    """Mine what a round trains on, and hold it against its contract."""
    corpus = Corpus(job.inputs["corpus"])
    if "vectors" in job.inputs:
        vectors: Vectors = {name: partial(np.load, job.inputs["vectors"] / f"{name}.npy", "r") for name in SIDES}
    else:
        vectors = _vectors(method, round_.stage, corpus, job.inputs["start"])
    mined = method.mine(vectors, corpus, round_)
    rows = corpus.training_rows()
    if (clusters := mined.clusters) is not None:
        np.save(job.out / CLUSTERS, clusters)
        _check(job, "clusters", rows, lambda part: pa.array(clusters[part]))
        job.say(f"{len(rows):,} queries in {int(clusters.max(initial=-1)) + 1:,} clusters of {round_.cluster_size}")
    if (negatives := mined.negatives) is not None:
        np.save(job.out / NEGATIVES, negatives)
        _check(job, "negatives", rows, lambda part: _lists(negatives[rows[part]]))
        job.say(f"{len(rows):,} queries with {negatives.shape[1]} hard negatives each")


def _check(job: Job, table: str, rows: np.ndarray, column: Callable[[slice], pa.Array]) -> None:
    """Hold what was mined for `rows` against its contract, shard by shard, beside the tables that it refers to."""
    shards = job.scratch / "mined" / table
    shards.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, max(len(rows), 1), SHARD)):
        part = slice(start, start + SHARD)
        pq.write_table(pa.table([rows[part], column(part)], schema=SCHEMAS[table]),
                       shards / f"part-{number:05d}.parquet")
    beside = {name: job.inputs["tables"] for name in ("queries.train", "labels", "positives.train")}
    view = contract_view(job.scratch / "view", {table: shards.parent, **beside})
    validate(view, only=[table], report_dir=job.scratch / "report").raise_for_failure()


def _lists(ids: np.ndarray) -> pa.Array:
    """Return (n, k) ids as n lists without the -1 that stand for none."""
    there = ids >= 0
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(there.sum(1))]), pa.int32()),
                                    pa.array(ids[there], pa.int32()))


def _vectors(method: Method, stage: str, corpus: Corpus, checkpoint: Path) -> Vectors:
    model = method.build(corpus, stage, {})
    load_model(model, checkpoint)
    return method.vectors(model.to(device()), corpus)


def embed(method: Method, stage: str, job: Job) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever stand on."""
    for name, make in _vectors(method, stage, Corpus(job.inputs["corpus"]), job.inputs["model"]).items():
        vectors = make()
        np.save(job.out / f"{name}.npy", vectors)
        job.say(f"{len(vectors):,} {name}")


def read_mined(mined: Path | None, vectors: Path | None) -> Mined:
    """Map into memory what a round is given, from the folders of its mined files and of its fixed vectors."""
    def there(name: str) -> np.ndarray | None:
        return np.load(mined / name, mmap_mode="r") if mined and (mined / name).exists() else None

    return Mined(there(CLUSTERS), there(NEGATIVES), read_vectors(vectors) if vectors else {})


def read_vectors(folder: Path) -> dict[str, np.ndarray]:
    """Map the vectors of an embed step into memory, by side."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in SIDES}
