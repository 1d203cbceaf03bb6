"""The gates: what holds, what does not, at the very bound, with chance, and with numbers that are none."""

import json
import math
from dataclasses import replace

import pytest

from tasks.evaluation.gates import Score, evaluate_gates


def decile(recall, positives=1000, number=1):
    return {"decile": number, "labels": 5, "positives": positives, "recall/5": recall}


def score(p1=60.0, psp5=50.0, *, deciles=(), latency=None, **indexes):
    return Score({"P/1": p1, "PSP/5": psp5, **{f"index/{name}/recall/100": value for name, value in indexes.items()}},
                 deciles, latency)


def broken(ours, theirs):
    return [gate.name for gate in evaluate_gates(ours, theirs) if not gate.holds]


@pytest.mark.parametrize(("ours", "names"), [
    (score(), []), (score(60.4, 49.6), []), (score(59.5, 50.0), []), (score(59.49, 55.0), ["P@1"]),
    (score(70.0, 49.4), ["PSP@5"]), (score(50.0, 40.0), ["P@1", "PSP@5", "mean"]),
    (score(59.9, 49.9), ["mean"]), (score(math.nan), ["P@1"]), (Score({}), ["P@1", "PSP@5"])])
def test_metrics(ours, names):
    assert [name.split()[0] for name in broken(ours, score())] == names


@pytest.mark.parametrize(("ours", "names"), [
    (score(58.1, 51.0), []), (score(57.9, 51.0), ["P@1"]), (score(61.0, 48.1), []), (score(61.0, 47.9), ["PSP@5"]),
    (score(59.2, 49.2), []), (score(59.0, 48.9), ["mean"])])
def test_a_metric_falls_by_more_than_chance(ours, names):
    gates = evaluate_gates(ours, score(), errors={"P/1": 1.0, "PSP/5": 1.0, "mean": 0.45})
    assert [gate.name.split()[0] for gate in gates if not gate.holds] == names


def test_errors_that_are_not_known_are_those_of_samples_drawn_apart():
    """1,072 queries of which 60% are right: two such shares differ by 2.1 points of standard error."""
    ours, theirs = (Score({"P/1": p1, "PSP/5": 50.0, "points": 1072.0}) for p1 in (57.0, 60.0))
    [p1, psp5] = evaluate_gates(ours, theirs)
    assert p1.holds and psp5.holds and p1.error == pytest.approx(100 * math.sqrt(2 * 0.6 * 0.4 / 1072))
    assert str(p1) == "P@1 57.00 against 60.00 (-3.00, standard error 2.12)"
    assert not evaluate_gates(replace(ours, metrics={**ours.metrics, "P/1": 55.7}), theirs)[0].holds


def test_paired_errors_go_before_those_of_a_deciles_count():
    new, old = score(deciles=[decile(40.0, 50)]), score(deciles=[decile(50.0, 50)])
    assert broken(new, old) == []
    assert [gate.name for gate in evaluate_gates(new, old, errors={"decile/1": 3.0}) if not gate.holds] == [
        "recall@5 of decile 1"]


def test_a_champion_without_a_number_is_beaten_by_one_with_it():
    assert broken(score(), Score({"P/1": math.nan})) == []
    assert broken(score(math.nan, math.nan), Score({"P/1": math.nan, "PSP/5": math.nan})) == ["P@1", "PSP@5"]


@pytest.mark.parametrize(("new", "old", "positives", "holds"), [
    (45.0, 50.0, 10_000, True), (44.9, 50.0, 10_000, False),     # the margin
    (40.0, 50.0, 50, True), (29.0, 50.0, 50, False),             # two standard errors of the difference: 20 points
    (0.0, 0.0, 40, True), (0.0, 50.0, 0, True)])
def test_a_decile_falls_by_more_than_chance(new, old, positives, holds):
    gates = evaluate_gates(score(deciles=[decile(new, positives)]), score(deciles=[decile(old, positives)]))
    assert all(gate.holds for gate in gates) is holds


@pytest.mark.parametrize(("ours", "theirs", "holds"), [
    (19.0, 1.0, True), (21.0, 1.0, False), (39.0, 20.0, True), (41.0, 20.0, False),
    (None, 1.0, True), (90.0, None, True)])
def test_latency_counts_once_it_is_felt(ours, theirs, holds):
    assert (broken(score(latency=ours), score(latency=theirs)) == []) is holds


def test_a_first_version_needs_an_index_that_finds_its_labels():
    assert broken(score(labels=93.0, texts=90.0), None) == []
    assert broken(score(labels=93.0, texts=89.9), None) == ["index 'texts' recall"]
    assert broken(score(1.0, 1.0), None) == []


def test_a_gate_says_its_numbers():
    told = [str(gate) for gate in evaluate_gates(score(59.0, labels=99.0), score())]
    assert told == ["P@1 59.00 against 60.00 (-1.00), bound 59.50", "PSP@5 50.00 against 50.00 (+0.00)",
                    "index 'labels' recall 99.00"]
    kept = [gate.to_json() for gate in evaluate_gates(score(math.nan), score())]
    assert json.loads(json.dumps(kept, allow_nan=False))[0] == {
        "gate": "P@1", "holds": False, "ours": None, "theirs": 60.0, "bound": 59.5, "error": 0.0}


def calibrated(error, queries=5000, points=20_000):
    return Score({**score().metrics, "calibration/error": error, "calibration/queries": queries, "points": points})


@pytest.mark.parametrize(("ours", "theirs", "holds"), [
    (calibrated(9.9), None, True), (calibrated(10.1), None, False),                  # a first version
    (calibrated(4.9), calibrated(1.0), True), (calibrated(5.1), calibrated(1.0), False),
    (calibrated(7.0), calibrated(7.5), True), (calibrated(7.6), calibrated(7.5), False),
    (calibrated(5.1), score(), False), (calibrated(40.0, 5, 20), None, True), (calibrated(11.0, 300, 20), None, True),
    (calibrated(math.nan), calibrated(1.0), False)])
def test_confidences_are_as_often_right_as_they_say(ours, theirs, holds):
    [gate] = [gate for gate in evaluate_gates(ours, theirs) if gate.name == "calibration error"]
    assert gate.holds == holds and gate.theirs == (theirs and theirs.metrics.get("calibration/error"))


@pytest.mark.parametrize(("ours", "theirs"), [
    (score(), calibrated(1.0)), (calibrated(65.0, 0, 120), None), (calibrated(65.0, 0, 120), calibrated(9.0, 0, 120))])
def test_confidences_that_were_not_measured_or_not_fitted_have_no_gate(ours, theirs):
    assert "calibration error" not in [gate.name for gate in evaluate_gates(ours, theirs)]


def test_fitted_confidences_are_not_replaced_by_wrong_ones_that_were_not_fitted():
    [gate] = [gate for gate in evaluate_gates(calibrated(65.0, 0, 120), calibrated(2.0)) if not gate.holds]
    assert gate.name == "calibration error" and gate.bound == pytest.approx(100 / math.sqrt(120))
