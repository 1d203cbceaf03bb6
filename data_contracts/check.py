"""Check tables against every rule: `check(Tables(folder))` returns a Report.

First the footer of every shard (is it readable, does it match the schema), then great-expectations' suite on every row
of every sound shard, then the rules that need one or two whole tables.
"""

import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from data_contracts.errors import UsageError
from data_contracts.findings import Finding, Rule, result
from data_contracts.row_rules import Kept, row_results, shard_results
from data_contracts.suites import quiet_context, references
from data_contracts.tables import Tables, Unreadable
from data_contracts.verdict import Report, RuleResult, TableSummary, escape_text
from data_contracts.whole_rules import whole_rules


def check(tables: Tables, *, only: Sequence[str] | None = None, previous: Path | None = None,
          kept: Kept | None = None) -> Report:
    """Check every table, or `only` some; a broken rule is reported, not raised.

    previous: an earlier report's folder, or the `frequencies.parquet` in it, to measure drift from. kept: a list that
    collects great-expectations' own results. Raises UsageError for a table of no known kind; `Report.raise_for_failure`
    raises where a rule fails.
    """
    names, rules = _select(tables, only)
    with _memory_released():
        for table in names:
            row_rule_results = _row_rules(tables, table, names, kept) if tables.exists(table) else []
            rules += shard_results(tables, table) + row_rule_results
        rules += [_apply(tables, rule, names) for table in names if tables.exists(table)
                  for rule in whole_rules(tables, table, previous)]
    order = {name: place for place, name in enumerate(["known_table", "present", "readable", "schema", "not_empty"])}
    rules.sort(key=lambda rule: order.get(rule.rule, len(order)))
    return Report(tuple(TableSummary(name, tables.rows(name), tables.count(name)) for name in names), tuple(rules))


@contextmanager
def _memory_released() -> Iterator[None]:
    """Exempt existing objects from garbage collection, which will run often; free memory to the system at the end.

    Arrow and the C library would keep it, a gigabyte after ten million rows, and the process may live on for hours.
    """
    quiet_context()    # its imports are exempt, too
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


def _row_rules(tables: Tables, table: str, names: Sequence[str], kept: Kept | None) -> list[RuleResult]:
    """Run the rules on rows; where the suite itself cannot run, return that as the failing rule."""
    try:
        return row_results(tables, table, names, kept)
    except Exception as error:
        broken = Finding(1, [{"shard": table, "error": escape_text(error, 300)}], type(error).__name__, "fail")
        return [result("suite", table, "great-expectations answers every expectation on every row", broken)]


def _apply(tables: Tables, rule: Rule, names: Sequence[str]) -> RuleResult:
    """Run one rule; an exception in it makes it fail."""
    reason = tables.unmet(rule.needs)
    if reason:
        finding = Finding(note=reason, status=tables.unmet_status(rule.needs, names))
    else:
        finding = _run(rule.run, rule.table)
    return result(rule.name, rule.table, rule.meaning, finding, rule.severity)


def _run(run: Callable[[], Finding], table: str) -> Finding:
    try:
        return run()
    except Exception as error:  # any data may come here, and none may end a validation
        shard = error.shard.name if isinstance(error, Unreadable) else table
        return Finding(1, [{"shard": shard, "error": escape_text(error, 300)}], type(error).__name__, "fail")
