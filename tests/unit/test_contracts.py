"""The contract on tables: each rule is broken alone, in one shard, and must be named with the row to mend."""

import logging
import re

import numpy as np
import pyarrow as pa
import pytest

from data_contracts import verdict
from data_contracts.errors import ContractError
from data_contracts.findings import Thresholds
from data_contracts.row_rules import row_results
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.suites import references, suite_for
from data_contracts.tables import Tables
from tests.support.contracts import FILES, check, good, put, statuses


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
    ("rejected.train", 0, {"label": 0}, "rejected_is_positive", 0),
    ("rejected.train", 1, {"query": 12}, "reference", 12),
    ("groups.train", 5, {"group": " "}, "group_present", None),
    ("groups.train", 5, {"query": 12}, "reference", 12),
    ("groups.train", 5, {"query": 4}, "id_unique", 4),
    ("broader", 1, {"concept": "\t"}, "uid_present", None),
    ("broader", 1, {"broader": "a\x00"}, "control_characters", r"a\x00"),
    ("edges.category.train", 3, {"node": 12}, "reference", 12),
    ("edges.category.label", 3, {"node": 6}, "reference", 6),
    ("edges.category.label", 3, {"anchor": 3}, "reference", 3),
    ("edges.category.train", 3, {"weight": float("nan")}, "weight_range", "nan"),
    ("walks.category.train", 3, {"node": 12}, "reference", 12),
    ("pruned.category.train", 3, {"anchor": 3}, "reference", 3),
    ("clusters", 6, {"cluster": -1}, "cluster_range", -1),
    ("clusters", 6, {"query": 5}, "id_unique", 5),
    ("clusters", 6, {"query": 18}, "reference", 18),
    ("negatives", 6, {"query": 5}, "id_unique", 5),
    ("negatives", 6, {"query": 18}, "reference", 18),
    ("negatives", 6, {"labels": [1, 6]}, "label_reference", "[1, 6]"),
    ("negatives", 6, {"labels": [-1]}, "label_reference", "[-1]"),
    ("negatives", 6, {"labels": [2, 3, 2]}, "label_reference", "[2, 3, 2]"),
    ("negatives", 6, {"labels": [5, 0]}, "negative_is_positive", "[5, 0]"),
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
    split = ("positives.train", "walks.category.train", "clusters", "negatives")
    report = check(tmp_path, tables, only=[table], split=split)
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
    assert rule in report.page.read_text() and verdict.where(found) in report.page.read_text()


@pytest.mark.parametrize("rule", ["duplicate_text", "conflicting_labels", "queries_without_label", "pair_unique"])
def test_what_only_warns(tmp_path, rule):
    tables = good()
    same = {"title": "train title 0", "content": "about train 0"}
    if rule in ("duplicate_text", "conflicting_labels"):
        tables["queries.train"][7].update(same)
        tables["positives.train"][7]["label"] = 0
    if rule == "conflicting_labels":    # of as many labels, whose ids have the same sum
        tables["positives.train"] = [row for row in tables["positives.train"] if row["query"] not in (0, 7)] + [
            {"query": query, "label": label, "relevance": 1.0} for query, labels in ((0, (1, 4)), (7, (2, 3)))
            for label in labels]
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


def test_propensities_need_three_training_queries(tmp_path):
    tables = {name: good()[name] for name in ("queries.train", "labels")}
    assert check(tmp_path / "a", {**tables, "queries.train": tables["queries.train"][:3]}).ok
    report = check(tmp_path / "b", {**tables, "queries.train": tables["queries.train"][:2]})
    with pytest.raises(ContractError, match=r"enough_queries: .* at least 3 training queries.*\nit has 2: add rows"):
        report.raise_for_failure()


def test_leak_warns_below_its_threshold_and_fails_above(tmp_path):
    tables = good()
    tables["queries.test"][4].update(title="train title 7", content="about train 7")
    kept = check(tmp_path / "a", tables, only=["queries.test"], thresholds=Thresholds(leak_share=.2))
    assert statuses(kept) == {("split_disjointness", "queries.test"): "warn"}
    (line,) = kept.warning_lines
    assert line.startswith("warning: split_disjointness in queries.test: ") and "16.67%" in line
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
        limits = Thresholds(compared_texts=verified)
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
    for limits in (Thresholds(piece_rows=3), Thresholds(), Thresholds(piece_rows=3, suite_rows=7),
                   Thresholds(suite_rows=1), Thresholds(suite_bytes=1)):
        report = check(tmp_path / str(len(found)), tables, thresholds=limits,
                       only=["positives.train", "walks.category.train", "tokens.train"])
        found.append([(r.rule, r.table, r.count, r.rows) for r in report.failures])
    assert len(found[0]) == 4 and all(each == found[0] for each in found)
    walk = next(rows[0] for _, table, _, rows in found[0] if table.startswith("walks"))
    assert (walk["shard"], walk["row"]) == ("walks.category.train/part-00002.parquet", 1)


@pytest.mark.parametrize("table", good())
def test_every_kind_has_a_suite(table):
    suite = suite_for(table, dict.fromkeys(references(table), 3))
    checked = {e.column for e in suite.expectations if hasattr(e, "column")}
    assert checked == set(SCHEMAS[kind_of(table)].names)


def test_what_was_checked_is_not_held(tmp_path):
    tables, kept = good(), []
    tables["queries.train"] = [{"id": row, "uid": f"t{row}", "title": f"{row} " + 5000 * "x", "content": ""}
                               for row in range(120)]
    root = put(tmp_path, tables)
    before = pa.total_allocated_bytes()
    results = row_results(Tables(root, Thresholds(piece_rows=20, suite_rows=20)), "queries.train", list(tables), kept)
    assert len(kept) == 6 and all(rule.status == "ok" for rule in results)
    assert pa.total_allocated_bytes() - before < 3 * 20 * 5000    # of what was checked in 6 parts
