"""The report's page and files: inert, small, the same for the same tables."""

import gzip
import json
import re

import pytest

from data_contracts import verdict
from data_contracts.errors import ContractError
from data_contracts.validate import PAGE_LIMIT, write
from tasks.core.dask_workers import Workers
from tasks.core.step import run_all
from tasks.core.store import Store
from tasks.data.contract import page_of
from tasks.data.prepare import steps
from tasks.data.sources import describe
from tests.support.contracts import check, good
from tests.support.planted import write_planted
from xcmodels.data.prepare_config import PrepareConfig

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
    row: verdict.Row = {name: "<" * 200 for name in ("title", "content", "uid", "file", "same_as")}
    rules = tuple(verdict.RuleResult(f"rule{i % 20}", f"table{i // 20}", "fail", "x" * 80, 10, "<" * 300, (row,) * 10)
                  for i in range(1200))
    tables = tuple(verdict.TableSummary(f"table{i}", 1, 1) for i in range(60))
    report = verdict.Report(tables, rules, tmp_path / "index.html")
    write(report)
    assert report.page.stat().st_size < PAGE_LIMIT and "report.json" in report.page.read_text()


def test_data_docs_hold_no_value(tmp_path):
    tables = good()
    tables["labels"][3]["title"] = HOSTILE
    report = check(tmp_path, tables, only=["labels", "queries.test"], data_docs=True)
    pages = list((report.page.parent / "gx").rglob("*.html"))
    assert len([path for path in pages if "validations" in path.parts]) == 2  # two tables, each judged at once
    assert not any("alert(1)" in path.read_text() for path in pages)
    assert 'href="gx/index.html"' in report.page.read_text()


def test_a_page_is_given_out_with_the_check_that_it_is_of_alone(tmp_path):
    """Each check writes the page of its name, also one that fails; a later run may reuse what an earlier one found."""
    store, data = Store(tmp_path / "home"), write_planted(tmp_path / "data", train=60, test=10, labels=8)
    tested = (data / "tst.json.gz").read_bytes()

    def checked(**config):
        raw = describe(data)
        with Workers(count=0) as workers:
            done = run_all(steps(raw, PrepareConfig(**config), 0)[:2], store, workers)["check tables"]
        return done, page_of(raw.name, done, store)

    first, page = checked()
    assert json.loads((page.parent / "report.json").read_text())["ok"]
    texts = gzip.decompress((data / "trn.json.gz").read_bytes()).splitlines(keepends=True)
    (data / "tst.json.gz").write_bytes(gzip.compress(b"".join(texts[:10])))
    with pytest.raises(ContractError, match="leak"):
        checked()
    assert not json.loads((page.parent / "report.json").read_text())["ok"]
    (data / "tst.json.gz").write_bytes(tested)
    assert checked() == (first, None)
    assert checked(leak_share=0.5)[1] == page and checked() == (first, None)
