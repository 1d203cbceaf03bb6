"""Rules on single rows and single shards: great-expectations' suite on every row, and what the footers say."""

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
from data_contracts.verdict import RuleResult, inert

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

Kept = list[tuple[str, dict[str, Any]]]    # results as JSON, each with the name of the first shard that it is of
_NEVER_EMPTY = ("queries", "labels", "positives", "tokens")


def row_results(tables: Tables, table: str, names: Sequence[str], kept: Kept | None) -> list[RuleResult]:
    """Run great-expectations' suite on every row of every shard and gather the answers by rule.

    What is judged at once is an asset of its own, since a checkpoint over several reports the last one only.
    `kept` collects great-expectations' own results, as JSON, where its pages are wanted.
    """
    pointed = references(table)
    unmet = {column: tables.unmet(needs) for column, needs in pointed.items()}
    suite = suite_for(table, {column: sum(map(tables.rows, needs)) for column, needs in pointed.items()
                              if not unmet[column]})
    found = {expectation.meta["rule"]: Finding() for expectation in suite.expectations if expectation.meta}
    if any(is_text(f.type) for f in SCHEMAS[kind_of(table)]):
        found["utf8"] = Finding()
    for run in _runs(tables, table):
        told = _judged(run, suite, found, tables.limits.shown_rows, detailed=kept is not None)
        if kept is not None:
            kept.append((run[0].shard.name, told))
        del run
        gc.collect()    # great-expectations' objects go round in circles, and with them the rows that they judged
    for column, reason in unmet.items():
        finding = found["id_range" if pointed[column] == (table,) else "reference"]
        if reason and not finding.count:
            status = tables.unmet_status(pointed[column], names)
            finding.note = f"{finding.note}; {reason}" if finding.note else reason
            finding.status = "fail" if "fail" in (status, finding.status) else status
    return [result(name, table, MEANING[name], finding) for name, finding in found.items()]


def _judged(run: Sequence[Piece], suite: "ExpectationSuite", found: Mapping[str, Finding], most: int, *,
            detailed: bool) -> dict[str, Any]:
    """Judge pieces together and add what is found to each rule; return great-expectations' own result as JSON.

    The result itself holds the rows.
    """
    whole = [plain(mend(piece.data) if "utf8" in found and _not_utf8(piece, found["utf8"], most) else piece.data)
             for piece in run]
    answer = run_suite(suite, pa.concat_tables(whole), detailed=detailed, shown=most)
    for outcome in outcomes(suite, answer):
        _gather(found[outcome.rule], outcome, run, most)
    return answer.to_json_dict() if detailed else {}


def _runs(tables: Tables, table: str) -> Iterator[list[Piece]]:
    """Yield all pieces of a table, as many at once as are within the limits: a suite takes half a second to begin."""
    run: list[Piece] = []
    rows = size = 0    # of the run
    for shard in tables.shards(table):
        judged = 0
        try:
            for piece in tables.read(shard, 0, mended=False):
                if run and (rows + len(piece.data) > tables.limits.judged_rows
                            or size + piece.data.nbytes > tables.limits.judged_bytes):
                    yield run
                    run, rows, size = [], 0, 0
                run.append(piece)
                rows, size = rows + len(piece.data), size + piece.data.nbytes
                judged += len(piece.data)
        except Unreadable as error:
            tables.mark_unreadable(table, shard.name, error)
        else:
            if judged != shard.rows:
                raise RuntimeError(f"{shard.name}: {judged} rows were judged, the footer says {shard.rows}")
    if run:
        yield run


def _gather(finding: Finding, outcome: Outcome, run: Sequence[Piece], most: int) -> None:
    """Add what one expectation said of pieces that were judged together to its rule."""
    if outcome.ok:
        return
    finding.count += outcome.count
    finding.note = finding.note or inert(outcome.error, 300)
    begin = np.cumsum([0, *(len(piece.data) for piece in run)])
    rows = []
    for row in outcome.rows:
        of = int(np.searchsorted(begin, row, side="right")) - 1
        offset = row - int(begin[of])
        rows.append({"column": outcome.column, **shown_row(run[of], offset, run[of].start + offset)})
    finding.rows += (rows or [{"shard": run[0].shard.name, "column": outcome.column}])[:most - len(finding.rows)]


def _not_utf8(piece: Piece, finding: Finding, most: int) -> bool:
    """Add the texts of a piece that are not UTF-8 to a finding and say whether there are any.

    Parquet readers take such texts as they come; a lone surrogate is one of them.
    """
    before, mended = finding.count, None
    for name in piece.data.column_names:
        if not is_text(piece.data.schema.field(name).type) or (raw := invalid_bytes(piece.data[name])) is None:
            continue
        mended = mended or replace(piece, data=mend(piece.data))
        bad = [i for i, value in enumerate(raw) if value and value != value.decode("utf-8", "replace").encode()]
        finding.count += len(bad)
        room = bad[:most - len(finding.rows)]
        finding.rows += [{"column": name, **shown_row(mended, i, piece.start + i)} for i in room]
    return finding.count > before


def shard_results(tables: Tables, table: str) -> list[RuleResult]:
    """Tell what the footers said of a table: there, readable, of the right schema, not empty."""
    there = tables.exists(table)
    found = [result("present", table, "the table has at least one shard", Finding(count=not there))]
    if not there:
        return found
    rows, damage, most = tables.rows(table), tables.damage[table], tables.limits.shown_rows
    for name, meaning in (("readable", "every shard is a whole Parquet file"),
                          ("schema", "every shard has the columns and types of the schema")):
        found.append(result(name, table, meaning, Finding(len(damage[name]), damage[name][:most])))
    if kind_of(table) in _NEVER_EMPTY and not any(damage.values()):
        found.append(result("not_empty", table, "the table has at least one row", Finding(count=rows == 0)))
    return found
