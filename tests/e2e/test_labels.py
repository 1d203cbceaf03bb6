"""Labels edited while a model serves: the version that has them, and a retraining that does not lose them."""

import errno
import fcntl
import json
import os
from functools import partial

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.core.files import locked
from tasks.registry import label_edits, promotion
from tasks.registry.champions import history, rollback
from tasks.registry.edit_journal import Journal
from tasks.registry.label_edits import apply_edits, edit_labels, journal_of, locked_edits
from tasks.registry.label_files import LabelRow
from tasks.registry.promotion import promote_by_gates
from tasks.registry.register import register
from tasks.registry.resolve import resolve
from tasks.registry.tags import DATA, EXAMPLES
from tests.support import tiny
from tests.support.forked import run_xc
from xcmodels.retrieval.label_editing import ADD, REMOVE
from xcmodels.retrieval.retriever import Retriever


@pytest.fixture
def models(tmp_path):
    return tiny.RegisteredModels(tmp_path / "home")


def ask(models, op, *rows, **more):
    return edit_labels(models.store, models.tracker, "xc", op,
                       [LabelRow(f"f.csv:{line}", *row) for line, row in enumerate(rows, start=1)], **more)


def applied(models):
    return apply_edits(models.store, models.tracker, "xc")


def predicted(models, text, k=60, spec="xc"):
    return [label.uid for label in Retriever.load(resolve(models.tracker, spec).folder).predict([text], k)[0]]


def test_an_added_label_is_predicted_after_it_is_applied_and_a_removed_one_is_not(models):
    models.enter(0)
    assert applied(models) is None
    assert "tiny:11" in predicted(models, "mountain fox", 1)
    assert ask(models, ADD, ("x:1", "mountain fox pike")) == ask(models, REMOVE, ("tiny:11",)) == 1
    assert journal_of(models.store, models.tracker, "xc")[1] is False
    made = applied(models)
    assert (made.version, made.base, made.added, made.removed, made.moved) == ("2", "1", 1, 1, True)
    assert predicted(models, "mountain fox pike", 1) == ["x:1"]
    assert "tiny:11" not in predicted(models, "mountain fox") and len(predicted(models, "mountain fox")) == 50
    assert "tiny:11" in predicted(models, "mountain fox", 1, "xc/1"), "what was trained is never changed"
    assert journal_of(models.store, models.tracker, "xc")[1] is True


def test_the_version_says_what_it_is(models):
    models.enter(0, facts={EXAMPLES: '["a wolf"]', DATA: "d1"})
    models.enter(1, 50.0)
    ask(models, ADD, ("x:1", "a wolf"))
    applied(models)
    assert models.aliases() == {"champion": "3", "challenger": "2"}
    trained, _, version = models.versions()
    assert (version.tags["xc.base"], json.loads(version.tags["xc.labels"])) == ("1", [1, 0])
    assert all(version.tags[key] == trained.tags[key] for key in ("xc.metrics", "xc.test", EXAMPLES, DATA))
    assert version.description.startswith("# card of 0") and "1 label added" in version.description
    with models.tracker.required() as client:
        last = history(client, "xc")[-1]
    assert (last["from"], last["to"], last["how"], last["why"]) == ("1", "3", "labels", "labels: +1 -0 on v1")


