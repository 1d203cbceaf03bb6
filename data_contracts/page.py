"""The verdict on a set of tables: what was checked, as values, as JSON and as one small page.

Texts in a report come from anybody. `inert` makes them printable where a row is collected, so no
escape sequence reaches a terminal; the page escapes them once more and loads nothing from anywhere.
Nothing here tells the time: the same tables give the same bytes.
"""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import ContractError

Status = Literal["ok", "warn", "fail"]
Row = dict[str, str | int | float]
PAGE_LIMIT = 60_000  # bytes
WORDS = {"ok": "kept", "warn": "warning", "fail": "fails"}


@dataclass(frozen=True)
class TableSummary:
    """One table as found: rows are counted from the footers of the shards that can be read."""

    name: str
    rows: int
    shards: int


@dataclass(frozen=True)
class RuleResult:
    """One rule on one table: `count` failing rows, of which up to ten are in `rows`."""

    rule: str
    table: str
    status: Status
    meaning: str
    count: int = 0
    note: str = ""
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Report:
    """All that a validation found; `page` is where the human-readable report lies."""

    tables: tuple[TableSummary, ...]
    rules: tuple[RuleResult, ...]
    page: Path

    @property
    def ok(self) -> bool:
        """Whether no rule fails; warnings are allowed."""
        return not self.failures

    @property
    def failures(self) -> tuple[RuleResult, ...]:
        """The failing rules, the most fundamental first."""
        return tuple(rule for rule in self.rules if rule.status == "fail")

    @property
    def warnings(self) -> tuple[RuleResult, ...]:
        """The rules that only warn."""
        return tuple(rule for rule in self.rules if rule.status == "warn")

    @property
    def warned(self) -> list[str]:
        """A line for each rule that warns: which, in which table, why and how often."""
        return [f"warning: {each.rule} in {each.table}: {inert(each.note or each.meaning)}"
                + (f" ({_many(each.count, 'row')})" if each.count else "") for each in self.warnings]

    @property
    def verdict(self) -> str:
        """One sentence for a person."""
        rows = sum(table.rows for table in self.tables)
        if self.ok:
            return (f"The data keeps its contract: {_many(len(self.tables), 'table')} with {_many(rows, 'row')}, "
                    f"{_many(len(self.rules), 'rule')} checked, {_many(len(self.warnings), 'warning')}.")
        first = self.failures[0]
        return (f"The data breaks its contract: {len(self.failures)} of {_many(len(self.rules), 'rule')} "
                f"{'fails' if len(self.failures) == 1 else 'fail'}, first {first.rule} in {first.table}.")

    def raise_for_failure(self) -> None:
        """Raise a ContractError of at most 6 lines that shows the first failing row, if any rule fails."""
        if self.ok:
            return
        first, *others = self.failures
        lines = [f"{first.table} breaks the rule {first.rule}: {first.meaning} ({_many(first.count, 'failing row')})"]
        if first.note:
            lines.append(inert(first.note, 200))
        if first.rows:
            shown = (f"{name}={value}" for name, value in first.rows[0].items() if name not in ("file", "line"))
            lines.append(f"first: {inert(', '.join(shown), 300)}")
        if others:
            names = ", ".join(f"{rule.rule} in {rule.table}" for rule in others[:3])
            lines.append(f"also failing: {names}" + (f" and {len(others) - 3} more" if len(others) > 3 else ""))
        raise ContractError("\n".join(lines), where=where(first.rows[0]) if first.rows else f"table {first.table}",
                            hint=f"every finding is in {self.page}; mend the data and run again")


def where(row: Row) -> str:
    """Return `file:line` of a row, or its place in its shard where the table does not know the file."""
    if "file" in row:
        return f"{row['file']}:{row['line']}" if "line" in row else str(row["file"])
    return f"{row['shard']} row {row['row']}" if "row" in row else str(row.get("shard", "?"))


def inert(value: object, limit: int = 200) -> str:
    """Return a text of at most `limit` characters in which every unprintable character is spelt out.

    Control characters, line ends, bidirectional overrides and lone surrogates become `\\x1b`, `\\u202e`
    and the like, so that neither a terminal nor a log nor a page can be steered by a text.
    """
    text = str(value)
    text = text if len(text) <= limit else text[:limit - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def write(report: Report, *, docs: bool = False) -> None:
    """Write `index.html` and `report.json` side by side in the folder of `report.page`."""
    folder = report.page.parent
    folder.mkdir(parents=True, exist_ok=True)
    told = {"verdict": report.verdict, "ok": report.ok, "tables": [asdict(table) for table in report.tables],
            "rules": [asdict(rule) for rule in report.rules]}
    (folder / "report.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    report.page.write_text(render(report, docs=docs), encoding="utf-8")


def render(report: Report, *, docs: bool = False) -> str:
    """Return the page, always below PAGE_LIMIT bytes: fewer rows, then fewer rules are shown as they grow many."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(inert=inert, many=_many)
    template = environment.get_template("page.html")
    page = ""
    for rows, rules, width in ((10, 200, 200), (5, 100, 120), (2, 60, 80), (1, 30, 60), (0, 10, 40)):
        page = template.render(report=report, docs=docs, words=WORDS, where=where, checked=_by_rule(report.rules),
                               tables=_by_table(report), most_rows=rows, most_rules=rules, width=width)
        if len(page.encode()) < PAGE_LIMIT:
            break
    return page


def _by_rule(rules: Sequence[RuleResult]) -> list[dict[str, Any]]:
    """Gather what was checked by rule: its meaning, on how many tables, and the worst status."""
    names = list(dict.fromkeys(rule.rule for rule in rules))
    return [{"rule": name, "meaning": next(r.meaning for r in rules if r.rule == name),
             "tables": sum(r.rule == name for r in rules), "status": _worst(r.status for r in rules if r.rule == name)}
            for name in names]


def _by_table(report: Report) -> list[dict[str, Any]]:
    """Give each table its number of rules kept, warning and failing."""
    counted = []
    for table in report.tables:
        own = [rule.status for rule in report.rules if rule.table == table.name]
        counted.append({"name": table.name, "rows": table.rows, "shards": table.shards, "status": _worst(own),
                        **{status: own.count(status) for status in ("ok", "warn", "fail")}})
    return counted


def _worst(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def write_docs(results: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> None:
    """Build great-expectations' own Data Docs from the results of its suites, each as JSON with its shard's name.

    Data Docs do not escape values, so every text of a result is escaped before it is handed over and
    the failing values are left out. They load their styles from elsewhere: never serve them alone.
    """
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    from data_contracts.suites import quiet_context

    context = quiet_context()
    context.add_data_docs_site("contract", {
        "class_name": "SiteBuilder", "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())}})
    for shard, result in results:
        told = ExpectationSuiteValidationResult(**_without_values(result))
        key = ValidationResultIdentifier(
            expectation_suite_identifier=ExpectationSuiteIdentifier(result["suite_name"]),
            run_id=RunIdentifier(run_name=Path(shard).name), batch_identifier=Path(shard).name)
        context.validation_results_store.set(key, told)
    context.build_data_docs(site_names=["contract"])


def _without_values(told: Any) -> Any:
    """Return a JSON value with its texts escaped and the values of failing rows left out."""
    if isinstance(told, dict):
        return {key: [] if key.startswith("partial_unexpected") else _without_values(value)
                for key, value in told.items()}
    if isinstance(told, list):
        return [_without_values(value) for value in told]
    return html.escape(told) if isinstance(told, str) else told
