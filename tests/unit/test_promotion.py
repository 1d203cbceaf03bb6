"""The champion: moved where the gates hold, by a person with a reason, and back; every move is kept."""

import json
import sqlite3
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from data_contracts.errors import GateRefused, UsageError
from flows.cli.commands.registry import _why
from tasks.evaluation.gates import Comparison, Incomparable, Score
from tasks.registry.champions import history, listing, rollback
from tasks.registry.promotion import promote, promote_by_gates
from tasks.registry.resolve import resolve
from tasks.registry.tags import champion_of
from tests.support import tiny


@pytest.fixture
def models(tmp_path):
    return tiny.RegisteredModels(tmp_path / "home")


def moves(models):
    with models.tracker.required() as client:
        return [(each["from"], each["to"], each["how"]) for each in history(client, "xc")]


def test_a_version_that_passes_the_gates_becomes_the_champion(models):
    assert models.enter(0).reason == "there was no champion"
    better = models.enter(1, 61.5)
    assert better.promoted
    assert better.reason == "P@1 61.50 against 60.00 (+1.50) of champion v1; 3 gates hold"
    assert better.champion == {"version": "1", "metrics": {"P/1": 60.0, "PSP/5": 50.0}, "deciles": [],
                               "gains": {"P/1": 1.5, "PSP/5": 0.0}}
    assert models.aliases() == {"champion": "2", "challenger": "2"}
    assert models.enter(1, 61.5).reason == "it is the champion already"
    assert moves(models) == [(None, "1", "gates"), ("1", "2", "gates")]
    [record] = json.loads(models.versions()[1].tags["xc.promotions"])
    assert record["why"] == better.reason and record["when"] and record["who"]


def test_a_worse_version_stays_a_challenger_and_says_why(models):
    models.enter(0)
    worse = models.enter(1, 58.0)
    assert (worse.promoted, worse.reason) == (False, "P@1 58.00 against 60.00 (-2.00), bound 59.50")
    assert not models.enter(2, float("nan")).promoted
    assert not models.enter(3, 70.0, psp5=40.0).promoted
    assert models.aliases() == {"champion": "1", "challenger": "4"}
    told = json.loads(models.versions()[1].tags["xc.gates"])
    assert (told["promoted"], told["gates"][0]) == (
        False, {"gate": "P@1", "holds": False, "ours": 58.0, "theirs": 60.0, "bound": 59.5, "error": 0.0})


def measured(ours, theirs, **more):
    """What gives both versions these P@1."""
    return lambda *_: Comparison([Score({"P/1": p1, "PSP/5": 51.0}) for p1 in (ours, theirs)], **more)


def test_who_becomes_champion_meanwhile_is_compared_with(models):
    """A comparison takes minutes; what a person decided meanwhile is not undone by what came before it."""
    models.enter(0)
    other, ours = models.register(1, 66.0).version, models.register(2, 62.0).version
    asked = []

    def compare(version, champion):
        asked.append(champion.version)
        if len(asked) == 1:
            promote(models.tracker, "xc", other, "the best so far", force=True)
        return measured(62.0, {"1": 60.0, other: 66.0}[champion.version])()

    decision = promote_by_gates(models.tracker, "xc", ours, compare)
    assert asked == ["1", other] and not decision.promoted and decision.champion["version"] == other
    assert models.aliases()["champion"] == other


def test_a_person_is_told_of_a_champion_that_came_meanwhile(models):
    models.enter(0)
    other, ours = models.register(1, 66.0).version, models.register(2, 62.0).version

    def compare(*_):
        promote(models.tracker, "xc", other, "the best so far", force=True)
        return measured(62.0, 60.0)()

    with pytest.raises(UsageError, match="xc has another champion since the gates were measured\nhint: run the same"):
        promote(models.tracker, "xc", ours, "mine", compare=compare)
    assert models.aliases()["champion"] == other


def test_another_test_set_needs_both_to_be_scored_on_the_same_ground(models):
    models.enter(0)
    other = models.enter(1, 70.0, test="test 2")
    assert (other.promoted, other.champion) == (False, {"version": "1", "metrics": {}, "gains": {}, "deciles": []})
    assert "measured on another test set, and no test set is prepared here" in other.reason
    asked = []

    def compare(*versions):
        asked.extend((each.version, each.folder) for each in versions)
        return measured(66.0, 65.0)()

    again = models.enter(1, 70.0, test="test 2", compare=compare)
    assert again.promoted and again.reason.startswith("P@1 66.00 against 65.00 (+1.00) of champion v1")
    assert again.champion["gains"]["P/1"] == 1.0
    assert asked == [(version, models.store.open(models.publish(seed))) for version, seed in (("2", 1), ("1", 0))]

    def nothing_shared(*versions):
        raise Incomparable("no test query has a label that they share")

    apart = models.enter(2, 70.0, test="test 3", compare=nothing_shared)
    assert apart.reason == "it cannot be compared with champion v2: no test query has a label that they share"


