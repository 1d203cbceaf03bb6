"""Tables as folders of Parquet shards, read one shard at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq

SIDE_TABLES = {"train": "queries.train", "test": "queries.test", "label": "labels"}


def shards(table: Path) -> list[Path]:
    """Return the shards of a table, in order."""
    return sorted(table.glob("part-*.parquet"))


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
