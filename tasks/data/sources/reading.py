"""Reading a raw data set as shards: one table at a time, or one raw file with all its tables to Parquet files."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.errors import ContractError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.data.sources.files import Share, blocks, count_lines, refuse_changed
from tasks.data.sources.raw import RawDataSet, groups, tables, tables_of
from tasks.data.sources.shards import Ids, Shard, shard
from tasks.data.sources.sparse import filter_pairs, sparse_matrix, sparse_rows
from tasks.data.sources.texts import Lines, numbered_labels, plain_texts

ROWS_PER_SHARD = 65_536    # of texts; pairs of ids are more to a shard, `shards.rows_in`


def read_table(data: RawDataSet, table: str, rows_per_shard: int = ROWS_PER_SHARD) -> Iterator[pa.Table]:
    """Yield one table in shards of at most `rows_per_shard` texts, each with exactly its kind's schema; at least one.

    Raises ContractError naming file and line of what cannot be read, ValueError for a table the data set has not.
    """
    for group in groups(data):
        if table in tables_of(data, group):
            yield from (part for _, name, part in _shards(data, group, (0, 1), rows_per_shard) if name == table)
            return
    raise ValueError(f"{data.name} has no table {table!r}; it has {', '.join(tables(data))}")


def read_tables(data: RawDataSet, group: str, out: Path, share: tuple[int, int] = (0, 1),
                rows_per_shard: int = ROWS_PER_SHARD) -> dict[str, list[Path]]:
    """Read one group and write out/<table>/part-00000.parquet, ...; return each table's shards in order.

    Of texts, which are read in blocks of `rows_per_shard` lines, several calls may each read some: share (i, n) is
    the blocks i, i + n, i + 2n, ... A shard is named by its block, so that any number of calls leaves the same files;
    of a block that makes several, they are part-00000.parquet, part-00000_00001.parquet, ...
    What lies there under the names of these blocks is removed first, so that afterwards it is one run's.
    """
    if group not in groups(data):
        raise ValueError(f"{data.name} has no group {group!r}; it has {', '.join(groups(data))}")
    if share != (0, 1) and not splits(data, group):
        raise ValueError(f"{group} is read by one call, got share {share}")
    written: dict[str, list[Path]] = {table: [] for table in tables_of(data, group)}
    for table in written:
        (out / table).mkdir(parents=True, exist_ok=True)
        for old in (out / table).glob("part-*"):
            if int(old.name[len("part-"):][:5]) % share[1] == share[0]:
                old.unlink()
    so_far: Counter[tuple[str, int]] = Counter()
    for block, table, part in _shards(data, group, share, rows_per_shard):
        again = so_far[table, block]
        so_far[table, block] += 1
        path = out / table / f"part-{block:05d}{f'_{again:05d}' if again else ''}.parquet"
        unfinished = path.with_suffix(".tmp")
        pq.write_table(part, unfinished, compression="zstd")
        os.replace(unfinished, path)
        written[table].append(path)
    return written


def splits(data: RawDataSet, group: str) -> bool:
    """Say whether a group can be read by several calls: lines of texts can, each is a row."""
    return group.partition(".")[0] in ("queries", "labels", "anchors") and not (group == "labels" and data.numbered)


def _shards(data: RawDataSet, group: str, share: tuple[int, int], size: int) -> Iterator[tuple[int, str, pa.Table]]:
    """Yield the shards of every table of a share of a group, and the number of each one's block.

    The file is passed over once. What is not read by blocks counts each shard as one.
    """
    if size < 1:
        raise ValueError(f"rows_per_shard must be positive, got {size}")
    sha256 = data.sha256.get(group, "")
    try:
        if splits(data, group):
            for block, lines in blocks(data.files[group], Share(size, *share), sha256):
                for table, part in _texts(data, group, lines, size):
                    yield block, table, part
        else:
            for block, (table, part) in enumerate(_pairs(data, group, size)):
                yield block, table, part
    except ContractError:
        if group in data.files:
            refuse_changed(data.files[group], sha256)    # half of it may be of the one file and half of the other
        raise


def _texts(data: RawDataSet, group: str, lines: Lines, size: int) -> Iterator[Shard]:
    """Yield the shards of queries, with their positives where they stand in the same file, of labels or of anchors."""
    file = data.files[group].name
    if group.startswith("anchors."):
        return plain_texts(lines, file, size, group)
    _, *more = tables_of(data, group)
    return data.format.read(lines, file, size, group, (more[0], _ids(data, "label", "labels")) if more else None)


def _pairs(data: RawDataSet, group: str, size: int) -> Iterator[Shard]:
    """Yield the shards of a group that has no texts of its own: pairs of ids, or labels that are numbers."""
    path = data.files.get(group)
    if path is None:
        return iter([(group, shard(SCHEMAS[kind_of(group)], "", [[]] * (len(SCHEMAS[kind_of(group)]) - 1)))])
    kind, _, about = group.partition(".")
    if kind == "labels":
        return numbered_labels(data.numbered, path.name, size, group)
    if kind == "edges":
        anchor, _, side = about.rpartition(".")
        rows, columns = _node_ids(data, side), _ids(data, "anchor", f"anchors.{anchor}")
    else:
        rows, columns = _node_ids(data, about), _ids(data, "label", "labels")
    parse = filter_pairs if kind == "filters" else sparse_matrix if path.suffix == ".npz" else sparse_rows
    return parse(path, size, group, rows, columns, sha256=data.sha256.get(group, ""))


def _node_ids(data: RawDataSet, side: str) -> Ids:
    """Return the ids of a side of the data: queries of a split, or labels."""
    return _ids(data, "label", "labels") if side == "label" else _ids(data, "query", f"queries.{side}")


def _ids(data: RawDataSet, what: str, table: str) -> Ids:
    """Return the ids of a table, which number the lines of its file; that file alone says how many there are."""
    if table == "labels" and data.numbered:
        return Ids(what, data.numbered, data.files[table].name, "labels")
    return Ids(what, count_lines(data.files[table], data.sha256.get(table, "")), data.files[table].name)
