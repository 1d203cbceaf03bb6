"""great-expectations suites, one for each kind of table, and how to run them on rows.

A suite judges rows one by one (types, nulls, ranges, texts). What needs a whole table, such as
uniqueness over shards, is in `check.py`. Every expectation carries the name of its rule in `meta`,
so that several expectations (one a column) are reported as one rule.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.schemas import SCHEMAS, kind_of

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.data_context import EphemeralDataContext

# Tab, line feed and carriage return are white space that a cleaned text may keep; every other
# control character (C0, DEL, C1: also NUL and the escape that starts an ANSI sequence) is not.
CONTROL_CHARACTERS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"

FLOAT32_MAX = 3.4028234663852886e38  # infinity is above it, and NaN is in no range

MEANING = {
    "columns": "exactly the columns of the schema",
    "types": "every column has the type of the schema",
    "utf8": "every text is valid UTF-8",
    "not_null": "no value is missing",
    "id_range": "ids lie between 0 and the number of rows less one",
    "reference": "every id points at a row that exists",
    "text_present": "the title or the content is not blank",
    "control_characters": "no NUL or other control character in a text",
    "uid_present": "the uid is not blank",
    "relevance_range": "relevance is finite and above 0",
    "weight_range": "weight is finite and above 0",
    "cluster_range": "cluster numbers are 0 or more",
    "origin": "the file is named and the line is 1 or more",
}


@dataclass(frozen=True)
class Outcome:
    """The result of one expectation on some rows; rows: offsets of the first failing ones."""

    rule: str
    column: str
    ok: bool
    count: int
    rows: tuple[int, ...] = ()
    error: str = ""


def references(table: str) -> dict[str, tuple[str, ...]]:
    """Return, for each id column of a table, the tables that it points into.

    Several tables mean that ids run up to the sum of their rows: a training set may be augmented by
    label texts as further points. Raises ValueError for a name that misses a part.
    """
    kind, *parts = table.split(".")
    kind_of(table)
    needed = {"queries": 1, "positives": 1, "filters": 1, "anchors": 1, "edges": 2, "walks": 2, "pruned": 2,
              "tokens": 1}
    if len(parts) < needed.get(kind, 0) or not all(parts):
        raise ValueError(f"table name {table!r} needs {needed.get(kind, 0)} part(s) after {kind!r}")
    if kind in ("queries", "labels", "anchors"):
        return {"id": (table,)}
    side = parts[-1] if parts else "train"
    points = "labels" if side == "label" else f"queries.{side}"
    augmented = (points, "labels") if side == "train" else (points,)
    if kind in ("edges", "walks", "pruned"):
        nodes = augmented if kind == "pruned" else (points,)
        return {"node": nodes, "anchor": (f"anchors.{'.'.join(parts[:-1])}",)}
    if kind in ("positives", "filters"):
        return {"query": (points,), "label": ("labels",)}
    return {"id": augmented} if kind == "tokens" else {"query": augmented}


def suite_for(table: str, rows: Mapping[str, int]) -> "ExpectationSuite":
    """Build the suite of a table in code.

    rows: for each id column, how many rows its ids may point at; a column that is not in it is checked
    from below only. Raises ValueError for a table of no known kind.
    """
    import great_expectations.expectations as gxe
    from great_expectations import ExpectationSuite

    schema = SCHEMAS[kind_of(table)]
    targets = references(table)
    checks: list[Any] = [gxe.ExpectTableColumnsToMatchSet(
        column_set=list(schema.names), exact_match=True, meta={"rule": "columns"})]
    for field in schema:
        checks.append(gxe.ExpectColumnValuesToBeOfType(
            column=field.name, type_=_python_type(field.type), meta={"rule": "types"}))
        checks.append(gxe.ExpectColumnValuesToNotBeNull(column=field.name, meta={"rule": "not_null"}))
        if field.name in targets:
            checks.append(gxe.ExpectColumnValuesToBeBetween(
                column=field.name, min_value=0, max_value=rows.get(field.name), strict_max=field.name in rows,
                meta={"rule": "id_range" if targets[field.name] == (table,) else "reference"}))
        checks.extend(_value_checks(field))
    if {"title", "content"} <= set(schema.names) and schema.field("title").type == pa.string():
        checks.append(_text_present())
    return ExpectationSuite(name=table, expectations=checks)


def _python_type(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_boolean(kind):
        return "bool"
    return "str" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else "int"


def _value_checks(field: pa.Field) -> list[Any]:
    """Return the range and text rules that a column's name and type imply."""
    import great_expectations.expectations as gxe

    checks: list[Any] = []
    if field.name in ("relevance", "weight"):
        checks.append(gxe.ExpectColumnValuesToBeBetween(
            column=field.name, min_value=0, strict_min=True, max_value=FLOAT32_MAX,
            meta={"rule": f"{field.name}_range"}))
    if field.name in ("cluster", "line"):
        checks.append(gxe.ExpectColumnValuesToBeBetween(
            column=field.name, min_value=0 if field.name == "cluster" else 1,
            meta={"rule": "cluster_range" if field.name == "cluster" else "origin"}))
    if field.name in ("uid", "file"):
        checks.append(gxe.ExpectColumnValuesToMatchRegex(
            column=field.name, regex=r"\S", meta={"rule": "uid_present" if field.name == "uid" else "origin"}))
    if field.type == pa.string():
        checks.append(gxe.ExpectColumnValuesToNotMatchRegex(
            column=field.name, regex=CONTROL_CHARACTERS, meta={"rule": "control_characters"}))
    return checks


