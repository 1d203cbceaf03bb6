"""Rules for tables whose rows hold lists: tokens, and mined hard negatives."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow.compute as pc

from data_contracts.findings import Finding, Rule
from data_contracts.tables import TEXT, Tables


def list_rules(tables: Tables, table: str) -> Iterator[Rule]:
    """Yield the rules for the lists in a table."""
    if table.startswith("tokens"):
        yield Rule("token_range", table, "token ids are 0 or more", partial(_negative_token, tables, table),
                   (table,))
    if table == "negatives":
        yield Rule("label_reference", table, "every mined label exists, and occurs once in a row",
                   partial(_invalid_negative, tables, table), (table, "labels"))
        if tables.exists("positives.train"):
            yield Rule("negative_is_positive", table, "no mined negative is a positive of its query",
                       partial(_positive_negative, tables, table), (table, "positives.train"))


def _negative_token(tables: Tables, table: str) -> Finding:
    """Find rows with a negative token id, which would index the embedding table from its end."""
    finding = Finding()
    for piece in tables.pieces(table, TEXT):
        for name in TEXT:
            column = piece.data[name].combine_chunks()
            below = pc.less(pc.list_flatten(column), 0).to_numpy(False)
            bad = np.unique(pc.list_parent_indices(column).to_numpy()[below])
            finding.count += len(bad)
            shown = bad[:tables.limits.shown_rows - len(finding.rows)]
            finding.rows += [{"column": name, **row} for row in tables.report_rows(table, piece.position + shown)]
    return finding


def _invalid_negative(tables: Tables, table: str) -> Finding:
    """Find rows with a label that does not exist, or with a repeated label."""
    n = tables.rows("labels")
    return _bad_lists(tables, table, lambda query, label: (label < 0) | (label >= n) | _repeated(query, label))


def _positive_negative(tables: Tables, table: str) -> Finding:
    """Find rows with a positive of their query; memory: an int64, `query << 31 | label`, for each positive."""
    positives = np.sort(np.concatenate([np.empty(0, np.int64), *(
        (query << 31) | label for _, (query, label) in tables.ids("positives.train", "query", "label"))]))

    def bad(query: np.ndarray, label: np.ndarray) -> np.ndarray:
        pairs = (query << 31) | label
        place = np.minimum(np.searchsorted(positives, pairs), max(len(positives) - 1, 0))
        return positives[place] == pairs if len(positives) else np.zeros(len(pairs), bool)

    return _bad_lists(tables, table, bad)


def _repeated(query: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return which (query, label) pairs have occurred earlier in the piece."""
    order = np.lexsort((label, query))
    find_duplicates = np.zeros(len(query), bool)
    find_duplicates[order[1:]] = (query[order][1:] == query[order][:-1]) & (label[order][1:] == label[order][:-1])
    return find_duplicates


def _bad_lists(tables: Tables, table: str, bad: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Finding:
    """Find rows with a label for which `bad(query, label)` is true."""
    finding = Finding()
    for piece in tables.pieces(table, ("query", "labels")):
        lists = piece.data["labels"].combine_chunks()
        row = pc.list_parent_indices(lists).to_numpy()
        query = piece.data["query"].to_numpy()[row]
        wrong = np.unique(row[bad(query, pc.list_flatten(lists).to_numpy().astype(np.int64))])
        finding.count += len(wrong)
        shown = wrong[:tables.limits.shown_rows - len(finding.rows)]
        finding.rows += [{"column": "labels", **cells} for cells in tables.report_rows(table, piece.position + shown)]
    return finding
