"""Check tables against every rule: `check(Tables(folder))` returns a Report.

First the Parquet footer of every shard (is it readable, does it match the schema), then the great-expectations suite on
every row of the readable shards, then the rules that need one or two whole tables.
"""

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import call
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.errors import UsageError
from data_contracts.findings import Finding, Rule, result
from data_contracts.row_rules import (
    GxResults,
    SuiteFindings,
    check_shards,
    parts_of,
    referenced_rows,
    row_results,
    shard_results,
)
from data_contracts.suites import quiet_context, references
from data_contracts.table_rules import table_rules
from data_contracts.tables import Shard, Tables, Unreadable
from data_contracts.verdict import Report, RuleResult, TableSummary, escape_text

# Calls a function with each of the tuples, elsewhere, and yields the results in any order.
Spread = Callable[[Callable[..., Any], list[tuple[Any, ...]]], Iterable[Any]]


def check(tables: Tables, *, only: Sequence[str] | None = None, previous: Path | None = None,
          gx_results: GxResults | None = None, spread: Spread | None = None) -> Report:
    """Check every table, or those named in `only`; a broken rule is reported, not raised.

    previous: an earlier report's folder, or the `frequencies.parquet` in it, to measure drift from. gx_results: a list
    to which great-expectations' own results are appended. spread: who else checks parts of tables; the report is the
    same. Raises UsageError for a table of an unknown kind; `Report.raise_for_failure` raises ContractError where a rule
    fails.
    """
    names, rules = _select(tables, only)
    existing = [table for table in names if tables.exists(table)]
    with _memory_released():
        suite_findings, ruled = ({}, {}) if spread is None else _elsewhere(
            tables, existing, previous, spread, detailed=gx_results is not None)
        for table in names:
            row_rule_results = _run_suite(tables, table, names, gx_results, suite_findings.get(table)) \
                if table in existing else []
            rules += shard_results(tables, table) + row_rule_results
        for table in existing:
            rules += ruled[table] if table in ruled else _run_rules(tables, table, names, previous)
    order = {name: number for number, name in enumerate(["known_table", "present", "readable", "schema", "not_empty"])}
    rules.sort(key=lambda rule: order.get(rule.rule, len(order)))
    return Report(tuple(TableSummary(name, tables.rows(name), tables.count(name)) for name in names), tuple(rules))


@contextmanager
def _memory_released() -> Iterator[None]:
    """Return freed memory to the system at the end, and keep existing objects out of the frequent garbage collections.

    Otherwise Arrow and the C library keep a gigabyte after ten million rows, and the process may run for hours.
    """
    quiet_context()    # import great-expectations before the freeze
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        pa.default_memory_pool().release_unused()
        with suppress(OSError, AttributeError):    # not every C library has it
            ctypes.CDLL(None).malloc_trim(0)


def _select(tables: Tables, only: Sequence[str] | None) -> tuple[list[str], list[RuleResult]]:
    """Return the tables to check, and a warning for each folder that is not a table."""
    names, rules = [], []
    for name in dict.fromkeys(tables.names() if only is None else only):
        try:
            references(name)
        except ValueError as error:
            if only is not None:
                raise UsageError(escape_text(error, 300)) from error
            rules.append(result("known_table", escape_text(name), "the folder is named after a kind of table",
                                Finding(1, note=escape_text(error, 300)), "warn"))
        else:
            names.append(name)
    if not names:
        rules.append(result("present", "all tables", "there is at least one table", Finding(1)))
    return names, rules


def _elsewhere(tables: Tables, names: Sequence[str], previous: Path | None, spread: Spread, *,
               detailed: bool) -> tuple[dict[str, list[SuiteFindings]], dict[str, list[RuleResult]]]:
    """Return what `spread` finds: by table, what the suite found in each part, and the results of the other rules.

    Nothing is returned where a part could not be checked, or has a damaged shard, as other rules then cannot run.
    """
    parts = {table: parts_of(tables, table) for table in names}
    jobs: list[tuple[int, tuple[Any, ...]]] = [
        (sum(shard.rows for shard in shards), (_check_part, (table, number), Tables(tables.root, tables.limits), shards,
                                               referenced_rows(tables, table), detailed))
        for table in names for number, shards in enumerate(parts[table])]
    jobs += [(tables.rows(table), (_run_rules_of, (table, None), Tables(tables.root, tables.limits), names, previous))
             for table in names]
    jobs.sort(key=lambda job: -job[0])    # the largest first, so that the last one, for which others wait, is small
    suite_findings: dict[str, list[SuiteFindings]] = {table: [SuiteFindings({})] * len(parts[table]) for table in names}
    ruled: dict[str, list[RuleResult]] = {}
    for (table, number), found in spread(call, [job for _, job in jobs]):
        if number is None:
            ruled[table] = found
        else:
            suite_findings[table][number] = found
    if any(part is None or part.damaged for table in names for part in suite_findings[table]):
        return {}, {}
    return suite_findings, ruled


def _check_part(part: tuple[str, int], tables: Tables, shards: Sequence[Shard], referenced: Mapping[str, int],
                detailed: bool) -> tuple[tuple[str, int], SuiteFindings | None]:
    """Return a part of a table, and what the suite says of it; None where the suite has an error."""
    table, _ = part
    tables.shards(table)
    before = len(tables.damage[table]["readable"])
    with _memory_released():
        try:
            found = check_shards(tables, table, shards, referenced, detailed=detailed)
        except Exception:
            return part, None
    return part, replace(found, damaged=len(tables.damage[table]["readable"]) > before)


def _run_rules_of(whole: tuple[str, None], tables: Tables, names: Sequence[str],
                  previous: Path | None) -> tuple[tuple[str, None], list[RuleResult]]:
    return whole, _run_rules(tables, whole[0], names, previous)


def _run_suite(tables: Tables, table: str, names: Sequence[str], gx_results: GxResults | None,
               found: Sequence[SuiteFindings] | None) -> list[RuleResult]:
    """Run the suite on the rows of a table, or take what it `found`; an exception makes the rule `suite` fail."""
    try:
        return row_results(tables, table, names, gx_results, found)
    except Exception as error:
        return [result("suite", table, "great-expectations answers every expectation on every row",
                       _failure(error, table))]


def _run_rules(tables: Tables, table: str, names: Sequence[str], previous: Path | None) -> list[RuleResult]:
    return [_run_rule(tables, rule, names) for rule in table_rules(tables, table, previous)]


def _run_rule(tables: Tables, rule: Rule, names: Sequence[str]) -> RuleResult:
    """Run one rule; an exception in it makes it fail, as no data may abort a validation."""
    try:
        reason = tables.not_checkable(rule.needs)
        finding = Finding(note=reason, status=tables.not_checkable_status(rule.needs, names)) if reason else rule.run()
    except Exception as error:
        finding = _failure(error, error.shard.name if isinstance(error, Unreadable) else rule.table)
    return result(rule.name, rule.table, rule.meaning, finding, rule.severity)


def _failure(error: Exception, shard: str) -> Finding:
    return Finding(1, [{"shard": shard, "error": escape_text(error, 300)}], type(error).__name__, "fail")