def test_both_are_measured_wherever_they_can_be_and_what_was_left_out_is_told(models):
    models.enter(0)
    decision = models.enter(1, 70.0, compare=measured(59.0, 60.0, errors={"P/1": 1.0}, queries=1072, left_out=31))
    note = "31 of 1,072 test queries are left out: v2 or v1 was trained on them"
    assert decision.promoted and decision.note == note
    assert decision.reason.startswith("P@1 59.00 against 60.00 (-1.00, standard error 1.00) of champion v1")
    with models.tracker.required() as client:
        assert history(client, "xc")[-1]["why"] == f"{decision.reason}; {note}"
    worse = models.enter(2, 70.0, compare=measured(56.0, 59.0, errors={"P/1": 1.0}))
    assert (worse.promoted, worse.note) == (False, "")
    assert worse.reason == "P@1 56.00 against 59.00 (-3.00, standard error 1.00), bound 57.00"


def test_a_format_that_is_no_longer_read_is_compared_by_what_was_measured_of_it(models):
    def compare(*versions):
        raise ValueError("a retriever of format 1")

    models.enter(0)
    assert models.enter(1, 61.0, compare=compare).reason.startswith("P@1 61.00 against 60.00 (+1.00) of champion v1")
    assert "another test set, and a retriever of format 1" in models.enter(2, 62.0, test="2", compare=compare).reason


def test_a_champion_that_was_deleted_is_replaced(models):
    models.enter(0)
    models.enter(1, 50.0)
    with models.tracker.required() as client:
        client.delete_model_version("xc", "1")
        assert champion_of(client, "xc") is None
    assert models.enter(1, 50.0).reason == "there was no champion"


def test_a_champion_whose_files_are_gone_does_not_stop_a_better_one(models):
    models.enter(0)
    for folder in ("objects", "mlartifacts"):
        for file in (models.store.home / folder).rglob("frequencies.npy"):
            file.unlink()
    assert models.enter(1, 61.0).promoted
    assert "cannot be compared" not in models.enter(2, 50.0).reason


def test_a_person_promotes_where_the_gates_hold_and_overrules_them_with_a_reason(models):
    models.enter(0)
    models.enter(1, 50.0)
    with pytest.raises(GateRefused, match=r"P@1 50\.00 against 60\.00") as caught:
        promote(models.tracker, "xc", "2", "I like it")
    assert caught.value.exit_code == 4 and "--force" in caught.value.hint
    assert promote(models.tracker, "xc", "2", "I like it", force=True, dry_run=True).promoted
    assert models.aliases()["champion"] == "1"
    promote(models.tracker, "xc", "2", "I like it", force=True)
    assert models.aliases()["champion"] == "2"
    assert moves(models)[-1] == ("1", "2", "forced")
    assert promote(models.tracker, "xc", "1", "back to what was").promoted    # 60 against 50: the gates hold
    assert moves(models)[-1] == ("2", "1", "promoted")
    with pytest.raises(UsageError, match="champion already"):
        promote(models.tracker, "xc", "1", "again")


def test_rolling_back_goes_back_one_and_then_one_further(models):
    for seed in range(3):
        models.enter(seed, 60.0 + seed)
    assert rollback(models.tracker, "xc", "clicks fell", dry_run=True) == ("3", "2")
    assert models.aliases()["champion"] == "3"
    assert rollback(models.tracker, "xc", "clicks fell") == ("3", "2")
    assert rollback(models.tracker, "xc", "clicks fell still") == ("2", "1")
    with pytest.raises(UsageError, match="no champion before v1"):
        rollback(models.tracker, "xc", "and again")
    assert models.enter(3, 65.0).promoted
    assert rollback(models.tracker, "xc", "no better") == ("4", "1")
    assert resolve(models.tracker).version == "1"


def test_rolling_back_knows_each_reign_of_a_version(models):
    for seed in range(3):
        models.register(seed)
    for version in "3121":
        promote(models.tracker, "xc", version, "its turn", force=True)
    back = [rollback(models.tracker, "xc", "worse")]
    promote(models.tracker, "xc", "3", "for a day", force=True)
    back += [rollback(models.tracker, "xc", "worse") for _ in range(3)]
    assert back == [("1", "2"), ("3", "2"), ("2", "1"), ("1", "3")]
    with pytest.raises(UsageError, match="no champion before v3"):
        rollback(models.tracker, "xc", "and again")


