"""Drift of the label frequencies: measured against the formula, and when it warns or fails."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_contracts.drift import FREQUENCIES, stability_index
from data_contracts.errors import ContractError
from data_contracts.findings import Thresholds
from flows.run import prepare
from tasks.core.dask_workers import Workers
from tasks.core.step import StepContext, unwatched
from tasks.data import contract
from tasks.data.feedback.add import FACTS
from tests.support.contracts import Rows, check, good, put


def frequencies(counts: list[int]) -> Rows:
    """A corpus in which label i has `counts[i]` positives."""
    labels = [{"id": i, "uid": f"L{i}", "title": f"label {i}", "content": ""} for i in range(len(counts))]
    pairs = [{"query": q, "label": i, "relevance": 1.0} for i, count in enumerate(counts) for q in range(count)]
    queries = [{"id": i, "uid": f"q{i}", "title": f"query {i}", "content": ""} for i in range(max(counts))]
    return {"labels": labels, "positives.train": pairs, "queries.train": queries}


@pytest.mark.parametrize(("now", "status"), [([900, 500, 300, 100], "ok"), ([910, 495, 290, 110], "ok"),
                                             ([700, 400, 350, 250], "warn"), ([100, 300, 500, 900], "fail")])
def test_label_drift(tmp_path, now, status):
    before = check(tmp_path / "before", frequencies([900, 500, 300, 100]), only=["positives.train"], split=())
    assert before.ok
    previous = before.page.parent / ("frequencies.parquet" if status == "ok" else "")
    report = check(tmp_path / "now", frequencies(now), previous=previous, only=["positives.train"], split=())
    (drift,) = [rule for rule in report.rules if rule.rule == "label_drift"]
    assert drift.status == status and "Population Stability Index" in drift.note
    if status == "fail":
        assert drift.rows[0]["uid"] == "L0" and drift.rows[0]["share_before"] == "50.000%"


def test_new_labels_are_drift_and_few_positives_are_not(tmp_path):
    only = ["positives.train"]
    before = check(tmp_path / "before", frequencies([40, 30, 20]), only=only).page.parent
    grown = check(tmp_path / "a", frequencies([40, 30, 20, 35]), previous=before, only=only)
    assert "1 labels new, 0 gone" in next(r.note for r in grown.rules if r.rule == "label_drift")
    assert [r.rule for r in grown.failures] == ["label_drift"]
    small = check(tmp_path / "b", frequencies([4, 3, 2]), only=only).page.parent
    assert check(tmp_path / "c", frequencies([2, 3, 4]), previous=small, only=only).ok


def test_stability_index_is_the_sum_it_says():
    known, uids = np.array([5, 1, 9], np.uint64), np.array([9, 5, 1], np.uint64)
    before, now = np.array([50, 30, 20]), np.array([30, 40, 30])
    expected, actual = [.5, .3, .2], [.4, .3, .3]
    value, _ = stability_index(known, before, uids, now)
    assert value == pytest.approx(sum((a - e) * np.log(a / e) for a, e in zip(actual, expected, strict=True)))


@pytest.mark.parametrize("content", [b"", b"not parquet"])
def test_an_unreadable_earlier_run_fails_its_rule_only(tmp_path, content):
    (tmp_path / "old.parquet").write_bytes(content)
    report = check(tmp_path, good(), previous=tmp_path / "old.parquet", only=["positives.train"])
    assert [r.rule for r in report.failures] == ["label_drift"]
    with pytest.raises(ContractError, match="remove what cannot be read") as caught:    # its data are not to blame
        report.raise_for_failure()
    assert str(tmp_path / "old.parquet") in str(caught.value)


def context(folder: Path, tables: Path) -> StepContext:
    return StepContext(folder, {"tables": tables}, folder, folder / "home", Workers(count=0), str, unwatched)


@pytest.mark.parametrize("facts", ["dataset.json", FACTS])
def test_the_remedy_names_feedback_where_it_is_in_the_tables(tmp_path, facts):
    root = put(tmp_path / "tables", frequencies([9, 5, 3]) | {"labels": []})
    (root / facts).write_text("{}")
    with pytest.raises(ContractError, match="correct the data, run again") as refused:
        contract.check("data", Thresholds(), context(tmp_path, root))
    assert ("--feedback ignore" in refused.value.hint) == (facts == FACTS)


def test_a_run_is_compared_with_the_one_before_also_where_that_reused_its_check(tmp_path):
    """Else data that returns to what it was is compared with what it no longer is."""
    home = tmp_path / "home"
    home.mkdir()

    class Runner(SimpleNamespace):
        def __call__(self, steps):
            pass

    for name, counts in (("ours", [9, 5, 3]), ("other", [3, 5, 9]), ("ours", [])):
        if counts:
            contract.check("data", Thresholds(), context(tmp_path / name, put(tmp_path / name, frequencies(counts))))
        store = SimpleNamespace(open=Path, home=home, lost=lambda checked: False)
        prepare.fn("", Runner(done={"check tables": tmp_path / name}, store=store,
                              pipeline=SimpleNamespace(prepare=[], data=SimpleNamespace(name="data"))))
        kept, made = home / "baselines" / "data.parquet", tmp_path / name / FREQUENCIES
        assert pq.read_table(kept).equals(pq.read_table(made))


def test_the_frequencies_are_on_the_disk_before_they_replace_the_last_ones(tmp_path, monkeypatch):
    """Else a machine that loses its power leaves an empty file, with which every later check fails."""
    root, flushed = put(tmp_path / "tables", frequencies([9, 5, 3])), []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")))
    contract.check("data", Thresholds(), context(tmp_path, root))
    store = SimpleNamespace(home=tmp_path / "home", open=lambda checked: tmp_path, lost=lambda checked: False)
    contract.keep_frequencies("data", None, store)
    assert f"{tmp_path}/home/baselines/data.tmp" in flushed
    assert [file.name for file in (tmp_path / "home" / "baselines").iterdir()] == ["data.parquet"]
