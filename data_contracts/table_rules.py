"""Rules over whole tables: duplicates, leaks between splits, queries without labels, wrong tokens and negatives.

Memory of a rule: one piece (`Thresholds.piece_rows` rows) and a few arrays of 8 bytes per row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from data_contracts.drift import drift
from data_contracts.findings import Finding, Rule
from data_contracts.schemas import kind_of
from data_contracts.tables import TEXT, Tables, find_duplicates, mix_bits

# The columns that no two rows of a table may share. A repeated filter pair changes nothing, so it only warns.
_KEYS = {"queries": ("id",), "labels": ("id",), "anchors": ("id",), "groups": ("query",), "clusters": ("query",),
         "negatives": ("query",), "tokens": ("id", "augmented"), "positives": ("query", "label"),
         "filters": ("query", "label"), "rejected": ("query", "label"), "edges": ("node", "anchor"),
         "walks": ("node", "anchor"), "pruned": ("node", "anchor")}


def table_rules(tables: Tables, table: str, previous: Path | None) -> Iterator[Rule]:
    """Yield the rules that need a whole table."""
    kind, _, side = table.partition(".")
    if kind == "broader":    # a repeated pair changes nothing, and a concept may be any uid
        return
    key = " and ".join(_KEYS[kind])
    yield Rule("pair_unique" if "label" in key or "anchor" in key else "id_unique", table,
               f"no two rows have the same {key}", partial(_same_key, tables, table), (table,),
               "warn" if kind == "filters" else "fail")
    if kind in ("walks", "pruned", "tokens", "clusters", "negatives"):
        yield from _list_rules(tables, table)
        return
    if kind in ("queries", "labels"):
        yield Rule("uid_unique", table, "no two rows have the same uid",
                   partial(_same_text, tables, table, ("uid",)), (table,))
    if table in ("queries.train", "labels"):
        yield Rule("duplicate_text", table, "no two rows have the same title and content",
                   partial(_same_text, tables, table, TEXT), (table,), "warn")
    if kind == "positives" and tables.exists(f"queries.{side}"):
        yield Rule("queries_without_label", table, "every query has a label",
                   partial(_without_label, tables, table, f"queries.{side}"), (table, f"queries.{side}"), "warn")
    if kind == "rejected" and tables.exists(f"positives.{side}"):
        yield Rule("rejected_is_positive", table, "no rejected label is a positive of its query",
                   partial(_rejected_positive, tables, table, f"positives.{side}"), (table, f"positives.{side}"))
    if table == "queries.train" and tables.exists("positives.train"):
        yield Rule("conflicting_labels", table, "the same title and content always has the same labels",
                   partial(_conflicts, tables), (table, "positives.train"), "warn")
    if table == "queries.test" and tables.exists("queries.train"):
        yield Rule("split_disjointness", table, "no text of the test set is in the training set",
                   partial(_leak, tables), (table, "queries.train"))
    if table == "positives.train" and tables.exists("labels"):
        yield Rule("label_drift", table, "labels are as frequent as in the run before",
                   partial(drift, tables, previous), (table, "labels"))


def _same_key(tables: Tables, table: str) -> Finding:
    """Find rows with the key of an earlier row; memory: an int64 per row, `left << 31 | right` for a pair.

    Ids out of range are left to `id_range` and `reference`; here each counts as unique.
    """
    keys = np.empty(tables.rows(table), np.int64)
    for position, columns in tables.ids(table, *_KEYS[kind_of(table)]):
        left, right = columns[0], columns[1] if len(columns) > 1 else np.zeros_like(columns[0])
        valid = (left >= 0) & (left < 2**32) & (right >= 0) & (right < 2**31)
        row = np.arange(position, position + len(left))
        keys[position:position + len(left)] = np.where(valid, (left << 31) | right, -1 - row)
    later, first = find_duplicates(keys)
    return Finding(len(later), tables.report_rows(table, later, (table, first)))


def _same_text(tables: Tables, table: str, columns: tuple[str, ...]) -> Finding:
    later, first = tables.duplicate_texts(table, columns)
    return Finding(len(later), tables.report_rows(table, later, (table, first)))


def _without_label(tables: Tables, table: str, queries: str) -> Finding:
    """Find queries without a positive, which are allowed but useless for training and evaluation."""
    seen = np.zeros(tables.rows(queries), bool)
    for _, (query,) in tables.ids(table, "query"):
        seen[query[(query >= 0) & (query < len(seen))]] = True
    unlabelled = np.flatnonzero(~seen)
    return Finding(len(unlabelled), tables.report_rows(queries, unlabelled))


def _conflicts(tables: Tables) -> Finding:
    """Find duplicate texts with different labels, compared by the sum of hashed label ids: 8 bytes per query."""
    sums = np.zeros(tables.rows("queries.train"), np.uint64)
    for _, (query, label) in tables.ids("positives.train", "query", "label"):
        valid = (query >= 0) & (query < len(sums)) & (label >= 0)
        np.add.at(sums, query[valid], mix_bits(label[valid].astype(np.uint64)))
    later, first = tables.duplicate_texts("queries.train", TEXT)
    differ = sums[later] != sums[first]
    rows = tables.report_rows("queries.train", later[differ], ("queries.train", first[differ]))
    return Finding(int(differ.sum()), rows)


def _leak(tables: Tables) -> Finding:
    """Find test rows whose text is in train; texts are compared as in `Tables.duplicate_texts`."""
    test, train = tables.hashes("queries.test", TEXT), tables.hashes("queries.train", TEXT)
    both, first, _ = np.intersect1d(train, test, return_indices=True)
    shared = np.flatnonzero(np.isin(test, both))
    twin = first[np.searchsorted(both, test[shared])]
    head = slice(tables.limits.compared_texts)
    test_texts = tables.texts("queries.test", shared[head], TEXT)
    train_texts = tables.texts("queries.train", twin[head], TEXT)
    same = np.ones(len(shared), bool)
    same[head] = [test_texts[a] == train_texts[b]
                  for a, b in zip(shared[head].tolist(), twin[head].tolist(), strict=True)]
    shared, twin = shared[same], twin[same]
    share, limit = len(shared) / max(len(test), 1), tables.limits.leak_share
    note = f"{share:.2%} of the test rows; more than {limit:.2%} fails: prepare.leak_share" if len(shared) else ""
    return Finding(len(shared), tables.report_rows("queries.test", shared, ("queries.train", twin)), note,
                   "fail" if share > limit else "warn" if len(shared) else "ok")


def _list_rules(tables: Tables, table: str) -> Iterator[Rule]:
    """Yield the rules for the lists in a table of tokens or mined hard negatives."""
    if table.startswith("tokens"):
        # a negative one would index the embedding table from its end
        yield Rule("token_range", table, "token ids are 0 or more",
                   partial(_bad_lists, tables, table, TEXT, lambda row, token: token < 0), (table,))
    if table == "negatives":
        yield Rule("label_reference", table, "every mined label exists, and occurs once in a row",
                   partial(_bad_lists, tables, table, ("labels",), lambda query, label: (label < 0)
                           | (label >= tables.rows("labels")) | _repeated(query, label)), (table, "labels"))
        if tables.exists("positives.train"):
            yield Rule("negative_is_positive", table, "no mined negative is a positive of its query",
                       partial(_positive_negative, tables, table), (table, "positives.train"))


def _positive_negative(tables: Tables, table: str) -> Finding:
    """Find rows with a positive of their query; memory: an int64, `query << 31 | label`, for each positive."""
    positives = _pairs(tables, "positives.train")
    return _bad_lists(tables, table, ("labels",), lambda query, label: np.isin((query << 31) | label, positives))


def _rejected_positive(tables: Tables, table: str, positives: str) -> Finding:
    """Find pairs that are positives, too; memory as of `_positive_negative`."""
    bad = np.flatnonzero(np.isin(_pairs(tables, table), _pairs(tables, positives)))
    return Finding(len(bad), tables.report_rows(table, bad))


def _pairs(tables: Tables, table: str) -> np.ndarray:
    """Return the pairs of a table in its order, each as `query << 31 | label`."""
    return np.concatenate([np.empty(0, np.int64), *(
        (query << 31) | label for _, (query, label) in tables.ids(table, "query", "label"))])


def _repeated(query: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return which (query, label) pairs have occurred earlier in the piece."""
    order = np.lexsort((label, query))
    repeated = np.zeros(len(query), bool)
    repeated[order[1:]] = (query[order][1:] == query[order][:-1]) & (label[order][1:] == label[order][:-1])
    return repeated


def _bad_lists(tables: Tables, table: str, columns: tuple[str, ...],
               bad: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Finding:
    """Find rows with a list in which `bad(id of the row, value)` is true of a value."""
    finding, key = Finding(), _KEYS[kind_of(table)][0]
    for piece in tables.pieces(table, (key, *columns)):
        for name in columns:
            lists = piece.data[name].combine_chunks()
            row = pc.list_parent_indices(lists).to_numpy()
            values = pc.list_flatten(lists).to_numpy().astype(np.int64)
            wrong = np.unique(row[bad(piece.data[key].to_numpy()[row], values)])
            finding.count += len(wrong)
            shown = wrong[:tables.limits.shown_rows - len(finding.rows)]
            finding.rows += [{"column": name, **cells} for cells in tables.report_rows(table, piece.position + shown)]
    return finding
