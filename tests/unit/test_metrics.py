"""Metrics against naive loops, against napkinXC, and against values worked out by hand."""

import math
from itertools import pairwise

import napkinxc.metrics as napkin
import numpy as np
import pytest
import scipy.sparse as sp

from tests.support import oracles
from xcmodels.data.propensity import propensity
from xcmodels.metrics import by_decile, difference_errors, evaluate, mean_interval
from xcmodels.predictions import drop_filtered, match


def pairs(rows):
    lengths = [len(row) for row in rows]
    indices = np.array([label for row in rows for label in row], np.int64)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), indices


def random_case(seed, n=60, labels=40, depth=15):
    rng = np.random.default_rng(seed)
    predictions = np.stack([rng.permutation(labels)[:depth] for _ in range(n)])
    predictions[rng.random(n) < 0.3, rng.integers(1, depth) :] = -1
    truth = [set(rng.permutation(labels)[: rng.integers(0, 9)].tolist()) for _ in range(n)]
    filters = [set(rng.permutation(labels)[: rng.integers(0, 5)].tolist()) for _ in range(n)]
    frequencies = np.sort(rng.zipf(1.6, labels) % 500)[::-1].copy()
    return predictions, truth, filters, frequencies


@pytest.mark.parametrize("seed", range(5))
def test_evaluate_agrees_with_the_equations(seed):
    predictions, truth, filters, frequencies = random_case(seed)
    weight = 1 / propensity(frequencies, 1000, 0.55, 1.5)
    ks, recall_ks = (1, 3, 5, 10), (1, 10, 15)
    got = evaluate(predictions, pairs(truth), pairs(filters), weight, ks=ks, recall_ks=recall_ks)
    wanted = oracles.metrics(predictions.tolist(), truth, filters, weight, ks=ks, recall_ks=recall_ks)
    assert got == pytest.approx(wanted)
    assert got["left_out"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_evaluate_agrees_with_napkinxc(seed):
    predictions, truth, _, _ = random_case(seed)
    rows = [i for i, true in enumerate(truth) if true]  # napkinXC counts empty rows as 0; we leave them out
    train = sp.csr_array(np.random.default_rng(seed).random((200, 40)) < 0.1, dtype=float)
    ours = 1 / propensity(np.bincount(train.indices, minlength=40), 200, 0.6, 2.6)
    assert ours == pytest.approx(napkin.Jain_et_al_inverse_propensity(sp.csr_matrix(train), 0.6, 2.6))
    got = evaluate(predictions, pairs(truth), None, ours, ks=(1, 3, 10), recall_ks=(1, 3, 10))
    theirs = [sorted(truth[i]) for i in rows], [[p for p in predictions[i].tolist() if p >= 0] for i in rows]
    for name, values in {
        "P": napkin.precision_at_k(*theirs, k=10),
        "PSP": napkin.psprecision_at_k(*theirs, ours, k=10),
        "PSnDCG": napkin.psndcg_at_k(*theirs, ours, k=10),
        "recall": napkin.recall_at_k(*theirs, k=10),
        "nDCG": napkin.ndcg_at_k(*theirs, k=10),
    }.items():
        assert [got[f"{name}/{k}"] for k in (1, 3, 10)] == pytest.approx([100 * values[k - 1] for k in (1, 3, 10)])


def test_values_by_hand():
    predictions = np.array([[0, 1, 2], [3, 4, -1], [1, 0, 2]])
    truth = pairs([[0, 2], [4], []])
    weight = np.array([1.0, 1.0, 3.0, 1.0, 2.0])
    got = evaluate(predictions, truth, None, weight, ks=(1, 3), recall_ks=(1, 3))
    second, third = 1 / math.log2(3), 1 / 2
    assert got == pytest.approx({
        "P/1": 50, "P/3": 50, "recall/1": 25, "recall/3": 100, "points": 2, "left_out": 1,
        "nDCG/1": 50, "nDCG/3": 50 * ((1 + third) / (1 + second) + second),
        "PSP/1": 100 * 1 / (3 + 2), "PSP/3": 100,
        "PSnDCG/1": 100 * 1 / (3 + 2),
        "PSnDCG/3": 100 * ((1 + 3 * third) / (1 + second) + 2 * second) / ((3 + second) / (1 + second) + 2),
    })  # fmt: skip


def test_filters_leave_the_truth_and_matrices_do_as_pairs():
    predictions, filters = np.array([[0, 1], [1, 0]]), pairs([[0], [1]])
    truth = sp.csr_array(np.array([[1, 1], [0, 1]]))
    got = evaluate(predictions, truth, filters, np.ones(2), ks=(2,), recall_ks=(1, 2))
    assert got["points"] == 1 and got["left_out"] == 1  # the second row's only true label was filtered
    assert got["P/2"] == 50 and got["recall/1"] == 0 and got["recall/2"] == 100


def test_padding_never_hits():
    # -1 in row 1 must not be read as the last label of row 0
    got = evaluate(np.array([[0], [-1]]), pairs([[2], [1]]), None, np.ones(3), ks=(1,), recall_ks=(1,))
    assert got["P/1"] == 0


def test_propensity_is_jains():
    frequencies = np.array([0, 1, 7, 5000])
    wanted = [oracles.propensity(f, 294805, 0.6, 2.6) for f in frequencies.tolist()]
    assert propensity(frequencies, 294805, 0.6, 2.6) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="at least 3"):
        propensity(frequencies, 2, 0.6, 2.6)


