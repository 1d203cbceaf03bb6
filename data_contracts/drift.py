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
    """Compare the label frequencies with those of an earlier run; previous: its report folder or frequencies file.

    A shift that chance alone can explain at these sizes is not drift. Where those cannot be read, the rule fails.
    """
    if previous is None:
        return Finding(note="no earlier run to compare with")
    file = previous / FREQUENCIES if previous.is_dir() else previous
    try:
        earlier = pq.read_table(file, columns=["uid", "count"])
    except (pa.ArrowException, OSError):    # no fault of the data
        return Finding(1, note=f"remove what cannot be read, and nothing is compared: {file}")
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
    index = _indices(old_uids, uids)
    old = np.where(old_uids[index] == uids, before[index], 0) / before.sum()
    largest = np.argsort(-abs(now / now.sum() - old), kind="stable")[:limits.shown_rows]
    rows = [{**row, "share_before": f"{old[label]:.3%}", "share_now": f"{now[label] / now.sum():.3%}"}
            for label, row in zip(largest, tables.report_rows("labels", largest), strict=True)]
    return Finding(len(rows), rows, note, status)


def stability_index(known: np.ndarray, before: np.ndarray, uids: np.ndarray, now: np.ndarray) -> tuple[float, float]:
    """Return the Population Stability Index of label frequencies, and the value that chance exceeds once in a thousand.

    The index is the sum of (a - e) ln(a / e) over bins. Ten bins have a tenth of the earlier positives each, from
    frequent labels to rare ones; one more has the new labels. Without drift it is about chi-squared with one degree of
    freedom less than there are bins, times (1/n + 1/m) (Yurdakul, Naranjo 2020).
    """
    order = np.lexsort((known, -before))
    cumulated = np.cumsum(before[order]) - before[order]
    bins = np.empty(len(known), np.int64)
    bins[order] = np.minimum(cumulated * 10 // before.sum(), 9)
    index = _indices(known, uids)
    new_bins = np.where(known[index] == uids, bins[index], 10)
    expected = np.bincount(bins, before, 11) / before.sum()
    actual = np.bincount(new_bins, now, 11) / now.sum()
    expected, actual = expected.clip(min=1e-4), actual.clip(min=1e-4)  # an empty bin would make the index infinite
    psi = float(np.sum((actual - expected) * np.log(actual / expected)))
    return psi, float(29.6 * (1 / before.sum() + 1 / now.sum()))  # .999 quantile, 10 degrees


def _indices(known: np.ndarray, uids: np.ndarray) -> np.ndarray:
    """Return the index of each uid in `known`; arbitrary for a uid that is not in it."""
    rank = np.argsort(known)
    return rank[np.searchsorted(known, uids, sorter=rank).clip(max=len(known) - 1)]


def label_counts(tables: Tables) -> np.ndarray:
    """Return the number of training positives of each label: int64 of shape (labels,)."""
    counts = np.zeros(tables.rows("labels"), np.int64)
    for _, (label,) in tables.ids("positives.train", "label"):
        counts += np.bincount(label[(label >= 0) & (label < len(counts))], minlength=len(counts))
    return counts


def write_frequencies(tables: Tables, folder: Path) -> None:
    """Write the label frequencies for the next run to compare with; nothing if the tables are damaged."""
    if tables.not_checkable(("positives.train", "labels")):
        return
    with suppress(Unreadable):  # of labels, if they were not among the checked tables
        counts = pa.table({"uid": tables.hashes("labels", ("uid",)), "count": label_counts(tables)})
        pq.write_table(counts.sort_by("uid"), folder / FREQUENCIES)
