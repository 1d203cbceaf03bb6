"""Reading of a raw data set in shards: as Arrow tables, or into Parquet files."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from data_contracts.errors import ContractError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.data.sources.files import Share, blocks, count_lines, refuse_changed
from tasks.data.sources.raw import RawDataSet, tables_of, units
from tasks.data.sources.shards import Ids, TablePart, shard
from tasks.data.sources.sparse import filter_pairs, sparse_matrix, sparse_rows
from tasks.data.sources.texts import Lines, broader_pairs, group_names, numbered_labels, plain_texts
from tasks.data.tables import write_shard

ROWS_PER_SHARD = 65_536    # of texts; a shard of pairs of ids has more (`shards.rows_in`)


def read_tables(data: RawDataSet, unit: str, out: Path, share: tuple[int, int] = (0, 1),
                rows_per_shard: int = ROWS_PER_SHARD) -> dict[str, list[Path]]:
    """Read one unit and write out/<table>/part-00000.parquet, ...; return each table's shards in order.

    Texts are read in blocks of `rows_per_shard` lines, which several calls may share: share (i, n) is the blocks i,
    i + n, i + 2n, ... A shard is named by its block, so that any number of calls leaves the same files; the shards of a
    block that makes several are part-00000.parquet, part-00000_00001.parquet, ...
    Existing files of these blocks are removed first, so that all are of one run.
    """
    if unit not in units(data):
        raise ValueError(f"{data.name} has no unit {unit!r}; it has {', '.join(units(data))}")
    if share != (0, 1) and not splits(data, unit):
        raise ValueError(f"{unit} is read by one call, got share {share}")
    written: dict[str, list[Path]] = {table: [] for table in tables_of(data, unit)}
    for table in written:
        (out / table).mkdir(parents=True, exist_ok=True)
        for old in (out / table).glob("part-*"):
            if int(old.name[len("part-"):][:5]) % share[1] == share[0]:
                old.unlink()
    shards_of: Counter[tuple[str, int]] = Counter()
    for block, table, part in read_shards(data, unit, share, rows_per_shard):
        index = shards_of[table, block]
        shards_of[table, block] += 1
        path = out / table / f"part-{block:05d}{f'_{index:05d}' if index else ''}.parquet"
        write_shard(part, path)
        written[table].append(path)
    return written


def splits(data: RawDataSet, unit: str) -> bool:
    """Return whether several calls can share a unit: those of texts, where each line is a row."""
    return unit.partition(".")[0] in ("queries", "labels", "anchors") and not (unit == "labels" and data.numbered)


def read_shards(data: RawDataSet, unit: str, share: tuple[int, int],
                size: int) -> Iterator[tuple[int, str, pa.Table]]:
    """Yield the shards of every table of a share of a unit, each as (number of its block, table, rows).

    The file is read once. Where it is not read in blocks, each shard counts as one. Raises ContractError with file and
    line of what cannot be read.
    """
    if size < 1:
        raise ValueError(f"rows_per_shard must be positive, got {size}")
    sha256 = data.sha256.get(unit, "")
    try:
        if splits(data, unit):
            for block, lines in blocks(data.files[unit], Share(size, *share), sha256):
                for table, part in _texts(data, unit, lines, size):
                    yield block, table, part
        else:
            for block, (table, part) in enumerate(_pairs(data, unit, size)):
                yield block, table, part
    except ContractError:
        if unit in data.files:
            refuse_changed(data.files[unit], sha256)    # the file may have been replaced while it was read
        raise


def _texts(data: RawDataSet, unit: str, lines: Lines, size: int) -> Iterator[TablePart]:
    """Yield the shards of labels, of anchors, or of queries with any positives in the same file."""
    file = data.files[unit].name
    if unit.startswith("anchors."):
        return plain_texts(lines, file, size, unit)
    _, *inside = tables_of(data, unit)
    return data.format.read(lines, file, size, unit, (inside[0], _ids(data, "label", "labels")) if inside else None)


def _pairs(data: RawDataSet, unit: str, size: int) -> Iterator[TablePart]:
    """Yield the shards of a unit that is read by one call: pairs, or numbered labels."""
    if (path := data.files.get(unit)) is None:
        return iter([(unit, shard(SCHEMAS[kind_of(unit)], "", [[]] * (len(SCHEMAS[kind_of(unit)]) - 1)))])
    kind, _, part = unit.partition(".")
    if kind == "groups":
        return group_names(path, size, unit, _node_ids(data, part), data.sha256.get(unit, ""))
    if kind == "broader":
        return broader_pairs(path, size, unit, data.sha256.get(unit, ""))
    if kind == "labels":
        return numbered_labels(data.numbered, path.name, size, unit)
    if kind == "edges":
        anchor, _, side = part.rpartition(".")
        rows, columns = _node_ids(data, side), _ids(data, "anchor", f"anchors.{anchor}")
    else:
        rows, columns = _node_ids(data, part), _ids(data, "label", "labels")
    parse = filter_pairs if kind == "filters" else sparse_matrix if path.suffix == ".npz" else sparse_rows
    return parse(path, size, unit, rows, columns, sha256=data.sha256.get(unit, ""))


def _node_ids(data: RawDataSet, side: str) -> Ids:
    """Return the ids of a side: queries of a split, or labels."""
    return _ids(data, "label", "labels") if side == "label" else _ids(data, "query", f"queries.{side}")


def _ids(data: RawDataSet, what: str, table: str) -> Ids:
    """Return the ids of a table: the 0-based numbers of the lines of its file."""
    if table == "labels" and data.numbered:
        return Ids(what, data.numbered, data.files[table].name, "labels")
    return Ids(what, count_lines(data.files[table], data.sha256.get(table, "")), data.files[table].name)