def test_rolling_back_passes_over_a_reign_that_was_deleted_to_another_version(models):
    for seed in range(3):
        models.register(seed)
    for version in "3121":
        promote(models.tracker, "xc", version, "its turn", force=True)
    with models.tracker.required() as client:
        client.delete_model_version("xc", "2")
    assert rollback(models.tracker, "xc", "worse") == ("1", "3")


def test_rolling_back_skips_what_was_deleted_or_never_came_to_reign(models, monkeypatch):
    for seed in range(3):
        models.enter(seed, 60.0 + seed)
    with models.tracker.required() as client:
        client.delete_model_version("xc", "2")
    with sqlite3.connect(models.store.home / "mlflow.db") as database:    # a kill between the record and the alias
        database.execute("UPDATE registered_model_aliases SET version = 1 WHERE alias = 'champion'")
    with pytest.raises(UsageError, match="no champion before v1"):
        rollback(models.tracker, "xc", "a bad day")
    models.enter(2, 62.0)
    assert rollback(models.tracker, "xc", "a bad day") == ("3", "1")


def test_rolling_back_goes_by_the_order_of_the_moves_whatever_the_clock_said(models, monkeypatch):
    for seed in range(4):
        models.register(seed)
    for version in "1234":
        with monkeypatch.context() as patch:
            if version == "2":
                ahead = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(days=3653))
                patch.setattr("tasks.registry.champions.datetime", ahead)
            promote(models.tracker, "xc", version, "its turn", force=True)
    assert [to for _, to, _ in moves(models)] == ["1", "2", "3", "4"]
    assert rollback(models.tracker, "xc", "worse") == ("4", "3")


def test_a_move_after_versions_were_deleted_is_the_last(models):
    for seed in range(4):
        models.register(seed)
    for version in "123":
        promote(models.tracker, "xc", version, "its turn", force=True)
    with models.tracker.required() as client:
        for version in "12":
            client.delete_model_version("xc", version)
    promote(models.tracker, "xc", "4", "its turn", force=True)
    assert [to for _, to, _ in moves(models)] == ["3", "4"]


def test_a_champion_that_a_person_took_back_is_not_promoted_by_its_training_again(models):
    models.enter(0)
    models.enter(1, 62.0)
    rollback(models.tracker, "xc", "clicks fell on Monday")
    again = models.enter(1, 62.0)    # a retrain on the same data
    assert not again.promoted and again.champion["version"] == "1" and models.aliases()["champion"] == "1"
    assert "replaced it as champion (clicks fell on Monday); xc promote xc/2 --reason WHY makes it that" in again.reason
    assert models.enter(2, 63.0).promoted, "another retriever"
    assert not models.enter(1, 90.0).promoted, "whichever is the champion now"
    promote(models.tracker, "xc", "2", "looked again", force=True)
    assert models.aliases()["champion"] == "2" and models.enter(1, 62.0).reason == "it is the champion already"
    assert not models.enter(2, 63.0).promoted, "it was replaced by a person, too"
    promote(models.tracker, "xc", "3", "the gates hold")
    assert models.aliases()["champion"] == "3"


def test_a_champion_that_the_gates_replaced_may_come_back(models):
    """On other test queries it may be the better one: nobody has judged it."""
    models.enter(0)
    models.enter(1, 62.0)
    assert models.enter(0, 63.0).promoted and models.aliases()["champion"] == "1"


def test_the_list_of_versions(models):
    assert listing(models.tracker) == []
    models.enter(0)
    models.enter(1, 50.0)
    first, second = listing(models.tracker)
    assert (first["name"], first["version"], first["aliases"], first["moves"][0]["why"]) == (
        "xc", "1", ["champion"], "there was no champion")
    assert (second["aliases"], second["moves"], second["gates"]["promoted"]) == (["challenger"], [], False)
    assert (first["test"], first["base"]) == ("test 1", "")


def test_a_dry_run_moves_and_keeps_nothing(models):
    models.register(0)
    assert promote_by_gates(models.tracker, "xc", "1", dry_run=True).promoted
    assert models.aliases() == {"challenger": "1"} and "xc.gates" not in models.versions()[0].tags


def test_when_a_version_became_the_champion_is_told_in_local_time(monkeypatch):
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert _why({"moves": [{"when": "2026-11-26T20:31:07+00:00", "why": "better"}]}) == "  2026-11-27T05:31 better"
    time.tzset()