def test_the_challenger_stays_where_a_command_is_cut_off_once_the_version_is_registered(models, monkeypatch):
    models.enter(0)
    models.enter(1, 50.0)
    ask(models, ADD, ("x:1", "a wolf"))

    def cut_off(*arguments, **more):
        register(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(label_edits, "register", cut_off)
    with pytest.raises(KeyboardInterrupt):
        applied(models)
    assert len(models.versions()) == 3 and models.aliases() == {"champion": "1", "challenger": "2"}


def test_nothing_is_done_twice(models):
    models.enter(0)
    ask(models, ADD, ("x:1", "a wolf"))
    first = applied(models)
    objects = sorted((models.store.home / "objects").iterdir())
    again = applied(models)
    assert (again.version, again.moved) == (first.version, False)
    assert sorted((models.store.home / "objects").iterdir()) == objects and len(models.versions()) == 2
    ask(models, REMOVE, ("x:1",))
    back = applied(models)
    assert (back.version, back.added, back.removed, back.moved) == ("1", 0, 0, True)
    assert not applied(models).moved


def test_the_same_edits_of_the_same_version_are_the_same_retriever(tmp_path):
    digests = []
    for name in ("one", "other"):
        models = tiny.RegisteredModels(tmp_path / name)
        models.enter(0)
        ask(models, ADD, ("x:1", "a wolf", "of the sea"), ("x:2", "日本語"))
        ask(models, REMOVE, ("tiny:7",))
        applied(models)
        digests.append(resolve(models.tracker, "xc").digest)
    assert digests[0] == digests[1]


def test_a_retraining_does_not_lose_the_edits(models):
    models.enter(0)
    ask(models, ADD, ("x:1", "mountain fox pike"))
    ask(models, REMOVE, ("tiny:11",))
    applied(models)
    version = models.register(1, 70.0).version
    decision = promote_by_gates(models.tracker, "xc", version,
                                edits=partial(locked_edits, models.store, models.tracker, "xc"))
    assert decision.promoted
    now = resolve(models.tracker, "xc").version
    assert models.aliases()["champion"] == now == "4" and models.versions()[3].tags["xc.base"] == version == "3"
    assert "x:1" in predicted(models, "mountain fox pike") and "tiny:11" not in predicted(models, "mountain fox")
    assert not applied(models).moved
    again = promote_by_gates(models.tracker, "xc", version)
    assert (again.promoted, again.reason, again.champion["version"]) == (False, "it is the champion already", version)
    with models.tracker.required() as client:
        assert [each["to"] for each in history(client, "xc")] == ["1", "2", "4"]


def test_nobody_edits_labels_while_the_alias_moves(models, monkeypatch):
    models.enter(0)
    version, free, moved = models.register(1, 70.0).version, list[bool](), promotion.move

    def move(*arguments, **more):
        with locked(Journal(models.store.home, "xc").path, fcntl.LOCK_EX, 0.0) as acquired:
            free.append(acquired)
        moved(*arguments, **more)

    monkeypatch.setattr(promotion, "move", move)
    promote_by_gates(models.tracker, "xc", version, edits=partial(locked_edits, models.store, models.tracker, "xc"))
    assert free == [False] and models.aliases()["champion"] == version


def test_a_person_promotes_under_a_champion_with_edited_labels(models, cli):
    """The edits go along; the version that they were made on is the champion already, whatever it was measured to."""
    models.enter(0)
    ask(models, ADD, ("x:1", "mountain fox pike"))
    applied(models)
    home = ("--home", str(models.store.home))
    for more in ((), ("--force",)):
        code, _, said = cli("promote", "xc/1", "--reason", "r", *more, *home)
        assert code == 2 and "xc/1 is the champion already, as xc/2: its labels were edited" in said
    challenger = models.enter(1, 50.0)
    assert challenger.note == "v2 is compared by what v1 reached, before its labels were edited"
    assert models.aliases()["champion"] == "2" and not challenger.promoted
    assert "xc/2 " in cli("models", *home)[1] and "(of version 1, before its labels were edited)" in cli(
        "models", *home)[1].splitlines()[1]
    code, _, said = cli("promote", "xc/3", "--force", "--reason", "r", *home)
    assert code == 0 and "xc/4 (version 3 with the labels that were added and removed) is the champion: r" in said
    assert models.aliases()["champion"] == "4" and predicted(models, "mountain fox pike", 1) == ["x:1"]
    assert cli("promote", "xc/3", "--reason", "r", *home)[0] == 2


def test_a_champion_of_other_means_gets_them_when_edits_are_applied(models):
    models.enter(0)
    ask(models, REMOVE, ("tiny:11",))
    applied(models)
    assert models.enter(1, 70.0).promoted
    assert applied(models).moved and "tiny:11" not in predicted(models, "mountain fox")


def test_rolling_back_goes_past_the_edits_to_the_version_before(models):
    models.enter(0)
    models.enter(1, 70.0)
    ask(models, ADD, ("x:1", "a wolf"))
    assert applied(models).version == "3"
    assert rollback(models.tracker, "xc", "worse than it looked") == ("3", "1")
    made = applied(models)
    assert (made.base, made.moved) == ("1", True) and "x:1" in predicted(models, "a wolf")
    assert "worse than it looked" in models.enter(1, 70.0).reason, "its training does not bring it back"


def test_the_training_behind_a_champion_with_edits_leaves_the_challenger(models):
    models.enter(0)
    ask(models, ADD, ("x:1", "a wolf"))
    assert applied(models).version == "2"
    models.enter(1, 50.0)
    assert models.enter(0).reason == "it is the champion already"
    assert models.aliases() == {"champion": "2", "challenger": "3"}


def test_rolling_back_undoes_no_edit_and_says_what_does(models):
    models.enter(0)
    ask(models, ADD, ("x:1", "a wolf"))
    assert applied(models).version == "2"
    with pytest.raises(UsageError, match="no champion before v2 but the same without label edits") as refused:
        rollback(models.tracker, "xc", "worse than it looked")
    assert "one is undone by its opposite" in refused.value.hint


def test_a_trained_version_that_was_deleted_is_not_needed(models):
    models.enter(0)
    ask(models, ADD, ("x:1", "mountain fox pike"))
    applied(models)
    with models.tracker.required() as client:
        client.delete_model_version("xc", "1")
    assert not applied(models).moved
    ask(models, ADD, ("x:2", "an elm"))
    made = applied(models)
    assert (made.base, made.moved) == ("2", True)
    assert {"x:1", "x:2"} <= set(predicted(models, "an elm"))


@pytest.mark.parametrize(("op", "rows", "said", "hint"), [
    (ADD, [("x:1", "a"), ("tiny:4", "b")], "f.csv:2: label 'tiny:4' is there already", "remove the label first"),
    (REMOVE, [("tiny:4",), ("tiny:44x",)], "f.csv:2: label 'tiny:44x' is not there", "did you mean 'tiny:44'?"),
    (REMOVE, [("nothing like it",)], "f.csv:1: label 'nothing like it' is not there", "leave the row out"),
    (REMOVE, [("tiny:9",)], "f.csv:1: label 'tiny:9' was removed already", "leave the row out")])
def test_a_bad_row_changes_nothing(models, op, rows, said, hint):
    models.enter(0)
    ask(models, REMOVE, ("tiny:9",))
    before = Journal(models.store.home, "xc").entries()
    with pytest.raises(ContractError) as caught:
        ask(models, op, *rows)
    assert said in str(caught.value) and hint in caught.value.hint
    assert Journal(models.store.home, "xc").entries() == before
    assert ask(models, ADD, ("x:5", "a"), dry_run=True) == 1
    assert Journal(models.store.home, "xc").entries() == before


def test_the_last_label_is_not_removed(models):
    models.enter(0)
    every = [(f"tiny:{label}",) for label in range(len(tiny.LABELS))]
    with pytest.raises(UsageError, match="xc would have no label left"):
        ask(models, REMOVE, *every)
    ask(models, REMOVE, *every[1:])
    with pytest.raises(UsageError, match="xc would have no label left"):
        ask(models, REMOVE, *every[:1])


def test_a_command_that_could_not_apply_its_edits_may_be_repeated(models, tmp_path, monkeypatch, cli):
    models.enter(0)
    (tmp_path / "new.csv").write_text("uid,text\nx:1,mountain fox pike\nx:2,sea oak elm\n")
    (tmp_path / "less.csv").write_text("uid,text\nx:2,sea oak elm\n")
    words = ("labels", "add", str(tmp_path / "new.csv"), "--home", str(models.store.home))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(label_edits, "edit_retriever", full)
        code, _, said = cli(*words)
    assert code == 1 and "2 labels will be added to xc" in said and "run the same command again" in said
    other = cli("labels", "add", str(tmp_path / "less.csv"), *words[3:], "--later")
    assert other[0] == 3 and "label 'x:2' is there already" in other[2], "it was not left for later"
    code, _, said = cli(*words)
    assert code == 0 and "the champion is version 2: version 1 with 2 labels added and 0 removed" in said
    assert [edit.uid for edit in Journal(models.store.home, "xc").edits()] == ["x:1", "x:2"]
    assert cli(*words)[0] == 3, "what the champion has is not added again"


def test_without_a_champion_there_is_nothing_to_edit(models):
    models.register(0)
    with pytest.raises(UsageError, match="xc has no champion"):
        ask(models, ADD, ("x:1", "a"))


def test_from_the_command_line(models, tmp_path):
    models.enter(0)
    home = str(models.store.home)

    def xc(*words, stdin="", code=0):
        ended, out, said = run_xc(*words, "--home", home, stdin=stdin, cwd=tmp_path)
        assert ended == code, said
        return out, said

    (tmp_path / "new.csv").write_text("uid,text\nx:1,mountain fox pike\nx:2,sea oak elm\n")
    out, said = xc("labels", "add", "new.csv")
    assert not out and "the champion is version 2: version 1 with 2 labels added and 0 removed" in said
    _, said = xc("labels", "add", "new.csv", "--dry-run", code=3)
    assert "new.csv:2: label 'x:1' is there already" in said and "hint:" in said
    _, said = xc("labels", "remove", "-", "--later", stdin="x:1\ntiny:11\n")
    assert "2 labels will be removed from xc by `xc labels apply`" in said
    rows = json.loads(xc("labels", "list", "--json")[0])
    assert [(each["op"], each["uid"]) for each in rows["edits"]] == [
        ("add", "x:1"), ("add", "x:2"), ("remove", "x:1"), ("remove", "tiny:11")]
    assert rows["applied"] is False
    _, said = xc("labels", "apply")
    assert "the champion is version 3: version 1 with 1 label added and 1 removed" in said
    found = [label["uid"] for label in json.loads(xc("predict", "--k", "60", "sea oak elm")[0])["labels"]]
    assert found[0] == "x:2" and not set(found) & {"x:1", "tiny:11"} and len(found) == 50
