"""The contract on tables: each rule is broken alone, in one shard, and must be named with the row to mend."""

import json
import logging
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts import page
from data_contracts.check import Report, Thresholds, stability_index, validate
from data_contracts.errors import ContractError, UsageError
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.suites import outcomes, references, suite_for

Rows = dict[str, list[dict]]
FILES = {"queries": "trn.json", "labels": "lbl.json", "positives": "trn.json", "filters": "filter.txt",
         "anchors": "category.txt", "edges": "category_trn.txt"}


def good() -> Rows:
    """Twelve training queries, six test queries, six labels and one anchor set, all as they should be."""
    def texts(prefix: str, count: int) -> list[dict]:
        return [{"id": i, "uid": f"{prefix}{i}", "title": f"{prefix} title {i}", "content": f"about {prefix} {i}"}
                for i in range(count)]

    edges = [{"node": i, "anchor": i % 3, "weight": 1.0} for i in range(6)]
    tokens = [{"id": i, "title": [i, 5], "content": [], "augmented": False} for i in range(12)]
    return {
        "queries.train": texts("train", 12), "queries.test": texts("test", 6), "labels": texts("label", 6),
        "positives.train": [{"query": i, "label": i % 6, "relevance": 1.0} for i in range(12)],
        "positives.test": [{"query": i, "label": i, "relevance": .5} for i in range(6)],
        "filters.train": [{"query": 0, "label": 0}, {"query": 1, "label": 1}], "filters.test": [],
        "anchors.category": [{"id": i, "title": f"anchor {i}"} for i in range(3)],
        "edges.category.train": edges, "edges.category.label": edges, "walks.category.train": edges,
        "tokens.train": [*tokens, {"id": 12, "title": [3], "content": [1, 2], "augmented": True}],
        "clusters": [{"query": i, "cluster": i // 3} for i in range(12)],
    }


def put(root: Path, tables: Rows, split: Collection[str] = ("labels",)) -> Path:
    """Write tables, those in `split` as three shards; a row's line is its place, unless the row says otherwise."""
    for table, rows in tables.items():
        schema = SCHEMAS[kind_of(table)]
        for shard, chosen in enumerate(np.array_split(np.arange(len(rows)), 3 if table in split else 1)):
            full = [{"file": FILES.get(kind_of(table)), "line": int(i) + 1, **rows[i]} for i in chosen]
            arrays = [pa.array([row[name] for row in full], type=schema.field(name).type) for name in schema.names]
            write_shard(root, table, shard, pa.table(arrays, names=schema.names))
    return root


def write_shard(root: Path, table: str, shard: int, data: pa.Table) -> Path:
    path = root / table / f"part-{shard:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path)
    return path


def read_shard(root: Path, table: str, shard: int) -> pa.Table:
    return pq.read_table(root / table / f"part-{shard:05d}.parquet")


def check(tmp_path: Path, tables: Rows, **options) -> Report:
    root = put(tmp_path / "tables", tables, options.pop("split", options.get("only") or ("labels",)))
    return validate(root, report_dir=tmp_path / "report", **options)


def statuses(report: Report) -> dict[tuple[str, str], str]:
    return {(rule.rule, rule.table): rule.status for rule in report.rules if rule.status != "ok"}


def test_good_tables_keep_their_contract(tmp_path, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        report = check(tmp_path, good())
    assert report.ok and statuses(report) == {}
    report.raise_for_failure()
    assert {(t.name, t.rows, t.shards) for t in report.tables} == {
        (name, len(rows), 3 if name == "labels" else 1) for name, rows in good().items()}
    assert len(report.rules) > 100 and "keeps its contract" in report.verdict
    assert "keeps its contract" in report.page.read_text()
    assert capfd.readouterr() == ("", "") and not caplog.records  # no progress bar, no log line


# table, row to change, its new values, the rule that must fail, text shown in the failing row
BROKEN = [
    ("queries.train", 5, {"id": None}, "not_null", None),
    ("queries.train", 5, {"id": 99}, "id_range", 99),
    ("queries.train", 5, {"id": -1}, "id_range", -1),
    ("labels", 2, {"id": 1}, "id_unique", 1),
    ("queries.train", 5, {"uid": "train0"}, "uid_unique", "train0"),
    ("labels", 3, {"uid": " \t"}, "uid_present", None),
    ("queries.test", 2, {"title": "  ", "content": "\u00a0\n"}, "text_present", None),
    ("queries.test", 2, {"title": "a\x00b"}, "control_characters", r"a\x00b"),
    ("labels", 2, {"content": "red \x1b[31m"}, "control_characters", r"red \x1b[31m"),
    ("labels", 2, {"title": "c1 \x85"}, "control_characters", r"c1 \x85"),
    ("anchors.category", 1, {"title": "\x7f"}, "control_characters", r"\x7f"),
    ("positives.train", 6, {"relevance": 0.0}, "relevance_range", 0.0),
    ("positives.train", 6, {"relevance": -2.0}, "relevance_range", -2.0),
    ("positives.train", 6, {"relevance": float("nan")}, "relevance_range", "nan"),
    ("positives.train", 6, {"relevance": float("inf")}, "relevance_range", "inf"),
    ("positives.train", 6, {"label": 6}, "reference", 6),
    ("positives.test", 3, {"query": 6}, "reference", 6),
    ("positives.train", 6, {"label": 2**40}, "reference", 2**40),
    ("filters.train", 1, {"label": -1}, "reference", -1),
    ("edges.category.train", 3, {"node": 12}, "reference", 12),
    ("edges.category.label", 3, {"node": 6}, "reference", 6),
    ("edges.category.label", 3, {"anchor": 3}, "reference", 3),
    ("edges.category.train", 3, {"weight": float("nan")}, "weight_range", "nan"),
    ("walks.category.train", 3, {"node": 12}, "reference", 12),
    ("clusters", 6, {"cluster": -1}, "cluster_range", -1),
    ("clusters", 6, {"query": 5}, "id_unique", 5),
    ("clusters", 6, {"query": 18}, "reference", 18),
    ("tokens.train", 6, {"id": 5}, "id_unique", 5),
    ("tokens.train", 6, {"title": [3, -4]}, "token_range", "[3, -4]"),
    ("positives.train", 6, {"query": 5, "label": 5}, "pair_unique", 5),
    ("edges.category.label", 3, {"node": 0, "anchor": 0}, "pair_unique", 0),
    ("queries.train", 5, {"line": 0}, "origin", 0),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case[0]}-{case[3]}-{next(iter(case[2].values()))!a}")
def test_each_rule_names_its_row(tmp_path, case):
    """A row is broken, for some tables in a middle shard; only its rule fails, and says where the row was read."""
    table, row, values, rule, shown = case
    tables = good()
    tables[table][row] = {**tables[table][row], **values}
    report = check(tmp_path, tables, only=[table], split=("positives.train", "walks.category.train", "clusters"))
    assert [(r.rule, r.table, r.count) for r in report.failures] == [(rule, table, 1)]
    (found,) = report.failures[0].rows
    assert shown is None or shown in found.values()
    line = values.get("line", row + 1)
    place = f"{FILES[kind_of(table)]}:{line}" if kind_of(table) in FILES else rf"{table}/part-0000\d\.parquet row \d"
    with pytest.raises(ContractError) as caught:
        report.raise_for_failure()
    assert re.fullmatch(place, caught.value.where) and caught.value.exit_code == 3
    text = str(caught.value)
    assert len(text.splitlines()) <= 6 and rule in text and table in text and str(report.page) in text
    assert rule in report.page.read_text() and page.where(found) in report.page.read_text()


@pytest.mark.parametrize("rule", ["duplicate_text", "conflicting_labels", "queries_without_label", "pair_unique"])
def test_what_only_warns(tmp_path, rule):
    tables = good()
    same = {"title": "train title 0", "content": "about train 0"}
    if rule in ("duplicate_text", "conflicting_labels"):
        tables["queries.train"][7].update(same)
        tables["positives.train"][7]["label"] = 0 if rule == "duplicate_text" else 1
    elif rule == "queries_without_label":
        del tables["positives.test"][4]
    else:
        tables["filters.train"].append(tables["filters.train"][0])
    report = check(tmp_path, tables, only=[{"queries_without_label": "positives.test", "pair_unique": "filters.train"}
                                           .get(rule, "queries.train")])
    assert report.ok and rule in {found.rule for found in report.warnings}
    assert len(report.warnings) == (2 if rule == "conflicting_labels" else 1)
    found = next(r for r in report.warnings if r.rule == rule)
    assert found.count == 1 and len(found.rows) == 1
    if rule != "queries_without_label":
        assert found.rows[0]["same_as"] == ("filter.txt:1" if rule == "pair_unique" else "trn.json:1")
    else:
        assert found.rows[0]["uid"] == "test4"


def test_leak_warns_below_its_threshold_and_fails_above(tmp_path):
    tables = good()
    tables["queries.test"][4].update(title="train title 7", content="about train 7")
    kept = check(tmp_path / "a", tables, only=["queries.test"], thresholds=Thresholds(leak_share=.2))
    assert statuses(kept) == {("split_disjointness", "queries.test"): "warn"}
    report = check(tmp_path / "b", tables, only=["queries.test"])
    assert statuses(report) == {("split_disjointness", "queries.test"): "fail"}
    (row,) = report.failures[0].rows
    assert (row["uid"], row["line"], row["same_as"]) == ("test4", 5, "trn.json:8")
    assert "16.67%" in report.failures[0].note
    with pytest.raises(ContractError, match="split_disjointness"):
        report.raise_for_failure()


def test_title_and_content_are_not_run_together(tmp_path):
    """"ab" + "c" is another text than "a" + "bc"."""
    tables = good()
    tables["queries.train"][0].update(title="ab", content="c")
    tables["queries.train"][1].update(title="a", content="bc")
    tables["queries.test"][0].update(title="", content="abc")
    assert statuses(check(tmp_path, tables, only=["queries.train", "queries.test"])) == {}


def test_repeats_of_every_row_are_counted_whatever_is_verified(tmp_path):
    tables = good()
    for row in tables["queries.train"]:
        row["uid"] = "same"
    for verified in (3, 50_000):
        limits = Thresholds(verified=verified)
        report = check(tmp_path / str(verified), tables, only=["queries.train"], thresholds=limits)
        (failure,) = report.failures
        assert (failure.rule, failure.count, len(failure.rows)) == ("uid_unique", 11, 10)
        assert {row["same_as"] for row in failure.rows} == {"trn.json:1"}


def test_equal_hashes_alone_are_no_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr("pandas.util.hash_array", lambda values, **_: np.zeros(len(values), np.uint64))
    tables, only = good(), ["labels", "queries.test"]
    assert statuses(check(tmp_path / "a", tables, only=only)) == {}
    tables["labels"][4]["uid"] = "label1"
    report = check(tmp_path / "b", tables, only=only)
    assert [(r.rule, r.table, r.count, r.rows[0]["line"]) for r in report.failures] == [("uid_unique", "labels", 1, 5)]


def test_small_pieces_find_the_same(tmp_path):
    """However a shard is cut, a row is found at its place; the sequence of pieces is no sequence of shards."""
    tables = good()
    tables["positives.train"][6]["relevance"] = -1.0
    tables["walks.category.train"][5]["weight"] = 0.0
    tables["tokens.train"][7]["content"] = [-1]
    tables["tokens.train"][8]["id"] = 0
    found = []
    for size in (3, 100):
        report = check(tmp_path / str(size), tables, thresholds=Thresholds(piece_rows=size),
                       only=["positives.train", "walks.category.train", "tokens.train"])
        found.append([(r.rule, r.table, r.count, r.rows) for r in report.failures])
    assert len(found[0]) == 4 and found[0] == found[1]
    walk = next(rows[0] for _, table, _, rows in found[0] if table.startswith("walks"))
    assert (walk["shard"], walk["row"]) == ("walks.category.train/part-00002.parquet", 1)


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
    monkeypatch.setattr("data_contracts.check._leak", broken)
    report = check(tmp_path, good(), only=["queries.test"])
    assert statuses(report) == {("split_disjointness", "queries.test"): "fail"}
    assert report.failures[0].rows[0]["error"] == "no room"
    monkeypatch.setattr("data_contracts.check.run_suite", broken)
    report = check(tmp_path, good(), only=["labels"])
    assert [r.rule for r in report.failures] == ["suite"]


def test_rows_that_nobody_judged_are_noticed(tmp_path, monkeypatch):
    """A reader that loses its last batch, or a suite that answers too little, is no pass."""
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda self, *a, **k: list(plain(self, *a, **k))[:-1])
    report = check(tmp_path, good(), only=["labels"])
    assert "part-00000.parquet: 0 rows were judged, the footer says 2" in str(report.failures[0].rows[0]["error"])
    monkeypatch.undo()
    monkeypatch.setattr("data_contracts.check.suite_for", lambda *_: suite_for("anchors.x", {}))
    monkeypatch.setattr("data_contracts.check.outcomes", lambda _, answer: outcomes(suite_for("labels", {}), answer))
    report = check(tmp_path, good(), only=["labels"])
    assert "expectations were answered" in str(report.failures[0].rows[0]["error"])


def frequencies(counts: list[int]) -> Rows:
    """A corpus in which label i has `counts[i]` positives."""
    labels = [{"id": i, "uid": f"L{i}", "title": f"label {i}", "content": ""} for i in range(len(counts))]
    pairs = [{"query": q, "label": i, "relevance": 1.0} for i, count in enumerate(counts) for q in range(count)]
    queries = [{"id": i, "uid": f"q{i}", "title": f"query {i}", "content": ""} for i in range(max(counts))]
    return {"labels": labels, "positives.train": pairs, "queries.train": queries}


@pytest.mark.parametrize(("now", "status"), [([900, 500, 300, 100], "ok"), ([910, 495, 290, 110], "ok"),
                                             ([700, 400, 350, 250], "warn"), ([100, 300, 500, 900], "fail")])
def test_label_drift(tmp_path, now, status):
    before = check(tmp_path / "before", frequencies([900, 500, 300, 100]), only=["positives.train"], split=())
    assert before.ok
    previous = before.page.parent / ("frequencies.parquet" if status == "ok" else "")
    report = check(tmp_path / "now", frequencies(now), previous=previous, only=["positives.train"], split=())
    (drift,) = [rule for rule in report.rules if rule.rule == "label_drift"]
    assert drift.status == status and "Population Stability Index" in drift.note
    if status == "fail":
        assert drift.rows[0]["uid"] == "L0" and drift.rows[0]["share_before"] == "50.000%"


def test_new_labels_are_drift_and_few_positives_are_not(tmp_path):
    only = ["positives.train"]
    before = check(tmp_path / "before", frequencies([40, 30, 20]), only=only).page.parent
    grown = check(tmp_path / "a", frequencies([40, 30, 20, 35]), previous=before, only=only)
    assert "1 labels new, 0 gone" in next(r.note for r in grown.rules if r.rule == "label_drift")
    assert [r.rule for r in grown.failures] == ["label_drift"]
    small = check(tmp_path / "b", frequencies([4, 3, 2]), only=only).page.parent
    assert check(tmp_path / "c", frequencies([2, 3, 4]), previous=small, only=only).ok


def test_stability_index_is_the_sum_it_says():
    known, uids = np.array([5, 1, 9], np.uint64), np.array([9, 5, 1], np.uint64)
    before, now = np.array([50, 30, 20]), np.array([30, 40, 30])
    expected, actual = [.5, .3, .2], [.4, .3, .3]
    value, _ = stability_index(known, before, uids, now)
    assert value == pytest.approx(sum((a - e) * np.log(a / e) for a, e in zip(actual, expected, strict=True)))


@pytest.mark.parametrize("content", [b"", b"not parquet"])
def test_an_unreadable_earlier_run_fails_its_rule_only(tmp_path, content):
    (tmp_path / "old.parquet").write_bytes(content)
    report = check(tmp_path, good(), previous=tmp_path / "old.parquet", only=["positives.train"])
    assert [r.rule for r in report.failures] == ["label_drift"]


HOSTILE = "<script>alert(1)</script> \u202eevil \x1b[2J {{ 7*7 }} &amp; שלום\r\nX: y"


def test_hostile_text_is_inert_everywhere(tmp_path):
    tables = good()
    tables["labels"][3].update(title=HOSTILE, uid=HOSTILE, file="<b>\x1b]0;x\x07\n.json")
    report = check(tmp_path, tables, only=["labels"])
    html = report.page.read_text()
    assert "<script" not in html and "&lt;script&gt;" in html and "<b>" not in html and "{{ 7*7 }}" in html
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", html)
    with pytest.raises(ContractError) as caught:
        report.raise_for_failure()
    for text in (html, str(caught.value), report.page.with_name("report.json").read_text()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "שלום" in html and len(str(caught.value).splitlines()) <= 6


def test_report_files_are_the_same_for_the_same_tables(tmp_path):
    tables = good()
    tables["labels"][3]["title"] = ""
    tables["positives.train"][0]["relevance"] = float("nan")
    first, second = (check(tmp_path / name, tables, only=["labels", "positives.train"]) for name in "ab")
    for name in ("index.html", "report.json", "frequencies.parquet"):
        assert first.page.with_name(name).read_bytes() == second.page.with_name(name).read_bytes()
    told = json.loads(first.page.with_name("report.json").read_text(), parse_constant=pytest.fail)
    assert told["ok"] is False and told["verdict"] == first.verdict
    assert {rule["rule"] for rule in told["rules"] if rule["status"] == "fail"} == {"relevance_range"}


def test_a_page_of_many_long_failures_stays_small(tmp_path):
    row: page.Row = {name: "<" * 200 for name in ("title", "content", "uid", "file", "same_as")}
    rules = tuple(page.RuleResult(f"rule{i % 20}", f"table{i // 20}", "fail", "x" * 80, 10, "<" * 300, (row,) * 10)
                  for i in range(1200))
    tables = tuple(page.TableSummary(f"table{i}", 1, 1) for i in range(60))
    report = page.Report(tables, rules, tmp_path / "index.html")
    page.write(report)
    assert report.page.stat().st_size < page.PAGE_LIMIT and "report.json" in report.page.read_text()


def test_data_docs_hold_no_value(tmp_path):
    tables = good()
    tables["labels"][3]["title"] = HOSTILE
    report = check(tmp_path, tables, only=["labels", "queries.test"], data_docs=True)
    pages = list((report.page.parent / "gx").rglob("*.html"))
    assert len([path for path in pages if "validations" in path.parts]) == 6  # two tables of three shards
    assert not any("alert(1)" in path.read_text() for path in pages)
    assert 'href="gx/index.html"' in report.page.read_text()


@pytest.mark.parametrize("table", good())
def test_every_kind_has_a_suite(table):
    suite = suite_for(table, dict.fromkeys(references(table), 3))
    judged = {e.column for e in suite.expectations if hasattr(e, "column")}
    assert judged == set(SCHEMAS[kind_of(table)].names)
