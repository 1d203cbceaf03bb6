"""Rules on rows (great-expectations' suites) and on shards (their Parquet footers)."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from data_contracts.findings import Finding, result
from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.suites import MEANING, Outcome, outcomes, plain, references, run_suite, suite_for
from data_contracts.tables import Piece, Tables, Unreadable, invalid_bytes, is_text, mend, shown_row
from data_contracts.verdict import RuleResult, escape_text

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

Kept = list[tuple[str, dict[str, Any]]]    # great-expectations' results as JSON, each with its first shard's name
_NEVER_EMPTY = ("queries", "labels", "positives", "tokens")


def row_results(tables: Tables, table: str, names: Sequence[str], kept: Kept | None) -> list[RuleResult]:
    """Run great-expectations' suite on every row of every shard and gather its results by rule.

    Each batch of pieces is an asset of its own, since a checkpoint over several assets reports only the last.
    kept: collects great-expectations' own results as JSON, None where its pages are not wanted.
    """
    targets = references(table)
    unmet = {column: tables.unmet(needs) for column, needs in targets.items()}
    suite = suite_for(table, {column: sum(map(tables.rows, needs)) for column, needs in targets.items()
                              if not unmet[column]})
    findings = {expectation.meta["rule"]: Finding() for expectation in suite.expectations if expectation.meta}
    if any(is_text(field.type) for field in SCHEMAS[kind_of(table)]):
        findings["utf8"] = Finding()
    for pieces in _batches(tables, table):
        answer = _judge(pieces, suite, findings, tables.limits.shown_rows, detailed=kept is not None)
        if kept is not None:
            kept.append((pieces[0].shard.name, answer))
        del pieces
        gc.collect()    # great-expectations' objects refer to each other in cycles, and hold the rows that they judged
    for column, reason in unmet.items():
        finding = findings["id_range" if targets[column] == (table,) else "reference"]
        if reason and not finding.count:
            status = tables.unmet_status(targets[column], names)
            finding.note = f"{finding.note}; {reason}" if finding.note else reason
            finding.status = "fail" if "fail" in (status, finding.status) else status
    return [result(name, table, MEANING[name], finding) for name, finding in findings.items()]


def _judge(pieces: Sequence[Piece], suite: "ExpectationSuite", findings: Mapping[str, Finding], most: int, *,
           detailed: bool) -> dict[str, Any]:
    """Run a suite on pieces together and add to the finding of each rule; return great-expectations' result as JSON.

    As JSON, since the result itself would keep the rows in memory. It is empty unless `detailed`.
    """
    rows = [plain(mend(piece.data) if "utf8" in findings and _not_utf8(piece, findings["utf8"], most) else piece.data)
            for piece in pieces]
    answer = run_suite(suite, pa.concat_tables(rows), detailed=detailed, shown=most)
    for outcome in outcomes(suite, answer):
        _gather(findings[outcome.rule], outcome, pieces, most)
    return answer.to_json_dict() if detailed else {}


def _batches(tables: Tables, table: str) -> Iterator[list[Piece]]:
    """Yield all pieces of a table, in batches as large as the limits allow: a suite takes half a second to start."""
    batch: list[Piece] = []
    rows = size = 0    # of the batch; size in bytes
    for shard in tables.shards(table):
        judged = 0
        try:
            for piece in tables.read(shard, 0, mended=False):
                if batch and (rows + len(piece.data) > tables.limits.judged_rows
                            or size + piece.data.nbytes > tables.limits.judged_bytes):
                    yield batch
                    batch, rows, size = [], 0, 0
                batch.append(piece)
                rows, size = rows + len(piece.data), size + piece.data.nbytes
                judged += len(piece.data)
        except Unreadable as error:
            tables.mark_unreadable(table, shard.name, error)
        else:
            if judged != shard.rows:
                raise RuntimeError(f"{shard.name}: {judged} rows were judged, the footer says {shard.rows}")
    if batch:
        yield batch


def _gather(finding: Finding, outcome: Outcome, pieces: Sequence[Piece], most: int) -> None:
    """Add the outcome of one expectation on pieces that were judged together to the finding of its rule."""
    if outcome.ok:
        return
    finding.count += outcome.count
    finding.note = finding.note or escape_text(outcome.error, 300)
    starts = np.cumsum([0, *(len(piece.data) for piece in pieces)])
    rows = []
    for row in outcome.rows:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        piece, offset = pieces[number], row - int(starts[number])
        rows.append({"column": outcome.column, **shown_row(piece, offset, piece.start + offset)})
    finding.rows += (rows or [{"shard": pieces[0].shard.name, "column": outcome.column}])[:most - len(finding.rows)]


def _not_utf8(piece: Piece, finding: Finding, most: int) -> bool:
    """Add the texts of a piece that are not UTF-8 to a finding; return whether there are any.

    Parquet readers do not check for them; a lone surrogate is one of them.
    """
    before, mended = finding.count, None
    for name in piece.data.column_names:
        if not is_text(piece.data.schema.field(name).type) or (raw := invalid_bytes(piece.data[name])) is None:
            continue
        mended = mended or replace(piece, data=mend(piece.data))
        bad = [row for row, value in enumerate(raw) if value and value != value.decode("utf-8", "replace").encode()]
        finding.count += len(bad)
        shown = bad[:most - len(finding.rows)]
        finding.rows += [{"column": name, **shown_row(mended, row, piece.start + row)} for row in shown]
    return finding.count > before


def shard_results(tables: Tables, table: str) -> list[RuleResult]:
    """Return the results of the rules on footers: present, readable, of the right schema, not empty."""
    exists = tables.exists(table)
    results = [result("present", table, "the table has at least one shard", Finding(count=not exists))]
    if not exists:
        return results
    rows, damage, most = tables.rows(table), tables.damage[table], tables.limits.shown_rows
    for name, meaning in (("readable", "every shard is a whole Parquet file"),
                          ("schema", "every shard has the columns and types of the schema")):
        results.append(result(name, table, meaning, Finding(len(damage[name]), damage[name][:most])))
    if kind_of(table) in _NEVER_EMPTY and not any(damage.values()):
        results.append(result("not_empty", table, "the table has at least one row", Finding(count=rows == 0)))
    return results
