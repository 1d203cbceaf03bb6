"""Tables as folders of Parquet shards, read one shard at a time."""

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.step import UNFINISHED

SIDE_TABLES = {"train": "queries.train", "test": "queries.test", "label": "labels"}


def shards(table: Path) -> list[Path]:
    """Return the shards of a table, in order."""
    return sorted(table.glob("part-*.parquet"))


def write_shard(rows: pa.Table, path: Path) -> None:
    """Write a shard atomically; where a worker counts as lost, it and its replacement may write the same one at once.

    What a worker that was killed leaves ends in `UNFINISHED`, and is no part of the step's result.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    pq.write_table(rows, part, compression="zstd")
    os.replace(part, path)


def count_rows(table: Path) -> int:
    """Return how many rows a table has, from the footers of its shards."""
    return sum(pq.read_metadata(shard).num_rows for shard in shards(table))


def contract_view(view: Path, places: Mapping[str, Path]) -> Path:
    """Return a folder of links to tables in several folders, for a contract that spans artifacts."""
    view.mkdir(exist_ok=True)
    for table, place in places.items():
        (view / table).unlink(missing_ok=True)
        (view / table).symlink_to(place / table)
    return view


def column_parts(table: Path, column: str) -> Iterator[list[str]]:
    """Yield a column of texts, one shard at a time."""
    for shard in shards(table):
        yield pq.read_table(shard, columns=[column])[column].to_pylist()