@pytest.mark.parametrize("seed", range(3))
def test_drop_filtered_agrees_with_a_loop(seed):
    predictions, _, filters, _ = random_case(seed)
    scores = np.random.default_rng(seed).random(predictions.shape, dtype=np.float32)
    ids, values = drop_filtered(predictions, scores, pairs(filters), 12)
    wanted_ids, wanted_values = oracles.drop_filtered(predictions.tolist(), scores, filters, 12)
    assert ids.tolist() == wanted_ids and np.array_equal(values, np.array(wanted_values))
    assert (ids < 0).any() and ids.dtype == np.int64


@pytest.mark.parametrize("seed", range(3))
def test_deciles_share_out_what_evaluate_reports(seed):
    predictions, truth, filters, frequencies = random_case(seed, n=200)
    weight = 1 / propensity(frequencies, 1000, 0.55, 1.5)
    table = by_decile(predictions, pairs(truth), pairs(filters), frequencies, weight, k=5)
    whole = evaluate(predictions, pairs(truth), pairs(filters), weight, ks=(5,), recall_ks=(5,))
    assert sum(row["P/5"] for row in table) == pytest.approx(whole["P/5"])
    assert sum(row["PSP/5"] for row in table) == pytest.approx(whole["PSP/5"])
    assert sum(row["labels"] for row in table) == len(frequencies)
    left = [true - drop for true, drop in zip(truth, filters, strict=True)]
    assert sum(row["positives"] for row in table) == sum(map(len, left))
    full = [row for row in table if row["labels"]]
    assert all(a["max_frequency"] <= b["min_frequency"] for a, b in pairwise(full))
    head = {i for i, f in enumerate(frequencies) if f >= full[-1]["min_frequency"]}
    if len(head) == full[-1]["labels"]:
        hits = sum(p in head & true for row, true in zip(predictions.tolist(), left, strict=True) for p in row[:5])
        assert full[-1]["recall/5"] == pytest.approx(100 * hits / sum(len(true & head) for true in left))


def test_deciles_hold_equal_shares_of_positives():
    frequencies = np.concatenate([np.ones(50, int), np.full(5, 10)])  # 100 positives, half of them in the tail
    table = by_decile(np.arange(55)[:, None], pairs([[i] for i in range(55)]), None, frequencies, np.ones(55), k=1)
    assert [row["labels"] for row in table] == [10] * 5 + [1] * 5
    assert [row["recall/1"] for row in table] == [100] * 10


def test_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [mean_interval(rng.random(400) < 0.3) for _ in range(1000)]
    assert 0.93 < np.mean([low <= 30 <= high for low, high in intervals]) < 0.97
    assert mean_interval(np.array([0.4, 0.6])) == pytest.approx((50 - 19.6, 50 + 19.6), abs=1e-3)
    assert mean_interval(np.array([1.0])) == (0, 100)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval(np.array([]))


def test_equal_values_do_not_make_the_interval_a_point():
    low, high = mean_interval(np.ones(296))
    assert (round(low, 2), high) == (98.76, 100) and mean_interval(np.zeros(296)) == pytest.approx((0, 100 - low))
    unseen = np.random.default_rng(3).random((20_000, 296)).min(1) > 1 - low / 100
    assert unseen.mean() == pytest.approx(0.025, abs=4e-3)