def _text_present() -> Any:
    """Return the rule "title or content is not blank": where the content is blank, the title must not be."""
    import great_expectations.expectations as gxe
    from great_expectations.expectations.row_conditions import PassThroughCondition

    return gxe.ExpectColumnValuesToMatchRegex(
        column="title", regex=r"\S", meta={"rule": "text_present"},
        row_condition=PassThroughCondition(pass_through_filter='content.str.strip() == ""'))


def run_suite(suite: "ExpectationSuite", rows: pa.Table, *, shown: int,
              detailed: bool = False) -> "ExpectationSuiteValidationResult":
    """Run a suite on some rows of a table, without warnings, and return great-expectations' own result.

    The failing rows are requested in a second run, only where something fails: the verdicts alone cost
    half as much, which matters where shards are many and small. detailed: request them at once.

    Every call has a context of its own: great-expectations keeps each batch for as long as the data
    source lives, so one context for a table would hold the whole table in memory.
    """
    context = quiet_context()
    definition = (context.data_sources.add_pandas("shards").add_dataframe_asset("rows")
                  .add_batch_definition_whole_dataframe("all"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = definition.get_batch({"dataframe": _frame(rows)})
        if not detailed and (verdicts := batch.validate(suite, result_format="BOOLEAN_ONLY")).success:
            return verdicts
        return batch.validate(suite, result_format={"result_format": "SUMMARY", "partial_unexpected_count": shown})


def quiet_context() -> "EphemeralDataContext":
    """Return an in-memory context without progress bars or telemetry."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    return gx.get_context(mode="ephemeral", project_config=DataContextConfig(
        # by default every context leaves a temporary folder behind, for pages that are never written
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False), analytics_enabled=False))


def outcomes(suite: "ExpectationSuite", result: "ExpectationSuiteValidationResult") -> list[Outcome]:
    """Return a great-expectations result as outcomes; raise RuntimeError where an expectation has no result."""
    if len(result.results) != len(suite.expectations):
        raise RuntimeError(f"{len(result.results)} of {len(suite.expectations)} expectations were answered")
    out = []
    for answer in result.results:
        config, detail = answer.expectation_config, answer.result or {}
        assert config is not None
        error = "" if answer.success else _exception_of(answer.exception_info)
        out.append(Outcome(
            rule=config.meta["rule"], column=config.kwargs.get("column", ""), ok=bool(answer.success),
            count=0 if answer.success else max(int(detail.get("unexpected_count") or 0), 1),
            rows=tuple(int(row) for row in detail.get("partial_unexpected_index_list") or ()), error=error))
    return out


def _exception_of(info: Any) -> str:
    """Return the message of an exception that an expectation hid in its result, "" for none.

    Only this message shows that it raised: its `success` is merely False. The message is at the top or,
    for an exception in a metric, below that metric's name.
    """
    if not info or "exception_message" in info:
        return str((info or {}).get("exception_message") or "")
    metrics = (entry for entry in info.values() if isinstance(entry, dict))
    return "; ".join(sorted({str(entry.get("exception_message")) for entry in metrics}))


def plain(rows: pa.Table) -> pa.Table:
    """Return rows with dictionary-encoded texts decoded: a shard may have either kind."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(pa.string()))
    return rows


def _frame(rows: pa.Table) -> Any:
    """Return rows as a data frame on Arrow's own memory, with lists replaced by their lengths.

    Arrow types keep an int64 column with a null an int64 column; pandas' own would make it float. Whole
    numeric columns are NumPy's int64 and float64 none the less: great-expectations compares those at once,
    and everything else value by value, five times slower.
    """
    import pandas as pd

    complete = {}
    for i, field in enumerate(rows.schema):
        if pa.types.is_list(field.type):
            rows = rows.set_column(i, field.name, pc.list_value_length(rows.column(i)))
        elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            column = rows.column(i)
            # NumPy's NaN would count as a missing value, and a missing value is in every range.
            if not column.null_count and not (pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py()):
                complete[field.name] = column.cast(pa.float64() if pa.types.is_floating(field.type) else pa.int64())
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    return frame.assign(**{name: column.to_numpy() for name, column in complete.items()})
