"""Small raw data sets in each format, and what is read from them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.errors import ContractError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.data.sources import RawDataSet, describe, tables, units
from tasks.data.sources.raw import tables_of
from tasks.data.sources.reading import ROWS_PER_SHARD, read_shards

TRAIN: list[dict] = [
    {"uid": "a", "title": "red  fox", "content": "an animal", "target_ind": [0, 2], "target_rel": [1.0, 0.5]},
    {"uid": "b", "title": "no labels", "content": "", "target_ind": [], "target_rel": []},
    {"uid": "a", "title": "", "content": "", "target_ind": [1, 1], "target_rel": [1, 1]}]
TEST: list[dict] = [{"uid": "t", "title": "blue\nwhale", "content": "", "target_ind": [2], "target_rel": [1.0]}]
LABELS: list[dict] = [
    {"uid": "x", "title": "mammal", "content": ""}, {"uid": "y", "title": "bird", "content": "it flies"},
    {"uid": "z", "title": "hunter", "content": ""}]


def write_json(folder: Path, name: str, rows: list) -> None:
    data = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


@pytest.fixture
def xc_json(tmp_path: Path) -> Path:
    folder = tmp_path / "LF-Toy"
    folder.mkdir()
    write_json(folder, "trn.json.gz", TRAIN)
    write_json(folder, "tst.json.gz", TEST)
    write_json(folder, "lbl.json.gz", LABELS)
    return folder


@pytest.fixture
def xc_sparse(tmp_path: Path) -> Path:
    folder = tmp_path / "LF-Toy"
    folder.mkdir()
    (folder / "trn_X.txt").write_text("red  fox\nno labels\n\n")
    (folder / "tst_X.txt").write_text("blue whale\r\n")
    (folder / "Y.txt").write_text("mammal\nbird\nhunter")  # no line end: the line counts all the same
    (folder / "trn_X_Y.txt").write_text("3 3\n0:1 2:0.5\n\n1:1.0 1:1\n")
    (folder / "tst_X_Y.txt").write_text("1 3\n2:1\n")
    return folder


def add_anchors(folder: Path) -> None:
    (folder / "category.raw.txt").write_text("canids\ncetaceans\n")
    (folder / "category_trn_X_Y.txt").write_text("3 2\n0:1\n\n0:2 1:3\n")
    (folder / "category_tst_X_Y.txt").write_text("1 2\n1:1\n")
    (folder / "category_lbl_X_Y.txt").write_text("3 2\n\n\n0:1\n")


def read_table(data: RawDataSet, table: str, rows_per_shard: int = ROWS_PER_SHARD) -> Iterator[pa.Table]:
    """Yield one table in shards of at most `rows_per_shard` texts; ValueError for a table that the data set lacks."""
    for unit in units(data):
        if table in tables_of(data, unit):
            yield from (part for _, name, part in read_shards(data, unit, (0, 1), rows_per_shard) if name == table)
            return
    raise ValueError(f"{data.name} has no table {table!r}; it has {', '.join(tables(data))}")


def rows(data: RawDataSet, table: str, **options: int) -> list[tuple]:
    """Return all rows of a table, each shard checked for its schema."""
    found: list[tuple] = []
    for part in read_table(data, table, **options):
        assert part.schema.equals(SCHEMAS[kind_of(table)])
        part.validate(full=True)
        found += zip(*(part[name].to_pylist() for name in part.schema.names), strict=True)
    return found


def fails(folder: Path, table: str) -> str:
    with pytest.raises(ContractError) as caught:
        list(read_table(describe(folder), table))
    return str(caught.value)
