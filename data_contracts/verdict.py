"""The report of a validation: tables, results of rules, and a verdict in one sentence.

Texts in a report are untrusted. They are escaped when a row is collected, so that none can control a terminal.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_contracts.errors import ContractError

Status = Literal["ok", "warn", "fail"]
Row = dict[str, str | int | float]


@dataclass(frozen=True)
class TableSummary:
    """A checked table; rows: of its readable shards."""

    name: str
    rows: int
    shards: int


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule on one table; count: failing rows. rows: the first of them (`Thresholds.shown_rows`)."""

    rule: str
    table: str
    status: Status
    meaning: str
    count: int = 0
    note: str = ""
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Report:
    """The results of a validation; page: the path of the HTML report, None where none was written."""

    tables: tuple[TableSummary, ...]
    rules: tuple[RuleResult, ...]
    page: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether no rule fails; warnings are allowed."""
        return not self.failures

    @property
    def failures(self) -> tuple[RuleResult, ...]:
        """The failing rules; rules on which others depend come first."""
        return tuple(rule for rule in self.rules if rule.status == "fail")

    @property
    def warnings(self) -> tuple[RuleResult, ...]:
        """The rules with a warning."""
        return tuple(rule for rule in self.rules if rule.status == "warn")

    @property
    def warning_lines(self) -> list[str]:
        """A line for each warning: the rule, its table, the reason and the number of rows."""
        return [f"warning: {rule.rule} in {rule.table}: {escape_text(rule.note or rule.meaning)}"
                + (f" ({plural(rule.count, 'row')})" if rule.count else "") for rule in self.warnings]

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        rows = sum(table.rows for table in self.tables)
        if self.ok:
            return (f"The data keeps its contract: {plural(len(self.tables), 'table')} with {plural(rows, 'row')}, "
                    f"{plural(len(self.rules), 'rule')} checked, {plural(len(self.warnings), 'warning')}.")
        first = self.failures[0]
        return (f"The data breaks its contract: {len(self.failures)} of {plural(len(self.rules), 'rule')} "
                f"{'fails' if len(self.failures) == 1 else 'fail'}, first {first.rule} in {first.table}.")

    def raise_for_failure(self) -> None:
        """Raise a ContractError that shows the first failing row, in at most 6 lines, if a rule fails."""
        if self.ok:
            return
        first, *others = self.failures
        lines = [f"{first.table} breaks the rule {first.rule}: {first.meaning} ({plural(first.count, 'failing row')})"]
        if first.note:
            lines.append(escape_text(first.note, 200))
        if first.rows:
            shown = (f"{name}={value}" for name, value in first.rows[0].items() if name not in ("file", "line"))
            lines.append(f"first: {escape_text(', '.join(shown), 300)}")
        if others:
            names = ", ".join(f"{rule.rule} in {rule.table}" for rule in others[:3])
            lines.append(f"also failing: {names}" + (f" and {len(others) - 3} more" if len(others) > 3 else ""))
        raise ContractError("\n".join(lines), where=where(first.rows[0]) if first.rows else f"table {first.table}",
                            hint=f"see all findings in {self.page}, correct the data, run again" if self.page else "")


def where(row: Row) -> str:
    """Return `file:line` of a row, or its shard and row if the table has no file column."""
    if "file" in row:
        return f"{row['file']}:{row['line']}" if "line" in row else str(row["file"])
    return f"{row['shard']} row {row['row']}" if "row" in row else str(row.get("shard", "?"))


def escape_text(value: object, limit: int = 200) -> str:
    """Return a text cut to `limit` characters, with each unprintable character as an escape such as `\\x1b`.

    Control characters, line ends, bidirectional overrides and lone surrogates could control a terminal, log or page.
    """
    text = str(value)
    text = text if len(text) <= limit else text[:limit - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 row" or "1,000 rows"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