def test_errors_of_a_difference_agree_with_a_loop_over_queries():
    predictions, truth, filters, frequencies = random_case(1)
    other = random_case(2)[0]
    weight = 1 / propensity(frequencies, 1000, 0.55, 1.5)
    got = difference_errors([predictions, other], pairs(truth), pairs(filters), frequencies, weight)
    left = [true - filtered for true, filtered in zip(truth, filters, strict=True)]
    members = [{label for label, of in enumerate(decile_of(frequencies)) if of == number} for number in range(10)]
    wanted = dict.fromkeys(("P/1", "PSP/5", "mean", *(f"decile/{number}" for number in range(1, 11))), 0.0)
    judged = sum(map(bool, left))
    attainable = sum(sum(sorted((weight[label] for label in true), reverse=True)[:5]) for true in left)
    for new, old, true in zip(predictions.tolist(), other.tolist(), left, strict=True):
        one = ((new[0] in true) - (old[0] in true)) / judged if true else 0
        five = sum(((label in new[:5]) - (label in old[:5])) * weight[label] for label in true) / attainable
        for name, difference in (("P/1", one), ("PSP/5", five), ("mean", (one + five) / 2)):
            wanted[name] += difference**2
        for number, labels in enumerate(members, start=1):
            found = sum((label in new[:5]) - (label in old[:5]) for label in true & labels)
            wanted[f"decile/{number}"] += (found / max(sum(len(each & labels) for each in left), 1)) ** 2
    assert got == pytest.approx({name: 100 * math.sqrt(total) for name, total in wanted.items()})


def decile_of(frequencies):
    """The decile of each label: where the middle of its positives lies, the rarest first."""
    order, out, before = sorted(range(len(frequencies)), key=lambda label: (frequencies[label], label)), {}, 0
    for label in order:
        out[label] = min(int(10 * (before + frequencies[label] / 2) / sum(frequencies)), 9)
        before += frequencies[label]
    return [out[label] for label in range(len(frequencies))]


def test_the_error_of_p_at_1_is_that_of_mcnemars_test():
    """Of 100 queries 9 are right in one alone, 4 in the other: (9 - 4)^2 / (9 + 4) = (5 / error)^2."""
    truth = pairs([[0]] * 100)
    ours = np.array([[0, 1, 2, 3, 4]] * 87 + [[0, 1, 2, 3, 4]] * 9 + [[1, 0, 2, 3, 4]] * 4)
    theirs = np.array([[0, 1, 2, 3, 4]] * 87 + [[1, 0, 2, 3, 4]] * 9 + [[0, 1, 2, 3, 4]] * 4)
    errors = difference_errors([ours, theirs], truth, None, np.ones(5), np.ones(5))
    assert errors["P/1"] == pytest.approx(math.sqrt(13))
    assert errors["PSP/5"] == errors["decile/1"] == 0, "all of both find the label among five"


def test_hits_feed_the_interval():
    judged = match(np.array([[0], [1], [2]]), pairs([[0], [0], []]), None, 3)
    assert judged.hits[:, 0].tolist() == [True, False] and judged.rows.tolist() == [0, 1]


@pytest.mark.parametrize(("predictions", "truth", "ks", "message"), [
    ([[0, 1]], [[0]], (3,), "every k must be in 1..2"),
    ([[0, 1]], [[0]], (0,), "every k must be in 1..2"),
    ([[0, 0]], [[0]], (1, 2), "row 0 predicts label 0 twice"),
    ([[0, 5]], [[0]], (1, 2), r"predictions holds label 5, outside \[-1, 5\)"),
    ([[0, 1]], [[7]], (1,), r"truth holds label 7, outside \[0, 5\)"),
    ([[0, 1]], [[0], [1]], (1,), "truth has 2 rows, predictions have 1"),
    ([[0, 1]], [[]], (1,), "no row has a true label"),
])  # fmt: skip
def test_what_is_invalid_is_refused(predictions, truth, ks, message):
    with pytest.raises(ValueError, match=message):
        evaluate(np.array(predictions), pairs(truth), None, np.ones(5), ks=ks, recall_ks=(1,))
