"""Thresholds, findings and definitions of rules, and their results for the report."""

from collections.abc import Callable
from dataclasses import dataclass, field

from data_contracts.verdict import Row, RuleResult, Status


@dataclass(frozen=True)
class Thresholds:
    """When a rule warns or fails, and how much of a table is in memory at once."""

    leak_share: float = .01      # share of test rows whose text is in train, above which the leak fails
    drift_warn: float = .1       # Population Stability Index of the label frequencies
    drift_fail: float = .25
    shown_rows: int = 10         # failing rows kept for each rule
    piece_rows: int = 131_072    # rows read at once
    judged_rows: int = 524_288   # rows in a run of great-expectations at most: whole pieces, and one at least
    judged_bytes: int = 1 << 27  # bytes of those rows at most
    verified: int = 50_000       # repeated texts compared character by character; more are counted by their hash


@dataclass
class Finding:
    """What a rule has found so far; `status` overrides the status that the count alone would give."""

    count: int = 0
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    status: Status | None = None


@dataclass(frozen=True)
class Rule:
    """A rule over whole tables; needs: the tables that must be sound for it to run."""

    name: str
    table: str
    meaning: str
    run: Callable[[], Finding]
    needs: tuple[str, ...]
    severity: Status = "fail"


def result(name: str, table: str, meaning: str, finding: Finding, severity: Status = "fail") -> RuleResult:
    """Return a finding as a result for the report; its status is `severity` where anything was found, else ok."""
    status = finding.status or (severity if finding.count else "ok")
    return RuleResult(name, table, status, meaning, int(finding.count), finding.note, tuple(finding.rows))
