"""Reading a raw data set as shards: one table at a time, or one raw file with all its tables to Parquet files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.schemas import SCHEMAS, kind_of
from tasks.sources.files import count_lines
from tasks.sources.raw import RawDataSet, groups, tables, tables_of
from tasks.sources.shards import Ids, Shard, shard
from tasks.sources.sparse import filter_pairs, sparse_matrix, sparse_rows
from tasks.sources.texts import json_texts, numbered_labels, plain_texts

ROWS_PER_SHARD = 65_536


def read_table(data: RawDataSet, table: str, rows_per_shard: int = ROWS_PER_SHARD) -> Iterator[pa.Table]:
    """Yield one table in shards of at most `rows_per_shard` rows, each with exactly its kind's schema; at least one.

    Raises ContractError naming file and line of what cannot be read, ValueError for a table the data set has not.
    """
    for group in groups(data):
        if table in tables_of(data, group):
            yield from (part for name, part in _shards(data, group, rows_per_shard) if name == table)
            return
    raise ValueError(f"{data.name} has no table {table!r}; it has {', '.join(tables(data))}")


def read_tables(data: RawDataSet, group: str, out: Path,
                rows_per_shard: int = ROWS_PER_SHARD) -> dict[str, list[Path]]:
    """Read one group and write out/<table>/part-00000.parquet, ...; return each table's shards in order.

    Shards of an earlier, perhaps longer, run are removed first, so what lies there afterwards is one run's.
    """
    if group not in groups(data):
        raise ValueError(f"{data.name} has no group {group!r}; it has {', '.join(groups(data))}")
    written: dict[str, list[Path]] = {table: [] for table in tables_of(data, group)}
    for table in written:
        (out / table).mkdir(parents=True, exist_ok=True)
        for old in (out / table).glob("part-*"):
            old.unlink()
    for table, part in _shards(data, group, rows_per_shard):
        path = out / table / f"part-{len(written[table]):05d}.parquet"
        unfinished = path.with_suffix(".tmp")
        pq.write_table(part, unfinished, compression="zstd")
        os.replace(unfinished, path)
        written[table].append(path)
    return written


def _shards(data: RawDataSet, group: str, size: int) -> Iterator[Shard]:
    """Yield the shards of every table of a group, in one pass over its file."""
    if size < 1:
        raise ValueError(f"rows_per_shard must be positive, got {size}")
    path = data.files.get(group)
    if path is None:
        return iter([(group, shard(SCHEMAS[kind_of(group)], "", [[]] * (len(SCHEMAS[kind_of(group)]) - 1)))])
    kind, _, about = group.partition(".")
    if kind in ("queries", "labels", "anchors"):
        return _texts(data, group, path, size)
    if kind == "edges":
        anchor, _, side = about.rpartition(".")
        rows, columns = _node_ids(data, side), _ids(data, "anchor", f"anchors.{anchor}")
    else:
        rows, columns = _node_ids(data, about), _ids(data, "label", "labels")
    if kind == "filters":
        return filter_pairs(path, size, group, rows, columns)
    return (sparse_matrix if path.suffix == ".npz" else sparse_rows)(path, size, group, rows, columns)


def _texts(data: RawDataSet, group: str, path: Path, size: int) -> Iterator[Shard]:
    """Yield the shards of queries, with their positives where they stand in the same file, of labels or of anchors."""
    kind, _, split = group.partition(".")
    if kind == "labels" and data.numbered:
        return numbered_labels(path, size, group, data.numbered)
    if kind == "anchors" or data.format == "xc-sparse":
        return plain_texts(path, size, group)
    if kind == "labels":
        return json_texts(path, size, group)
    return json_texts(path, size, group, f"positives.{split}", _ids(data, "label", "labels"))


def _node_ids(data: RawDataSet, side: str) -> Ids:
    """Return the ids of a side of the data: queries of a split, or labels."""
    return _ids(data, "label", "labels") if side == "label" else _ids(data, "query", f"queries.{side}")


def _ids(data: RawDataSet, what: str, table: str) -> Ids:
    """Return the ids of a table, which number the lines of its file; that file alone says how many there are."""
    if table == "labels" and data.numbered:
        return Ids(what, data.numbered, data.files[table].name, "labels")
    return Ids(what, count_lines(data.files[table]), data.files[table].name)
