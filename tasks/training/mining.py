"""Refreshing between rounds: embed with the newest checkpoint, mine what the next round trains on."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.check import validate
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.core.step import Job, Step
from tasks.data.walks import contract_view
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method, Mined, Round, Vectors
from xcmodels.mining.hardness import hardness
from xcmodels.training.checkpoint import load_model
from xcmodels.training.loop import device, fast_products

SHARD = 1 << 20   # rows of a shard that a contract is held against
SIDES = ("queries", "labels")
CLUSTERS, NEGATIVES, KEPT = "clusters.npy", "negatives.npy", "kept."


def mine_step(method: Method, round_: Round, source: dict[str, str]) -> Step:
    """Return the step that mines for a round; source: {"start": a checkpoint's step} or {"vectors": an embed step}."""
    settings = {**method.settings(round_.stage), "round": round_}
    return Step(f"mine {round_.name}", "mined", partial(mine, method, round_), _code(method), settings,
                {"tables": "read", "corpus": "pack", **source}, beside=True)


def embed_step(method: Method, stage: str, model: str) -> Step:
    """Return the step that embeds every training query and label with a stage's trained model."""
    return Step(f"embed {stage}", "vectors", partial(embed, method, stage), _code(method),
                method.settings(stage), {"corpus": "pack", "model": model}, beside=True)


def _code(method: Method) -> tuple[str, ...]:
    return ("tasks.training.mining", *modules(method))


def modules(method: Method) -> tuple[str, ...]:
    """Return the modules that a method's code is in: its own, and that of a method it is given."""
    given = {type(value).__module__ for value in vars(method).values()}
    return tuple(sorted({type(method).__module__, *(name for name in given if name.startswith("xcmodels.methods."))}))


@fast_products()
def mine(method: Method, round_: Round, job: Job) -> None:
    """Mine what a round trains on, and hold it against its contract."""
    corpus = Corpus(job.inputs["corpus"])
    if "vectors" in job.inputs:
        vectors: Vectors = {name: partial(np.load, job.inputs["vectors"] / f"{name}.npy", "r") for name in SIDES}
    else:
        vectors = _vectors(method, round_.stage, corpus, job.inputs["start"])
    vectors = {name: cache(make) for name, make in vectors.items()}
    mined = method.mine(vectors, corpus, round_)
    measured = mined.measured | hardness(mined, vectors, corpus, seeds.generator(method.seed, "hardness", round_.name))
    (job.out / "metrics.json").write_text(json.dumps([{"epoch": round_.first, **measured}]) + "\n")
    job.say(", ".join(f"{name} {value:.3g}" for name, value in measured.items()))
    rows = corpus.training_rows()
    if (clusters := mined.clusters) is not None:
        np.save(job.out / CLUSTERS, clusters)
        _check(job, "clusters", rows, partial(_slice, clusters))
        job.say(f"{len(rows):,} queries in {int(clusters.max(initial=-1)) + 1:,} clusters of {round_.cluster_size}")
    if (negatives := mined.negatives) is not None:
        np.save(job.out / NEGATIVES, negatives)
        _check(job, "negatives", rows, lambda part: _lists(negatives[rows[part]]))
        job.say(f"{len(rows):,} queries with {negatives.shape[1]} hard negatives each")
    for name, kept in mined.kept.items():
        np.save(job.out / f"{KEPT}{name}.npy", kept)
        graph, _, side = name.rpartition(".")
        edges = corpus.graphs[graph].edges[side]
        nodes, ends = np.repeat(np.arange(len(edges)), edges.lengths)[kept], edges.values[kept].astype(np.int64)
        _check(job, f"pruned.{name}", nodes, partial(_slice, ends))
        job.say(f"{kept.sum():,} of {len(kept):,} edges of {name} kept")


def _check(job: Job, table: str, rows: np.ndarray, column: Callable[[slice], pa.Array]) -> None:
    """Hold what was mined for `rows` against its contract, shard by shard, beside the tables that it refers to."""
    shards = job.scratch / "mined" / table
    shards.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, max(len(rows), 1), SHARD)):
        part = slice(start, start + SHARD)
        pq.write_table(pa.table([rows[part], column(part)], schema=SCHEMAS[kind_of(table)]),
                       shards / f"part-{number:05d}.parquet")
    anchors = {f"anchors.{table.split('.')[1]}"} if table.startswith("pruned") else set()
    beside = {name: job.inputs["tables"] for name in {"queries.train", "labels", "positives.train"} | anchors}
    view = contract_view(job.scratch / "view", {table: shards.parent, **beside})
    validate(view, only=[table], report_dir=job.scratch / "report").raise_for_failure()


def _slice(values: np.ndarray, part: slice) -> pa.Array:
    return pa.array(values[part])


def _lists(ids: np.ndarray) -> pa.Array:
    """Return (n, k) ids as n lists without the -1 that stand for none."""
    there = ids >= 0
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(there.sum(1))]), pa.int32()),
                                    pa.array(ids[there], pa.int32()))


def _vectors(method: Method, stage: str, corpus: Corpus, checkpoint: Path) -> Vectors:
    model = method.build(corpus, stage, {})
    load_model(model, checkpoint)
    return method.vectors(model.to(device()), corpus)


@fast_products()
def embed(method: Method, stage: str, job: Job) -> None:
    """Write `queries.npy` and `labels.npy`, the vectors that the next stage and the retriever stand on."""
    made = _vectors(method, stage, Corpus(job.inputs["corpus"]), job.inputs["model"])
    for name in SIDES:
        vectors = made[name]()
        np.save(job.out / f"{name}.npy", vectors)
        job.say(f"{len(vectors):,} {name}")


def read_mined(mined: Path | None, vectors: Path | None) -> Mined:
    """Map into memory what a round is given, from the folders of its mined files and of its fixed vectors."""
    def there(name: str) -> np.ndarray | None:
        return np.load(mined / name, mmap_mode="r") if mined and (mined / name).exists() else None

    kept = {file.name.removeprefix(KEPT).removesuffix(".npy"): np.load(file, mmap_mode="r")
            for file in sorted(mined.glob(f"{KEPT}*"))} if mined else {}
    return Mined(there(CLUSTERS), there(NEGATIVES), kept, read_vectors(vectors))


def read_vectors(folder: Path | None) -> dict[str, np.ndarray]:
    """Map the vectors of an embed step into memory, by side; none where there was no such step."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in SIDES} if folder else {}
