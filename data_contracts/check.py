"""Check tables: `check(Tables(folder))` gives a Report.

First the footer of every shard (can it be read, has it the schema), then great-expectations' suite on
every row of every sound shard, then the rules that need a whole table or two.
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
from data_contracts.verdict import Report, RuleResult, TableSummary, inert
from data_contracts.whole_rules import whole_rules


def check(tables: Tables, *, only: Sequence[str] | None = None, previous: Path | None = None,
          kept: Kept | None = None) -> Report:
    """Check every table, or `only` some; a broken rule is no exception.

    previous: an earlier report's folder, or the `frequencies.parquet` in it, to measure drift from. kept: takes what
    great-expectations said, shard by shard. Raises UsageError for a table of no known kind; `Report.raise_for_failure`
    raises what the data breaks.
    """
    names, rules = _chosen(tables, only)
    with _given_back():
        for table in names:
            found = _guarded_rows(tables, table, names, kept) if tables.exists(table) else []
            rules += shard_results(tables, table) + found
        rules += [_apply(tables, rule, names) for table in names if tables.exists(table)
                  for rule in whole_rules(tables, table, previous)]
    order = {name: i for i, name in enumerate(["known_table", "present", "readable", "schema", "not_empty"])}
    rules.sort(key=lambda rule: order.get(rule.rule, len(order)))
    return Report(tuple(TableSummary(name, tables.rows(name), tables.count(name)) for name in names), tuple(rules))


@contextmanager
def _given_back() -> Iterator[None]:
    """Have the collector look at what is made from now on alone, as it will look often; let go of memory at the end.

    Arrow and the C library keep for themselves what they are given back, a gigabyte after ten million rows, and the
    process that asked may live on for hours.
    """
    quiet_context()    # imports what it does not need to look at either
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        pa.default_memory_pool().release_unused()
        with suppress(OSError, AttributeError):    # not of every C library
            ctypes.CDLL(None).malloc_trim(0)


def _chosen(tables: Tables, only: Sequence[str] | None) -> tuple[list[str], list[RuleResult]]:
    """Return the tables to check and a warning for each folder that is none."""
    names, rules = [], []
    for name in dict.fromkeys(tables.names() if only is None else only):
        try:
            references(name)
        except ValueError as error:
            if only is not None:
                raise UsageError(inert(error, 300)) from error
            rules.append(result("known_table", inert(name), "the folder is named after a kind of table",
                                Finding(1, note=inert(error, 300)), "warn"))
        else:
            names.append(name)
    if not names:
        rules.append(result("present", "all tables", "there is at least one table", Finding(1)))
    return names, rules


def _guarded_rows(tables: Tables, table: str, names: Sequence[str], kept: Kept | None) -> list[RuleResult]:
    """Run the rules on rows; where the suite itself cannot run, that is the failing rule."""
    try:
        return row_results(tables, table, names, kept)
    except Exception as error:
        broken = Finding(1, [{"shard": table, "error": inert(error, 300)}], type(error).__name__, "fail")
        return [result("suite", table, "great-expectations answers every expectation on every row", broken)]


def _apply(tables: Tables, rule: Rule, names: Sequence[str]) -> RuleResult:
    """Run one rule; an exception in it is a failing rule."""
    reason = tables.unmet(rule.needs)
    if reason:
        finding = Finding(note=reason, status=tables.unmet_status(rule.needs, names))
    else:
        finding = _guarded(rule.run, rule.table)
    return result(rule.name, rule.table, rule.meaning, finding, rule.severity)


def _guarded(run: Callable[[], Finding], table: str) -> Finding:
    try:
        return run()
    except Exception as error:  # data decides what can go wrong here, and no data may end a validation
        place = error.shard.name if isinstance(error, Unreadable) else table
        return Finding(1, [{"shard": place, "error": inert(error, 300)}], f"{type(error).__name__}", "fail")
