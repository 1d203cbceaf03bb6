"""Contracts checked by parts, elsewhere and in any order: the same report, byte for byte."""

import pickle
from pathlib import Path

import pytest

from data_contracts.findings import Thresholds
from data_contracts.validate import validate
from tasks.core.dask_workers import Workers
from tasks.core.files import folder_digests
from tasks.core.step import StepContext, unwatched
from tasks.data import contract
from tests.support.contracts import good, put

TABLES = ("queries.train", "queries.test", "labels", "positives.train")
SMALL = Thresholds(piece_rows=3, suite_rows=4, shown_rows=3)


def backwards(function, jobs):
    """Call a function in the reverse order, with copies of its arguments."""
    return [pickle.loads(pickle.dumps(function(*pickle.loads(pickle.dumps(job))))) for job in reversed(jobs)]


def few():
    return {name: good()[name] for name in TABLES}


def broken():
    """Return tables that break rules in several parts: of rows, of whole tables, and of two tables together."""
    tables = few()
    for row in (1, 5, 9, 10):
        tables["queries.train"][row] |= {"title": f"bad\x00{row}", "content": "\x1b"}
    tables["queries.train"][7]["uid"] = tables["queries.train"][3]["uid"]
    tables["queries.test"][4] |= {name: tables["queries.train"][0][name] for name in ("title", "content")}
    for row in (0, 4, 8):
        tables["positives.train"][row]["label"] = 77
    tables["labels"][3] |= {"uid": " ", "title": "", "content": ""}
    return tables


def reports(root: Path, out: Path, spread) -> tuple[dict[str, str], object]:
    report = validate(root, report_dir=out, thresholds=SMALL, spread=spread)
    return folder_digests(out), (report.tables, report.rules)


@pytest.mark.parametrize("tables", [few, broken])
def test_parts_checked_elsewhere_make_the_same_report(tmp_path, tables):
    root = put(tmp_path / "tables", tables(), split=("labels", "queries.train"))
    wanted = reports(root, tmp_path / "report", None)
    assert reports(root, tmp_path / "report", backwards) == wanted
    assert bool([rule for rule in wanted[1][1] if rule.status == "fail"]) == (tables is broken)


def test_dask_workers_make_the_same_report(tmp_path, workers):
    root = put(tmp_path / "tables", {name: broken()[name] for name in ("labels", "positives.train")})
    wanted = reports(root, tmp_path / "report", None)
    assert reports(root, tmp_path / "report", workers.map) == wanted


def test_a_shard_that_only_its_rows_show_to_be_damaged_makes_the_same_report(tmp_path):
    """Of the table that others refer to: their rules are then not checked."""
    root = put(tmp_path / "tables", {name: broken()[name] for name in ("labels", "positives.train")})
    shard = root / "labels" / "part-00001.parquet"
    content = bytearray(shard.read_bytes())
    content[4:40] = bytes(36)    # the first column's pages; the footer is whole
    shard.write_bytes(content)
    wanted = reports(root, tmp_path / "report", None)
    assert any(rule.rule == "readable" and rule.status == "fail" for rule in wanted[1][1])
    assert reports(root, tmp_path / "report", backwards) == wanted


def test_a_suite_that_raises_makes_the_same_report(tmp_path, monkeypatch):
    root = put(tmp_path / "tables", {"labels": good()["labels"]})
    monkeypatch.setattr("data_contracts.row_rules.run_suite", lambda *_, **__: 1 / 0)
    wanted = reports(root, tmp_path / "report", None)
    assert any(rule.rule == "suite" for rule in wanted[1][1])
    assert reports(root, tmp_path / "report", backwards) == wanted


def test_the_check_step_uses_the_workers_for_large_tables(tmp_path, workers, monkeypatch):
    root, made = put(tmp_path / "tables", {name: few()[name] for name in TABLES if name != "queries.test"}), []
    monkeypatch.setattr(contract, "LARGE", 3)
    asked, compute = [], workers.map

    def recording(function, jobs, **named):
        asked.append(function)
        return compute(function, jobs, **named)

    monkeypatch.setattr(workers, "map", recording)
    for count, own in ((0, Workers(count=0)), (2, workers)):
        out = tmp_path / f"out{count}"
        out.mkdir()
        contract.check("data", SMALL, StepContext(
            out, {"tables": root}, tmp_path / "scratch", tmp_path / f"home{count}", own, str, unwatched))
        assert bool(asked) == (count > 0)
        made.append((folder_digests(out), folder_digests(tmp_path / f"home{count}")))
    assert made[0] == made[1]
