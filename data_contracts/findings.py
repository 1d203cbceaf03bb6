"""Thresholds, findings and definitions of rules, and their results for the report."""

from collections.abc import Callable
from dataclasses import dataclass, field

from data_contracts.verdict import Row, RuleResult, Status


@dataclass(frozen=True)
class Thresholds:
    """Limits at which rules warn or fail, and limits on the rows in memory."""

    leak_share: float = .01      # share of test rows whose text is in train, above which the rule fails
    drift_warn: float = .1       # Population Stability Index of the label frequencies
    drift_fail: float = .25
    shown_rows: int = 10         # failing rows kept for each rule
    piece_rows: int = 131_072    # rows read at once
    suite_rows: int = 524_288    # rows of a great-expectations run, at most (but at least one piece)
    suite_bytes: int = 1 << 27   # bytes of those rows, at most
    compared_texts: int = 50_000    # duplicates whose texts are compared; of further ones only the hashes are


@dataclass
class Finding:
    """The failing rows of a rule: their count, the first few of them, a note; status: overrides that by the count."""

    count: int = 0
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    status: Status | None = None


@dataclass(frozen=True)
class Rule:
    """A rule over whole tables; needs: the tables that it reads, which must be undamaged."""

    name: str
    table: str
    meaning: str
    run: Callable[[], Finding]
    needs: tuple[str, ...]
    severity: Status = "fail"


def result(name: str, table: str, meaning: str, finding: Finding, severity: Status = "fail") -> RuleResult:
    """Return the report's result for a finding; its status is `severity` if rows fail, else ok."""
    status = finding.status or (severity if finding.count else "ok")
    return RuleResult(name, table, status, meaning, int(finding.count), finding.note, tuple(finding.rows))
