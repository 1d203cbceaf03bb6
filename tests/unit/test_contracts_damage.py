"""Tables that cannot be judged: shards damaged, missing, of a wrong schema, or rules that break."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import ContractError, UsageError
from data_contracts.suites import outcomes, suite_for
from data_contracts.validate import validate
from tests.support.contracts import check, good, put, read_shard, statuses, write_shard


@pytest.mark.parametrize("damage", ["truncated", "not parquet", "empty file", "folder"])
def test_a_shard_that_cannot_be_read_is_named(tmp_path, damage):
    root = put(tmp_path / "tables", good())
    path = root / "labels" / "part-00001.parquet"
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        data = {"truncated": path.read_bytes()[:-40], "not parquet": b"uid,title\n", "empty file": b""}
        path.write_bytes(data[damage])
    report = validate(root, report_dir=tmp_path / "report", only=["labels", "positives.train"])
    assert [(r.rule, r.table) for r in report.failures] == [("readable", "labels")]
    with pytest.raises(ContractError) as caught:
        report.raise_for_failure()
    assert caught.value.where == "labels/part-00001.parquet"
    assert str(root) not in report.page.read_text()
    noted = {(r.rule, r.table) for r in report.warnings if "damaged shard" in r.note}
    assert {("reference", "positives.train"), ("uid_unique", "labels"), ("label_drift", "positives.train")} <= noted
    alone = validate(root, report_dir=tmp_path / "alone", only=["positives.train"])
    assert (alone.failures[0].rule, alone.failures[0].table) == ("reference", "positives.train")


def test_a_shard_zeroed_behind_its_footer_is_named(tmp_path):
    root = put(tmp_path / "tables", good(), ["queries.train"])
    for path in (root / "queries.train" / "part-00001.parquet", root / "labels" / "part-00000.parquet"):
        data = bytearray(path.read_bytes())
        data[4:300] = bytes(296)
        path.write_bytes(data)
    positives = validate(root, report_dir=tmp_path / "report", only=["positives.train"])  # labels are read for uids
    assert {r.rule for r in positives.failures} <= {"label_drift"} and positives.page.exists()
    report = validate(root, report_dir=tmp_path / "report", only=["queries.train"])
    assert [(r.rule, r.table) for r in report.failures] == [("readable", "queries.train")]
    assert report.failures[0].rows[0]["shard"] == "queries.train/part-00001.parquet"


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.drop_columns(["content"]), "column content is missing"),
    (lambda t: t.set_column(0, "id", t["id"].cast(pa.string())), "column id is string, not int64"),
    (lambda t: t.append_column("more", t["id"]), "column more is not in the schema"),
    (lambda t: t.append_column("id", t["id"]), "column id is there twice"),
])
def test_a_wrong_schema_is_found_before_any_row_is_read(tmp_path, change, message, monkeypatch):
    root = put(tmp_path / "tables", {"labels": good()["labels"]})
    bad = write_shard(root, "labels", 1, change(read_shard(root, "labels", 1)))
    read = []
    plain = pq.ParquetFile.iter_batches

    def spy(self, *args, **kwargs):
        read.append(self.metadata.num_columns)
        return plain(self, *args, **kwargs)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    report = validate(root, report_dir=tmp_path / "report")
    assert [(r.rule, r.table) for r in report.failures] == [("schema", "labels")]
    assert message in str(report.failures[0].rows[0]["error"])
    assert set(read) == {6} and len(read) == 2  # the two sound shards, for the row rules
    with pytest.raises(ContractError, match=message):
        report.raise_for_failure()
    assert bad.name in report.page.read_text()


def test_dictionary_or_plain_file_names_are_the_same(tmp_path):
    root = put(tmp_path / "tables", {"labels": good()["labels"]})
    data = read_shard(root, "labels", 1)
    write_shard(root, "labels", 1, data.set_column(4, "file", data["file"].cast(pa.string())))
    assert validate(root, report_dir=tmp_path / "report").ok


@pytest.mark.parametrize("column", ["title", "file"])
def test_bytes_that_are_not_utf8(tmp_path, column):
    """A lone surrogate in a middle shard: Parquet carries it silently, the rule names it."""
    root = put(tmp_path / "tables", {"labels": good()["labels"]})
    data = read_shard(root, "labels", 1)
    raw = pa.array([b"fine", b"\xed\xa0\x80 bad"], pa.binary()).view(pa.string())
    if column == "file":
        raw = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), raw)
    write_shard(root, "labels", 1, data.set_column(data.column_names.index(column), column, raw))
    report = validate(root, report_dir=tmp_path / "report")
    assert [(r.rule, r.count, r.rows[0]["line"]) for r in report.failures] == [("utf8", 1, 4)]


@pytest.mark.parametrize("table", ["queries.train", "labels", "positives.test"])
def test_tables_of_no_rows(tmp_path, table):
    report = check(tmp_path, {**good(), table: []}, only=[table])
    assert ("not_empty", table) in {(r.rule, r.table) for r in report.failures}
    assert "suite" not in {r.rule for r in report.rules}


def test_missing_tables_and_folders(tmp_path):
    root = put(tmp_path / "tables", {"positives.train": good()["positives.train"]})
    report = validate(root, report_dir=tmp_path / "a")
    assert report.failures[0].rule == "reference"
    assert all(f"table {name} is missing" in report.failures[0].note for name in ("queries.train", "labels"))
    report = validate(root, only=["labels"], report_dir=tmp_path / "b")
    assert [(r.rule, r.table) for r in report.failures] == [("present", "labels")]
    with pytest.raises(ContractError):
        report.raise_for_failure()
    (tmp_path / "none").mkdir()
    assert [r.rule for r in validate(tmp_path / "none", report_dir=tmp_path / "c").failures] == ["present"]
    (root / "other").mkdir()
    (root / "edges.category").mkdir()
    report = validate(root, report_dir=tmp_path / "d")
    assert [r.table for r in report.warnings if r.rule == "known_table"] == ["edges.category", "other"]
    for wrong in ("other", "edges.category", "positives", "../labels"):
        with pytest.raises(UsageError):
            validate(root, only=[wrong], report_dir=tmp_path / "e")
    with pytest.raises(UsageError):
        validate(tmp_path / "nowhere", report_dir=tmp_path / "e")


def test_a_rule_that_raises_is_a_failing_rule(tmp_path, monkeypatch):
    def broken(*_):
        raise MemoryError("no room")
    monkeypatch.setattr("data_contracts.table_rules._leak", broken)
    report = check(tmp_path, good(), only=["queries.test"])
    assert statuses(report) == {("split_disjointness", "queries.test"): "fail"}
    assert report.failures[0].rows[0]["error"] == "no room"
    monkeypatch.setattr("data_contracts.row_rules.run_suite", broken)
    report = check(tmp_path, good(), only=["labels"])
    assert [r.rule for r in report.failures] == ["suite"]


def test_rows_that_nobody_judged_are_noticed(tmp_path, monkeypatch):
    """A reader that loses its last batch, or a suite that answers too little, is no pass."""
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda self, *a, **k: list(plain(self, *a, **k))[:-1])
    report = check(tmp_path, good(), only=["labels"])
    assert "part-00000.parquet: 0 rows were checked, the footer says 2" in str(report.failures[0].rows[0]["error"])
    monkeypatch.undo()
    monkeypatch.setattr("data_contracts.row_rules.suite_for", lambda *_: suite_for("anchors.x", {}))
    monkeypatch.setattr("data_contracts.row_rules.outcomes",
                        lambda _, answer: outcomes(suite_for("labels", {}), answer))
    report = check(tmp_path, good(), only=["labels"])
    assert "expectations were answered" in str(report.failures[0].rows[0]["error"])
