"""Rules on rows (run by great-expectations) and on shards (their Parquet footers)."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from data_contracts.findings import Finding, result
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.suites import MEANING, Outcome, decode_dictionaries, outcomes, references, run_suite, suite_for
from data_contracts.tables import (
    Piece,
    Shard,
    Tables,
    Unreadable,
    invalid_bytes,
    is_text,
    replace_invalid_utf8,
    report_row,
)
from data_contracts.verdict import RuleResult, escape_text

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

GxResults = list[tuple[str, dict[str, Any]]]    # (name of the first shard, great-expectations' result as JSON)
_NEVER_EMPTY = ("queries", "labels", "positives", "tokens")
_FEWEST = 3    # training queries; labels have no propensities with fewer (`xcmodels.data.propensity`)


@dataclass
class SuiteFindings:
    """What the suite says of some shards of a table.

    findings: by rule. gx_results: great-expectations' own. damaged: whether a shard could not be read.
    """

    findings: dict[str, Finding]
    gx_results: GxResults = field(default_factory=list)
    damaged: bool = False


def parts_of(tables: Tables, table: str) -> list[list[Shard]]:
    """Return the shards of a table in parts that are checked apart: as many rows as a run of the suite has, at most."""
    parts: list[list[Shard]] = [[]]
    for shard in tables.shards(table):
        if parts[-1] and sum(each.rows for each in parts[-1]) + shard.rows > tables.limits.suite_rows:
            parts.append([])
        parts[-1].append(shard)
    return parts


def referenced_rows(tables: Tables, table: str) -> dict[str, int]:
    """Return, for each id column whose tables can be read, the number of rows that it refers to."""
    return {column: sum(map(tables.rows, needs)) for column, needs in references(table).items()
            if not tables.not_checkable(needs)}


def check_shards(tables: Tables, table: str, shards: Sequence[Shard], referenced: Mapping[str, int], *,
                 detailed: bool) -> SuiteFindings:
    """Run the great-expectations suite on every row of some shards; `referenced` as `referenced_rows` returns it.

    detailed: keep great-expectations' results. Each batch of pieces is an asset of its own, since a checkpoint over
    several assets reports only the last.
    """
    suite = suite_for(table, referenced)
    found = SuiteFindings({each.meta["rule"]: Finding() for each in suite.expectations if each.meta})
    if any(is_text(column.type) for column in SCHEMAS[kind_of(table)]):
        found.findings["utf8"] = Finding()
    for pieces in _batches(tables, table, shards):
        answer = _run_on_pieces(pieces, suite, found.findings, tables.limits.shown_rows, detailed=detailed)
        if detailed:
            found.gx_results.append((pieces[0].shard.name, answer))
        del pieces
        gc.collect()    # great-expectations' objects form reference cycles that keep the checked rows in memory
    return found


def row_results(tables: Tables, table: str, names: Sequence[str], gx_results: GxResults | None,
                parts: Iterable[SuiteFindings] | None = None) -> list[RuleResult]:
    """Return one result per rule from what the suite says of each part of a table, in order.

    names: the tables of the report. gx_results: a list to append great-expectations' results to, None for no Data Docs.
    parts: what the suite found elsewhere; by default it runs here.
    """
    if parts is None:
        referenced = referenced_rows(tables, table)
        parts = (check_shards(tables, table, shards, referenced, detailed=gx_results is not None)
                 for shards in parts_of(tables, table))
    targets = references(table)
    not_checkable = {column: tables.not_checkable(needs) for column, needs in targets.items()}
    findings, most = dict[str, Finding](), tables.limits.shown_rows
    for part in parts:
        for name, found in part.findings.items():
            finding = findings.setdefault(name, Finding())
            finding.count += found.count
            finding.note = finding.note or found.note
            finding.rows += found.rows[:most - len(finding.rows)]
        if gx_results is not None:
            gx_results += part.gx_results
    for column, reason in not_checkable.items():
        finding = findings["id_range" if targets[column] == (table,) else "reference"]
        if reason and not finding.count:
            status = tables.not_checkable_status(targets[column], names)
            finding.note = f"{finding.note}; {reason}" if finding.note else reason
            finding.status = "fail" if "fail" in (status, finding.status) else status
    return [result(name, table, MEANING[name], finding) for name, finding in findings.items()]


def _run_on_pieces(pieces: Sequence[Piece], suite: "ExpectationSuite", findings: Mapping[str, Finding], most: int, *,
                   detailed: bool) -> dict[str, Any]:
    """Run a suite on concatenated pieces and add failing rows to the finding of each rule.

    Returns great-expectations' result if `detailed`, else {}; as JSON, since the object keeps the rows in memory.
    """
    rows = []
    for piece in pieces:
        invalid = "utf8" in findings and _add_invalid_utf8(piece, findings["utf8"], most)
        rows.append(decode_dictionaries(replace_invalid_utf8(piece.data) if invalid else piece.data))
    answer = run_suite(suite, pa.concat_tables(rows), detailed=detailed, shown=most)
    for outcome in outcomes(suite, answer):
        _add_outcome(findings[outcome.rule], outcome, pieces, most)
    return answer.to_json_dict() if detailed else {}


def _batches(tables: Tables, table: str, shards: Sequence[Shard]) -> Iterator[list[Piece]]:
    """Yield the pieces of shards in large batches: each run of a suite takes half a second to start."""
    batch: list[Piece] = []
    rows = size = 0    # of the batch, in rows and in bytes
    for shard in shards:
        rows_read = 0
        try:
            for piece in tables.read(shard, 0, repaired=False):
                if batch and (rows + len(piece.data) > tables.limits.suite_rows
                            or size + piece.data.nbytes > tables.limits.suite_bytes):
                    yield batch
                    batch, rows, size = [], 0, 0
                batch.append(piece)
                rows, size = rows + len(piece.data), size + piece.data.nbytes
                rows_read += len(piece.data)
        except Unreadable as error:
            tables.mark_unreadable(table, shard.name, error)
        else:
            if rows_read != shard.rows:
                raise RuntimeError(f"{shard.name}: {rows_read} rows were checked, the footer says {shard.rows}")
    if batch:
        yield batch


def _add_outcome(finding: Finding, outcome: Outcome, pieces: Sequence[Piece], most: int) -> None:
    """Add the outcome of one expectation on concatenated pieces to the finding of its rule."""
    if outcome.ok:
        return
    finding.count += outcome.count
    finding.note = finding.note or escape_text(outcome.error, 300)
    starts = np.cumsum([0, *(len(piece.data) for piece in pieces)])
    rows = []
    for row in outcome.rows:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        piece, offset = pieces[number], row - int(starts[number])
        rows.append({"column": outcome.column, **report_row(piece, offset, piece.start + offset)})
    finding.rows += (rows or [{"shard": pieces[0].shard.name, "column": outcome.column}])[:most - len(finding.rows)]


def _add_invalid_utf8(piece: Piece, finding: Finding, most: int) -> bool:
    """Add the texts of a piece that are not valid UTF-8 to a finding; return whether there are any.

    Parquet readers do not check this. A lone surrogate is invalid, too.
    """
    before, repaired = finding.count, None
    for name in piece.data.column_names:
        if not is_text(piece.data.schema.field(name).type) or (raw := invalid_bytes(piece.data[name])) is None:
            continue
        repaired = repaired or replace(piece, data=replace_invalid_utf8(piece.data))
        bad = [row for row, value in enumerate(raw) if value and value != value.decode("utf-8", "replace").encode()]
        finding.count += len(bad)
        shown = bad[:most - len(finding.rows)]
        finding.rows += [{"column": name, **report_row(repaired, row, piece.start + row)} for row in shown]
    return finding.count > before


def shard_results(tables: Tables, table: str) -> list[RuleResult]:
    """Return the results of the rules on Parquet footers: present, readable, schema, not_empty, enough_queries."""
    exists = tables.exists(table)
    results = [result("present", table, "the table has at least one shard", Finding(count=not exists))]
    if not exists:
        return results
    rows, damage, most = tables.rows(table), tables.damage[table], tables.limits.shown_rows
    for name, meaning in (("readable", "every shard is a complete Parquet file"),
                          ("schema", "every shard has the columns and types of the schema")):
        results.append(result(name, table, meaning, Finding(len(damage[name]), damage[name][:most])))
    if kind_of(table) in _NEVER_EMPTY and not any(damage.values()):
        results.append(result("not_empty", table, "the table has at least one row", Finding(count=rows == 0)))
        if table == "queries.train":
            few = Finding(rows, note=f"it has {rows}: add rows for training") if rows < _FEWEST else Finding()
            results.append(result("enough_queries", table, f"there are at least {_FEWEST} training queries", few))
    return results
