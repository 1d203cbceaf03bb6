"""Check a folder of tables and write a report: `validate(folder, report_dir=...)`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_contracts.check import check
from data_contracts.drift import write_frequencies
from data_contracts.errors import UsageError
from data_contracts.findings import Thresholds
from data_contracts.page import write, write_docs
from data_contracts.row_rules import GxResults
from data_contracts.tables import Tables
from data_contracts.verdict import Report


def validate(tables_dir: Path, *, only: Sequence[str] | None = None, previous: Path | None = None, report_dir: Path,
             thresholds: Thresholds | None = None, data_docs: bool = False) -> Report:
    """Check the tables in a folder, or those named in `only`; write the report and the label frequencies.

    previous: as in `check`. data_docs: also build great-expectations' own pages. Raises UsageError for a missing
    folder, and as `check` does.
    """
    if not tables_dir.is_dir():
        raise UsageError(f"there is no folder of tables at {tables_dir}")
    tables, gx_results = Tables(tables_dir, thresholds), GxResults() if data_docs else None
    report = replace(check(tables, only=only, previous=previous, gx_results=gx_results), page=report_dir / "index.html")
    report_dir.mkdir(parents=True, exist_ok=True)
    if any(table.name == "positives.train" for table in report.tables):
        write_frequencies(tables, report_dir)
    if gx_results is not None:
        write_docs(gx_results, report_dir / "gx")
    write(report, docs=gx_results is not None and (report_dir / "gx" / "index.html").exists())
    return report
