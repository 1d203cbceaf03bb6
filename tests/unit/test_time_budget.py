"""The method and preset that a time budget allows, from measured times of whole jobs."""

import json
import resource
import shutil
from pathlib import Path

import pytest

from benchmarks import bench_jobs
from data_contracts.errors import ProjectError, UsageError
from flows.time_budget import CANDIDATES, TIMES, choose, count_texts, read_times, seconds_of
from tasks.data.sources import describe
from tests.support.planted import write_planted
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_planted(tmp_path_factory.mktemp("raw") / "small", train=700, test=200, labels=100)    # 1,000 texts


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with times of its own: 70, 40 and 20 seconds for 1,000 texts."""
    rows = [{"method": method, "preset": preset, "fixed": fixed, "text": each}
            for (method, preset), fixed, each in zip(CANDIDATES, (10, 10, 10), (0.06, 0.03, 0.01), strict=True)]
    (tmp_path / TIMES.name).write_text(json.dumps(rows))
    return tmp_path


@pytest.mark.parametrize(("budget", "seconds"), [("90s", 90), ("90", 90), ("10m", 600), ("1h30m", 5400), ("2 h", 7200)])
def test_times_as_people_write_them(budget, seconds):
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["", "0", "ten", "10 min", "-5m", "m", "1.5h"])
def test_what_is_no_time_is_refused(budget):
    with pytest.raises(UsageError, match="--budget is a time above 0"):
        seconds_of(budget)


@pytest.mark.parametrize("budget", ["1h30", "1h 30"])
def test_a_number_behind_hours_needs_its_unit(budget):
    with pytest.raises(UsageError, match="--budget 1h30 has no unit behind its last number") as caught:
        seconds_of(budget)
    assert caught.value.hint == "--budget 1h30m, or --budget 1h30s"


@pytest.mark.parametrize(("budget", "chosen"), [("2m", 0), ("70s", 0), ("69s", 1), ("40s", 1), ("39s", 2), ("20s", 2)])
def test_the_most_accurate_that_fits_is_chosen(data, home, budget, chosen):
    found = choose(data, budget, home)
    assert (found.method, found.preset) == CANDIDATES[chosen]
    assert found.about.startswith(f"{found.method}, preset {found.preset}, is the most accurate that fits")
    assert all(span in found.about for span in ("1 min 10 s", "40 s", "20 s", "1,000 texts"))


def test_where_nothing_fits_the_shortest_budget_is_named(data, home):
    with pytest.raises(UsageError) as caught:
        choose(data, "19s", home)
    assert "nothing trains on 1,000 texts within 19 s" in str(caught.value) and caught.value.hint == "--budget 20s"


def test_a_budget_of_what_is_said_to_be_expected_is_enough(data, home):
    rows = [{"method": method, "preset": preset, "fixed": 70.3, "text": 0.0} for method, preset in CANDIDATES]
    (home / TIMES.name).write_text(json.dumps(rows))
    with pytest.raises(UsageError, match="ngame by cpu-quick 1 min 11 s") as caught:
        choose(data, "70s", home)
    assert caught.value.hint == "--budget 1m11s" and choose(data, "1m11s", home).method == CANDIDATES[0][0]


def test_labels_without_texts_are_refused_as_every_candidate_learns_from_texts(tmp_path):
    """A run of what was chosen refused them."""
    for name, text in (("dataset.json", '{"labels": 30}'), ("trn_X.txt", "a\nb\n"), ("tst_X.txt", "c\n"),
                       ("trn_X_Y.txt", "2 30\n1:1\n2:1\n"), ("tst_X_Y.txt", "1 30\n1:1\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="--budget chooses among methods that learn from label texts") as caught:
        choose(tmp_path, "10m", tmp_path)
    assert "--method astra --preset cpu-numbered" in caught.value.hint
    assert all(METHODS[method].make(resolve(method, preset, {}).method).needs_label_texts
               for method, preset in CANDIDATES)


def test_the_packaged_times_are_of_presets_that_there_are(tmp_path):
    for (method, preset), (fixed, each) in read_times(tmp_path).items():
        resolve(method, preset, {})
        assert fixed > 0 and each > 0


@pytest.mark.parametrize("text", ["{", "[]", '[{"method": "ngame"}]', "3"])
def test_a_file_of_times_that_lacks_some_is_named(tmp_path, text):
    (tmp_path / TIMES.name).write_text(text)
    with pytest.raises(ProjectError, match="remove it"):
        read_times(tmp_path)


def test_a_disk_without_room_leaves_the_times_that_were_there(data, home, monkeypatch, capsys):
    """The file was emptied first."""
    larger, was = home / "large", (home / TIMES.name).read_text()
    shutil.copytree(data, larger)
    sizes = iter((1000, 2000))
    monkeypatch.setattr(bench_jobs, "count_texts", lambda _: next(sizes))
    monkeypatch.setattr(bench_jobs, "_seconds", lambda *_: 5.0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            bench_jobs.main(data, larger, home / TIMES.name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (home / TIMES.name).read_text() == was and "| ngame, cpu | 5 | 5 |" in capsys.readouterr().out    # all ran


def test_the_benchmark_writes_what_is_read(data, tmp_path, monkeypatch, capsys):
    """Jobs of 5 s and .01 s a text are measured as such."""
    larger = write_planted(tmp_path / "large", train=1600, test=300, labels=100)
    monkeypatch.setattr(bench_jobs, "_seconds", lambda folder, *job: 5 + 0.01 * count_texts(describe(folder)))
    bench_jobs.main(data, larger, tmp_path / TIMES.name)
    assert read_times(tmp_path) == dict.fromkeys(CANDIDATES, (5.0, 0.01))
    assert "| unidec, cpu | 15 | 25 |" in capsys.readouterr().out
    with pytest.raises(UsageError, match="LARGE must have more texts"):
        bench_jobs.main(larger, data)
