"""Steps: run once for the same inputs, forecast with the reason, and keyed by the code they import."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

import tasks.core.home as home_module
import tasks.core.step as step_module
from tasks.core.code_digest import code_digests
from tasks.core.dask_workers import Workers
from tasks.core.home import CHECKPOINTS
from tasks.core.memory import MemoryUse
from tasks.core.step import UNFINISHED, Console, Step, StepContext, forecast, run, slug, steps_to_remake
from tasks.core.step import run_all as run_in_order
from tasks.core.store import Store


def counting(calls: list[str]):
    def action(context: StepContext) -> None:
        calls.append(context.out.name)
        before = (context.inputs["before"] / "value").read_text() if "before" in context.inputs else ""
        (context.out / "value").write_text(before + "x")
    return action


def chain(calls: list[str], **settings) -> list[Step]:
    action = counting(calls)
    return [Step("first", "kind", action, ("tasks.core.step",), settings),
            Step("second", "kind", action, ("tasks.core.step",), {}, {"before": "first"})]


def run_all(steps: list[Step], store: Store):
    done, results = {}, []
    for step in steps:
        results.append(run(step, done, store, Workers()))
        done[step.name] = results[-1].artifact
    return results


def test_what_was_removed_is_made_again_for_the_step_that_reads_it(tmp_path):
    store, calls = Store(tmp_path), []
    before = [each.artifact for each in run_all(chain(calls), store)]
    store.remove_files_except(before[0])
    assert [(each.reuse, each.reason) for each in forecast(chain(calls), store)] == [
        (True, "nothing it depends on has changed")] * 2
    assert [each.reused for each in run_all(chain(calls), store)] == [True, True]
    first, second = chain(calls)
    second = replace(second, settings={"other": 1})
    told = forecast([first, second], store)
    assert [each.reuse for each in told] == [False, False]
    assert told[0].reason == "its files were removed, second reads them"
    done = {"first": before[0]}
    assert steps_to_remake(second, {"first": first}, done, store) == [first]
    assert steps_to_remake(first, {"first": first}, done, store) == []
    store.forget(first.key({}))
    assert [each.artifact for each in run_all(chain(calls), store)] == before
    assert steps_to_remake(second, {"first": first}, done, store) == [] and store.open(before[0])


def test_a_step_runs_once_for_the_same_inputs(tmp_path):
    store, calls = Store(tmp_path), []
    first = run_all(chain(calls, size=1), store)
    again = run_all(chain(calls, size=1), store)
    assert len(calls) == 2
    assert [done.reused for done in again] == [True, True]
    assert [done.artifact for done in again] == [done.artifact for done in first]


def test_a_changed_setting_redoes_what_follows_and_says_why(tmp_path):
    store, calls = Store(tmp_path), []
    run_all(chain(calls, size=1), store)
    told = forecast(chain(calls, size=2), store)
    assert [(each.reuse, each.reason) for each in told] == [
        (False, "setting size changed from 1 to 2"), (False, "after first")]
    assert told[0].seconds is not None
    run_all(chain(calls, size=2), store)
    assert len(calls) == 4
    assert [each.reuse for each in forecast(chain(calls, size=1), store)] == [True, True]


def test_a_step_whose_result_was_removed_is_not_said_never_to_have_run(tmp_path):
    store = Store(tmp_path)
    run_all(chain([], size=1), store)
    store.collect(set(), unused_since=inf)
    assert [each.reason for each in forecast(chain([], size=1), store)] == [
        "its last result was removed", "after first"]


def test_a_digest_that_changed_is_told_by_its_beginning(tmp_path):
    store = Store(tmp_path)
    run_all(chain([], file="a" * 64), store)
    assert forecast(chain([], file="b" * 64), store)[0].reason == f"setting file changed from {'a' * 12} to {'b' * 12}"


def test_a_file_that_changed_is_no_setting(tmp_path):
    store = Store(tmp_path)
    run_all(chain([], files={"lbl.json.gz": "a" * 64}), store)
    assert forecast(chain([], files={"lbl.json.gz": "b" * 64}), store)[0].reason == "file lbl.json.gz changed"


def test_the_reason_compares_with_the_same_data_not_with_what_ran_last(tmp_path):
    store = Store(tmp_path)
    ours, theirs = {"lbl.json": "a" * 64, "trn.json": "b" * 64}, {"labels.txt": "c" * 64, "train.txt": "d" * 64}
    run_all(chain([], files=ours), store)
    run_all(chain([], files=theirs), store)
    assert forecast(chain([], files={**ours, "trn.json": "e" * 64}), store)[0].reason == "file trn.json changed"
    other = [replace(step, timing_group="other data") for step in chain([], files={"trn.json": "f" * 64})]
    assert forecast(other, store)[0].reason == "never run here"


def test_a_step_of_other_work_says_nothing_of_how_long(tmp_path):
    store = Store(tmp_path)
    run_all([replace(step, timing_group="wordnet astra cpu") for step in chain([], size=1)], store)
    told = {of: [each.seconds is not None
                 for each in forecast([replace(step, timing_group=of) for step in chain([], size=2)], store)]
            for of in ("wordnet astra cpu", "tickets astra cpu")}
    assert told == {"wordnet astra cpu": [True, True], "tickets astra cpu": [False, False]}
    assert {ref.name for ref in (tmp_path / "refs" / "timings").iterdir()} == {
        "first-wordnet-astra-cpu", "second-wordnet-astra-cpu"}


def test_a_damaged_note_of_how_long_it_took_stops_no_run(tmp_path):
    store, (step, _) = Store(tmp_path), chain([])
    step.note_time(store, 3.0)
    [ref] = (tmp_path / "refs" / "timings").iterdir()
    ref.write_bytes(bytes(10))
    assert step.took(store) is None and step.peak_memory(store) is None
    step.note_memory(store, MemoryUse(5, 2))
    assert step.peak_memory(store) == MemoryUse(5, 2)


@pytest.mark.parametrize(("ends", "keeps", "told"), [
    ("stopped", True, 60.0), ("stopped", False, 1.0), ("killed", True, None), ("killed", False, 1.0)])
def test_a_step_made_in_two_parts_took_as_long_as_both(tmp_path, monkeypatch, ends, keeps, told):
    """Of one that was killed it is not known how long it took; one that kept nothing began anew."""
    clock, store, minutes = SimpleNamespace(now=0.0), Store(tmp_path), [59.0, 1.0]
    for module in (step_module, home_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def action(context: StepContext) -> None:
        (context.scratch / CHECKPOINTS).mkdir(exist_ok=True)
        clock.now += minutes.pop(0)
        if minutes:
            if keeps:
                (context.scratch / CHECKPOINTS / "state").touch()
            raise KeyboardInterrupt

    step = Step("round", "kind", action, ("tasks.core.step",))
    with pytest.raises(KeyboardInterrupt):
        run(step, {}, store, Workers())
    if ends == "killed":
        (store.scratch(step.key({})) / "seconds").unlink()
    run(step, {}, store, Workers())
    assert step.took(store) == told


def test_a_failed_step_publishes_nothing(tmp_path):
    store = Store(tmp_path)

    def fail(context: StepContext) -> None:
        (context.out / "half").write_text("x")
        raise RuntimeError("no")

    step = Step("failing", "kind", fail, ("tasks.core.step",))
    with pytest.raises(RuntimeError):
        run(step, {}, store, Workers())
    assert not list((tmp_path / "objects").iterdir()) and not list((tmp_path / "tmp").iterdir())
    assert forecast([step], store)[0].reason == "never run here"


def test_a_file_that_a_killed_worker_has_not_finished_is_not_published(tmp_path):
    def write(context: StepContext) -> None:
        (context.out / "table").mkdir()
        for name in ("part-00000.parquet", f"part-00000.parquet.1{UNFINISHED}"):
            (context.out / "table" / name).write_text("x")

    made = run(Step("read", "kind", write, ("tasks.core.step",)), {}, Store(tmp_path), Workers()).artifact
    assert [path.name for path in (tmp_path / made.path / "table").iterdir()] == ["part-00000.parquet"]


@pytest.mark.usefixtures("ascii_locale")
def test_code_digest_sees_nested_imports_but_not_comments(tmp_path, monkeypatch):
    package = tmp_path / "xcmodels"
    package.mkdir()
    source = package / "probe.py"

    def digest(text: str) -> dict[str, str]:
        from tasks.core import code_digest

        source.write_text(text, encoding="utf-8")
        for cached in (code_digest.modules, code_digest.code_digests, code_digest._parsed):
            cached.cache_clear()
        return code_digests("xcmodels.probe")

    import xcmodels

    monkeypatch.setattr(xcmodels, "__path__", [*xcmodels.__path__, str(package)])
    plain_code = digest("def f():\n    return 1\n")
    assert digest('# why, on \u2265 2\ndef f():\n    """Says."""\n    return 1\n') == plain_code
    assert digest("def f():\n    return 2\n") != plain_code


def test_a_line_of_progress_names_its_step(tmp_path):
    lines = list[str]()
    steps = [Step(name, "kind", lambda context: context.say("2 rows"), ("tasks.core.step",)) for name in ("a", "b")]
    run_in_order(steps, Store(tmp_path), Workers(), Console(lines.append))
    assert lines == ["a: 2 rows", "b: 2 rows"]


def test_other_names_are_other_file_names():
    assert slug("tickets-2024.v1") == "tickets-2024.v1" and slug("a b/../c").startswith("a-b-..-c-")
    names = ["2024", "новости-2024", "документы-2024", "новости", "データ", "a b", "a-b", "a" * 128, "a" * 129, "//"]
    slugs = {slug(name) for name in names}
    assert len(slugs) == len(names) and all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,127}", each) for each in slugs)


def test_settings_as_json():
    from xcmodels.method import Round

    settings = {"round": Round("encoder", 1, 2, 3), "path": Path("a/b"), "pair": (1, 2)}
    assert Step("step", "kind", print, (), settings).about()["settings"] == {
        "round": {"stage": "encoder", "index": 1, "first": 2, "stop": 3, "cluster_size": 0, "n_negatives": 0,
                  "mined_by": -1},
        "path": "a/b", "pair": [1, 2]}
