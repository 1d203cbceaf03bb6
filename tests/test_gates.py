"""The gates: what holds, what does not, at the very bound, with chance, and with numbers that are none."""

import json
import math

import pytest

from tasks.gates import Score, weigh


def decile(recall, positives=1000, number=1):
    return {"decile": number, "labels": 5, "positives": positives, "recall/5": recall}


def score(p1=60.0, psp5=50.0, *, deciles=(), latency=None, **indexes):
    return Score({"P/1": p1, "PSP/5": psp5, **{f"index/{name}/recall/100": value for name, value in indexes.items()}},
                 deciles, latency)


def broken(ours, theirs):
    return [gate.name for gate in weigh(ours, theirs) if not gate.holds]


@pytest.mark.parametrize(("ours", "names"), [
    (score(), []), (score(60.4, 49.6), []), (score(59.5, 50.0), []), (score(59.49, 55.0), ["P@1"]),
    (score(70.0, 49.4), ["PSP@5"]), (score(50.0, 40.0), ["P@1", "PSP@5", "mean"]),
    (score(59.9, 49.9), ["mean"]), (score(math.nan), ["P@1"]), (Score({}), ["P@1", "PSP@5"])])
def test_metrics(ours, names):
    assert [name.split()[0] for name in broken(ours, score())] == names


def test_a_champion_without_a_number_is_beaten_by_one_with_it():
    assert broken(score(), Score({"P/1": math.nan})) == []
    assert broken(score(math.nan, math.nan), Score({"P/1": math.nan, "PSP/5": math.nan})) == ["P@1", "PSP@5"]


@pytest.mark.parametrize(("new", "old", "positives", "holds"), [
    (45.0, 50.0, 10_000, True), (44.9, 50.0, 10_000, False),     # the margin
    (40.0, 50.0, 50, True), (29.0, 50.0, 50, False),             # two standard errors of the difference: 20 points
    (0.0, 0.0, 40, True), (0.0, 50.0, 0, True)])
def test_a_decile_falls_by_more_than_chance(new, old, positives, holds):
    gates = weigh(score(deciles=[decile(new, positives)]), score(deciles=[decile(old, positives)]))
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
    told = [str(gate) for gate in weigh(score(59.0, labels=99.0), score())]
    assert told == ["P@1 59.00 against 60.00 (-1.00), bound 59.50", "PSP@5 50.00 against 50.00 (+0.00)",
                    "index 'labels' recall 99.00"]
    kept = [gate.to_json() for gate in weigh(score(math.nan), score())]
    assert json.loads(json.dumps(kept, allow_nan=False))[0] == {
        "gate": "P@1", "holds": False, "ours": None, "theirs": 60.0, "bound": 59.5}
