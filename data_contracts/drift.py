"""Drift of the label frequencies since an earlier run, labels matched by uid."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.findings import Finding
from data_contracts.tables import Tables, Unreadable
from data_contracts.verdict import Status

FREQUENCIES = "frequencies.parquet"


def drift(tables: Tables, previous: Path | None) -> Finding:
    """Compare the label frequencies with an earlier run's, labels matched by uid.

    A shift that chance alone explains at these sizes is not drift, however small the tables.
    """
    if previous is None:
        return Finding(note="no earlier run to compare with")
    earlier = pq.read_table(previous / FREQUENCIES if previous.is_dir() else previous, columns=["uid", "count"])
    old_uids, before = earlier["uid"].to_numpy(), earlier["count"].to_numpy()
    uids, now = tables.hashes("labels", ("uid",)), label_counts(tables)
    if not before.sum() or not now.sum() or before.min() < 0:
        return Finding(note="not checked: no positives in this run or in the earlier one")
    psi, chance = stability_index(old_uids, before, uids, now)
    limits = tables.limits
    status: Status = ("fail" if psi > max(limits.drift_fail, chance) else
                      "warn" if psi > max(limits.drift_warn, chance) else "ok")
    new, gone = int((~np.isin(uids, old_uids)).sum()), int((~np.isin(old_uids, uids)).sum())
    note = (f"Population Stability Index {psi:.3f} ({limits.drift_warn} warns, "
            f"{limits.drift_fail} fails: prepare.drift_fail); {new} labels new, {gone} gone")
    if status == "ok":
        return Finding(note=note, status=status)
    place = _places(old_uids, uids)
    old = np.where(old_uids[place] == uids, before[place], 0) / before.sum()
    largest = np.argsort(-abs(now / now.sum() - old), kind="stable")[:limits.shown_rows]
    rows = [{**row, "share_before": f"{old[label]:.3%}", "share_now": f"{now[label] / now.sum():.3%}"}
            for label, row in zip(largest, tables.show("labels", largest), strict=True)]
    return Finding(len(rows), rows, note, status)


def stability_index(known: np.ndarray, before: np.ndarray, uids: np.ndarray, now: np.ndarray) -> tuple[float, float]:
    """Return the Population Stability Index of label frequencies, and what chance reaches once in a thousand.

    Bins hold a tenth of the earlier positives each, from frequent labels to rare ones, and one more holds
    the labels that are new. sum((a - e) ln(a / e)) over bins; without drift it is about chi-squared with
    as many degrees of freedom as bins less one, times (1/n + 1/m) (Yurdakul, Naranjo 2020).
    """
    order = np.lexsort((known, -before))
    cumulated = np.cumsum(before[order]) - before[order]
    bins = np.empty(len(known), np.int64)
    bins[order] = np.minimum(cumulated * 10 // before.sum(), 9)
    place = _places(known, uids)
    new_bins = np.where(known[place] == uids, bins[place], 10)
    expected = np.bincount(bins, before, 11) / before.sum()
    actual = np.bincount(new_bins, now, 11) / now.sum()
    expected, actual = expected.clip(min=1e-4), actual.clip(min=1e-4)  # an empty bin would be infinite
    psi = float(np.sum((actual - expected) * np.log(actual / expected)))
    return psi, float(29.6 * (1 / before.sum() + 1 / now.sum()))  # chi-squared with 10 degrees: .999 at 29.6


def _places(known: np.ndarray, uids: np.ndarray) -> np.ndarray:
    """Return the place of each uid in `known`, and any place for a uid that is not in it."""
    rank = np.argsort(known)
    return rank[np.searchsorted(known, uids, sorter=rank).clip(max=len(known) - 1)]


def label_counts(tables: Tables) -> np.ndarray:
    """Return how many training positives each label has: int64 of shape (labels,)."""
    counts = np.zeros(tables.rows("labels"), np.int64)
    for _, (label,) in tables.ids("positives.train", "label"):
        counts += np.bincount(label[(label >= 0) & (label < len(counts))], minlength=len(counts))
    return counts


def write_frequencies(tables: Tables, folder: Path) -> None:
    """Write the label frequencies for the next run to compare with, unless the tables are damaged."""
    if tables.unmet(("positives.train", "labels")):
        return
    with suppress(Unreadable):  # where labels were not checked, damage in them is not known yet
        counts = pa.table({"uid": tables.hashes("labels", ("uid",)), "count": label_counts(tables)})
        pq.write_table(counts.sort_by("uid"), folder / FREQUENCIES)
