"""great-expectations suites, one for each kind of table, and how to run them on rows.

A suite checks rows one by one: nulls, ranges, texts. Rules over whole tables, such as uniqueness, are in
`table_rules.py`; a shard's columns and their types are in its footer, which is read before its rows. `meta` of an
expectation has the name of its rule: the expectations of several columns are one rule.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.schemas import FLOAT32_MAX, SCHEMAS, kind_of

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.data_context import EphemeralDataContext

# C0, DEL and C1 (with NUL and the escape of ANSI sequences), except the white space that a cleaned text may have
CONTROL_CHARACTERS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"

_ABOVE_0 = {"min_value": 0, "strict_min": True, "max_value": FLOAT32_MAX}
# By the name of a column: the rule on its range, with the limits; and the rule by which it may not be blank.
_RANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "relevance": ("relevance_range", _ABOVE_0), "weight": ("weight_range", _ABOVE_0),
    "cluster": ("cluster_range", {"min_value": 0}), "line": ("origin", {"min_value": 1})}
_NOT_BLANK = {"uid": "uid_present", "concept": "uid_present", "broader": "uid_present", "group": "group_present",
              "file": "origin"}

MEANING = {
    "utf8": "every text is valid UTF-8",
    "not_null": "no value is missing",
    "id_range": "ids are between 0 and the number of rows less one",
    "reference": "every id refers to an existing row",
    "text_present": "the title or the content is not blank",
    "control_characters": "no NUL or other control character in a text",
    "uid_present": "the uid is not blank",
    "group_present": "the group's name is not blank",
    "relevance_range": "relevance is finite and above 0",
    "weight_range": "weight is finite and above 0",
    "cluster_range": "cluster numbers are 0 or more",
    "origin": "the file is named and the line is 1 or more",
}


@dataclass(frozen=True)
class Outcome:
    """The result of one expectation; count, rows: the number and the first offsets of failing rows."""

    rule: str
    column: str
    ok: bool
    count: int
    rows: tuple[int, ...] = ()
    error: str = ""


def references(table: str) -> dict[str, tuple[str, ...]]:
    """Return, for each id column of a table, the tables that it refers to.

    With several tables ids go up to the sum of their rows: label texts may follow the training queries as further
    training points. Raises ValueError for an incomplete name.
    """
    kind, *parts = table.split(".")
    kind_of(table)
    needed = {"queries": 1, "positives": 1, "filters": 1, "rejected": 1, "groups": 1, "anchors": 1, "edges": 2,
              "walks": 2, "pruned": 2, "tokens": 1}
    if len(parts) < needed.get(kind, 0) or not all(parts):
        raise ValueError(f"table name {table!r} needs {needed.get(kind, 0)} part(s) after {kind!r}")
    if kind in ("queries", "labels", "anchors"):
        return {"id": (table,)}
    if kind == "broader":
        return {}
    side = parts[-1] if parts else "train"
    points = "labels" if side == "label" else f"queries.{side}"
    augmented = (points, "labels") if side == "train" else (points,)
    if kind in ("edges", "walks", "pruned"):
        nodes = augmented if kind == "pruned" else (points,)
        return {"node": nodes, "anchor": (f"anchors.{'.'.join(parts[:-1])}",)}
    if kind == "groups":
        return {"query": (points,)}
    if kind in ("positives", "filters", "rejected"):
        return {"query": (points,), "label": ("labels",)}
    return {"id": augmented} if kind == "tokens" else {"query": augmented}


def suite_for(table: str, rows: Mapping[str, int]) -> "ExpectationSuite":
    """Build the suite of a table.

    rows: for each id column, the number of rows that it refers to; of other id columns only the lower bound is checked.
    Raises ValueError for a table of an unknown kind.
    """
    import great_expectations.expectations as gxe
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.row_conditions import PassThroughCondition

    schema, targets, checks = SCHEMAS[kind_of(table)], references(table), list[Any]()

    def check(expectation: type, rule: str, **arguments: Any) -> None:
        checks.append(expectation(meta={"rule": rule}, **arguments))

    for name, kind in zip(schema.names, schema.types, strict=True):
        check(gxe.ExpectColumnValuesToNotBeNull, "not_null", column=name)
        if name in targets:
            check(gxe.ExpectColumnValuesToBeBetween, "id_range" if targets[name] == (table,) else "reference",
                  column=name, min_value=0, max_value=rows.get(name), strict_max=name in rows)
        if name in _RANGES:
            rule, limits = _RANGES[name]
            check(gxe.ExpectColumnValuesToBeBetween, rule, column=name, **limits)
        if name in _NOT_BLANK:
            check(gxe.ExpectColumnValuesToMatchRegex, _NOT_BLANK[name], column=name, regex=r"\S")
        if kind == pa.string():
            check(gxe.ExpectColumnValuesToNotMatchRegex, "control_characters", column=name, regex=CONTROL_CHARACTERS)
    if {"title", "content"} <= set(schema.names) and schema.field("title").type == pa.string():
        check(gxe.ExpectColumnValuesToMatchRegex, "text_present", column="title", regex=r"\S",
              row_condition=PassThroughCondition(pass_through_filter='content.str.strip() == ""'))
    return ExpectationSuite(name=table, expectations=checks)


def run_suite(suite: "ExpectationSuite", rows: pa.Table, *, shown: int,
              detailed: bool = False) -> "ExpectationSuiteValidationResult":
    """Run a suite on rows and return great-expectations' own result, with the first `shown` failing rows.

    Failing rows are requested in a second run, and only if something fails: pass or fail alone costs half as much.
    detailed: request them in the first run. Every call has a context of its own, since a context keeps each batch, and
    so would keep the whole table, in memory.
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
    """Return a great-expectations context in memory, without progress bars and telemetry."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    return gx.get_context(mode="ephemeral", project_config=DataContextConfig(
        # by default every context leaves a temporary folder behind
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False), analytics_enabled=False))


def outcomes(suite: "ExpectationSuite", result: "ExpectationSuiteValidationResult") -> list[Outcome]:
    """Return the outcome of each expectation; raise RuntimeError if one has no result."""
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
    """Return the message of an exception in an expectation, "" for none.

    great-expectations reports it as `success` False. The message is at the top level or, for an exception in a metric,
    below the name of that metric.
    """
    if not info or "exception_message" in info:
        return str((info or {}).get("exception_message") or "")
    metrics = (entry for entry in info.values() if isinstance(entry, dict))
    return "; ".join(sorted({str(entry.get("exception_message")) for entry in metrics}))


def decode_dictionaries(rows: pa.Table) -> pa.Table:
    """Return rows with dictionary-encoded texts decoded; shards may have texts of either type."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(pa.string()))
    return rows


def _frame(rows: pa.Table) -> Any:
    """Return rows as a pandas frame on Arrow's memory, with lists replaced by their lengths.

    Columns have Arrow types, with which an int64 column with nulls stays int64. But numeric columns without nulls are
    NumPy arrays: great-expectations compares all other values one by one, five times slower.
    """
    import pandas as pd

    complete = {}
    for i, field in enumerate(rows.schema):
        if pa.types.is_list(field.type):
            rows = rows.set_column(i, field.name, pc.list_value_length(rows.column(i)))
        elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            column = rows.column(i)
            # not with NaN, which NumPy columns count as missing: a missing value is in every range
            if not column.null_count and not (pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py()):
                complete[field.name] = column.cast(pa.float64() if pa.types.is_floating(field.type) else pa.int64())
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    return frame.assign(**{name: column.to_numpy() for name, column in complete.items()})
