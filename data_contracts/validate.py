"""Check a folder of tables and write the report as JSON and as one small HTML page: `validate(folder, report_dir=...)`.

The page escapes every text and loads no other file. Neither file contains the time: same tables, same bytes.
"""

import html
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data_contracts.check import Spread, check
from data_contracts.drift import write_frequencies
from data_contracts.errors import UsageError
from data_contracts.findings import Thresholds
from data_contracts.row_rules import GxResults
from data_contracts.suites import quiet_context
from data_contracts.tables import Tables
from data_contracts.verdict import Report, RuleResult, Status, escape_text, plural, where

PAGE_LIMIT = 60_000  # bytes
STATUS_WORDS = {"ok": "kept", "warn": "warned", "fail": "failed"}


def validate(tables_dir: Path, *, only: Sequence[str] | None = None, previous: Path | None = None, report_dir: Path,
             thresholds: Thresholds | None = None, data_docs: bool = False, spread: Spread | None = None) -> Report:
    """Check the tables in a folder, or those named in `only`; write the report and the label frequencies.

    previous, spread: as in `check`. data_docs: also build great-expectations' own pages. Raises UsageError for a
    missing folder, and as `check` does.
    """
    if not tables_dir.is_dir():
        raise UsageError(f"there is no folder of tables at {tables_dir}")
    tables, gx_results = Tables(tables_dir, thresholds), GxResults() if data_docs else None
    report = replace(check(tables, only=only, previous=previous, gx_results=gx_results, spread=spread),
                     page=report_dir / "index.html")
    report_dir.mkdir(parents=True, exist_ok=True)
    if any(table.name == "positives.train" for table in report.tables):
        write_frequencies(tables, report_dir)
    if gx_results is not None:
        write_docs(gx_results, report_dir / "gx")
    write(report, docs=gx_results is not None and (report_dir / "gx" / "index.html").exists())
    return report


def write(report: Report, *, docs: bool = False) -> None:
    """Write `report.page` and, in the same folder, `report.json`; docs: link great-expectations' own pages."""
    assert report.page is not None
    folder = report.page.parent
    folder.mkdir(parents=True, exist_ok=True)
    values = {"verdict": report.verdict, "ok": report.ok, "tables": [asdict(table) for table in report.tables],
              "rules": [asdict(rule) for rule in report.rules]}
    (folder / "report.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    report.page.write_text(_render(report, docs), encoding="utf-8")


def _render(report: Report, docs: bool) -> str:
    """Return the HTML page, below PAGE_LIMIT bytes: with many failures it shows fewer rows and rules."""
    page_template, page = template(Path(__file__).with_name("page.html"), escape_text=escape_text, plural=plural), ""
    for most_rows, most_rules, width in ((10, 200, 200), (5, 100, 120), (2, 60, 80), (1, 30, 60), (0, 10, 40)):
        page = page_template.render(
            report=report, docs=docs, words=STATUS_WORDS, where=where, checked=_by_rule(report.rules),
            tables=_by_table(report), most_rows=most_rows, most_rules=most_rules, width=width)
        if len(page.encode()) < PAGE_LIMIT:
            break
    return page


def template(file: Path, **filters: Callable[..., str]) -> Any:
    """Return a Jinja template that escapes what it is given, and can use these filters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(file.parent), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(filters)
    return environment.get_template(file.name)


def _by_rule(rules: Sequence[RuleResult]) -> list[dict[str, Any]]:
    """Return a row for each rule: its meaning, its number of tables, and its worst status."""
    names = list(dict.fromkeys(rule.rule for rule in rules))
    return [{"rule": name, "meaning": next(rule.meaning for rule in rules if rule.rule == name),
             "tables": sum(rule.rule == name for rule in rules),
             "status": _worst(rule.status for rule in rules if rule.rule == name)} for name in names]


def _by_table(report: Report) -> list[dict[str, Any]]:
    """Return a row for each table: how many of its rules hold, warn and fail, and its worst status."""
    out = []
    for table in report.tables:
        statuses = [rule.status for rule in report.rules if rule.table == table.name]
        out.append({"name": table.name, "rows": table.rows, "shards": table.shards, "status": _worst(statuses),
                    **{status: statuses.count(status) for status in ("ok", "warn", "fail")}})
    return out


def _worst(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def write_docs(results: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> None:
    """Build great-expectations' Data Docs from (shard name, result as JSON) pairs.

    Data Docs do not escape values, so texts are escaped here and failing values left out. The pages load their styles
    from the network.
    """
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = quiet_context()
    context.add_data_docs_site("contract", {
        "class_name": "SiteBuilder", "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())}})
    for shard, result in results:
        escaped = ExpectationSuiteValidationResult(**_without_values(result))
        key = ValidationResultIdentifier(
            expectation_suite_identifier=ExpectationSuiteIdentifier(result["suite_name"]),
            run_id=RunIdentifier(run_name=Path(shard).name), batch_identifier=Path(shard).name)
        context.validation_results_store.set(key, escaped)
    context.build_data_docs(site_names=["contract"])


def _without_values(value: Any) -> Any:
    """Return a JSON value with escaped texts and without the values of failing rows."""
    if isinstance(value, dict):
        return {key: [] if key.startswith("partial_unexpected") else _without_values(child)
                for key, child in value.items()}
    if isinstance(value, list):
        return [_without_values(child) for child in value]
    return html.escape(value) if isinstance(value, str) else value
