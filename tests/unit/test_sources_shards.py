"""Shards of a raw data set: none too large, none lost, each written once."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import ContractError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.data.sources import describe, read_tables, shards, splits, tables, units
from tasks.data.tables import write_shard
from tests.support.raw_folders import LABELS, add_anchors, read_table, rows, write_json


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_shard_is_larger_and_none_is_lost(form: str, size: int, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    data = describe(folder)
    for table in tables(data):
        whole = rows(data, table)
        parts = list(read_table(data, table, rows_per_shard=size))
        assert all(part.num_rows <= shards.rows_in(table, size) for part in parts)
        if kind_of(table) in ("queries", "labels", "anchors"):
            assert len(parts) == max(1, -(-len(whole) // size))
        assert rows(data, table, rows_per_shard=size) == whole


def test_long_texts_make_shorter_shards(xc_json: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20)
    write_json(xc_json, "lbl.json.gz", [{"uid": "x", "title": "t" * 4, "content": "c" * 6}] * 5)
    parts = list(read_table(describe(xc_json), "labels"))
    assert [part.num_rows for part in parts] == [2, 2, 1]


def test_a_file_is_read_a_shard_at_a_time(xc_json: Path):
    write_json(xc_json, "lbl.json.gz", [*LABELS, "not JSON"])
    parts = read_table(describe(xc_json), "labels", rows_per_shard=2)
    assert next(parts).num_rows == 2  # the line that is broken has not been reached
    with pytest.raises(ContractError, match=r"lbl.json.gz:4"):
        next(parts)


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_units_write_every_table_once(form: str, request: pytest.FixtureRequest, tmp_path: Path):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    data = pickle.loads(pickle.dumps(describe(folder)))  # as it travels to a worker
    out = tmp_path / "out"
    stale = out / "labels" / "part-00007.parquet"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of a longer run")
    written: dict[str, list[Path]] = {}
    for unit in units(data):
        done = pickle.loads(pickle.dumps(read_tables))(data, unit, out, rows_per_shard=2)
        assert unit in done and not written.keys() & done.keys()
        written |= done
    assert list(written) and sorted(written) == sorted(tables(data))
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(
        path for paths in written.values() for path in paths)
    for table, paths in written.items():
        assert [path.relative_to(out) for path in paths] == [
            Path(table, f"part-{number:05d}.parquet") for number in range(len(paths))]
        found = [pq.read_table(path) for path in paths]
        assert all(part.schema.equals(SCHEMAS[kind_of(table)]) for part in found)
        assert [row for part in found for row in part.to_pylist()] == [
            row for part in read_table(data, table) for row in part.to_pylist()]
    assert len(written["filters.test"]) == 1


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_any_number_of_readers_leaves_the_same_files(form: str, request: pytest.FixtureRequest, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5)    # so that a block makes several shards
    data, left = describe(folder), {}
    for readers in (1, 2, 3, 7):
        out = tmp_path / str(readers)
        for unit in units(data):
            of = readers if splits(data, unit) else 1
            for number in reversed(range(of)):
                read_tables(data, unit, out, (number, of), rows_per_shard=2)
        left[readers] = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.parquet")}
    assert left[1] == left[2] == left[3] == left[7]
    assert {path.parent.name for path in left[1]} == set(tables(data))
    for table in tables(data):
        read = [row for path in sorted((tmp_path / "3" / table).iterdir()) for row in pq.read_table(path).to_pylist()]
        assert read == [row for part in read_table(data, table) for row in part.to_pylist()]
    names = [path.name for path in left[1] if path.parent.name == "labels"]
    assert form == "xc_sparse" or any("_00001" in name for name in names)


def test_tables_and_units_that_are_not_there(xc_json: Path, tmp_path: Path):
    data = describe(xc_json)
    with pytest.raises(ValueError, match=r"no table 'anchors.category'; it has queries.train, positives.train"):
        next(read_table(data, "anchors.category"))
    with pytest.raises(ValueError, match=r"no unit 'positives.train'"):
        read_tables(data, "positives.train", tmp_path / "out")
    with pytest.raises(ValueError, match=r"filters.test is read by one call, got share \(1, 2\)"):
        read_tables(data, "filters.test", tmp_path / "out", (1, 2))
    with pytest.raises(ValueError, match=r"rows_per_shard must be positive, got 0"):
        next(read_table(data, "labels", rows_per_shard=0))


def test_a_worker_that_counts_as_lost_and_its_replacement_write_the_same_shard(tmp_path: Path,
                                                                               monkeypatch: pytest.MonkeyPatch):
    table, path, write = pa.table({"id": [1, 2]}), tmp_path / "part-00000.parquet", pq.write_table

    def beside_another(*given, **options) -> None:
        write(*given, **options)
        monkeypatch.undo()
        write_shard(table, path)    # by the replacement, before this one has given its file its name

    monkeypatch.setattr(pq, "write_table", beside_another)
    write_shard(table, path)
    assert list(tmp_path.iterdir()) == [path] and pq.read_table(path) == table
