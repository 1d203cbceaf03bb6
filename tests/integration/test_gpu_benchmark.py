"""The benchmark of a GPU, at a small size on a processor: every part runs, and what one loses the others keep."""

import json
import re
import time

import pytest
import torch

from benchmarks.arguments import run
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.presets import shortened
from benchmarks.gpu.scale import SMALL, Scale
from benchmarks.gpu.steps import BareSteps, first_stage
from benchmarks.gpu.tables import Part, Results, by_names
from benchmarks.gpu.waits import HostWaits, union
from benchmarks.measuring import mined_at_random
from xcmodels.methods.presets import PRESETS, resolve
from xcmodels.resources import RATES, read_rates


@pytest.fixture
def scale(tmp_path):
    return Scale("cpu", SMALL, tmp_path, share=.01)


@pytest.fixture(autouse=True)
def devices_restored(monkeypatch):
    """Take back what the benchmark sets, or later tests of this process could not fork their programs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_every_part_runs_on_a_processor(tmp_path, capsys):
    run(gpu.main, gpu.__doc__, ["--device", "cpu", "--small", "--out", str(tmp_path / "out")])
    told = json.loads((tmp_path / "out" / "gpu.json").read_text())
    tables = {table["name"]: table for table in told["tables"]}
    assert list(tables) == gpu.NAMES.split(",")
    assert {name: table["ended"] for name, table in tables.items()} == dict.fromkeys(tables, "whole")
    steps = {(row["method"], row["encoder"]): row for row in tables["steps"]["rows"]}
    assert {name for name, _ in steps} == PRESETS.keys() and len(steps) == 2 * len(PRESETS)
    assert all("note" in row if name.startswith("ramen") else row["examples a second"] > 0
               for (name, _), row in steps.items())
    presets = {row["method"]: row for row in tables["presets"]["rows"]}
    assert presets.keys() == {name for name in PRESETS if "minilm" in PRESETS[name]}
    assert all("note" in row if name.startswith("ramen") else 0 <= row["P@1"] <= 100 and row["epochs"] >= 1
               for name, row in presets.items())
    assert all(row["recall@100, %"] > 95 for row in tables["mining"]["rows"] if "recall@100, %" in row)
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert all(f"## {name}" in page for name in tables) and "nothing of a GPU" in page
    assert not (tmp_path / "out" / "rates.json").exists()    # rates of a small size would mislead `xc plan`
    assert "| method | encoder |" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        run(gpu.main, gpu.__doc__, ["--out", str(tmp_path)])


def test_results_are_not_written_over(tmp_path):
    """The second command of the page that has both lost what the first had measured on a GPU."""
    (tmp_path / "gpu.json").write_text("{}")
    with pytest.raises(SystemExit, match="has results already"):
        run(gpu.main, gpu.__doc__, ["--device", "cpu", "--small", "--parts", "card", "--out", str(tmp_path)])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("gpu.json", "{}")]


def test_data_that_no_part_could_read_is_named_before_any_is_measured(tmp_path):
    """It was a line below the table of the presets, four minutes later."""
    words = ["--device", "cpu", "--parts", "card", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="holds no training queries"):
        run(gpu.main, gpu.__doc__, words)
    assert not (tmp_path / "out").exists()


def test_an_unknown_part_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        run(gpu.main, gpu.__doc__, ["--device", "cpu", "--parts", "card,stepz"])
    assert "no part 'stepz'" in capsys.readouterr().err


def test_a_part_that_fails_or_takes_too_long_keeps_its_rows_and_the_next_runs(tmp_path, scale):
    def slow(scale):
        yield {"n": 1}
        time.sleep(60)
        yield {"n": 2}

    def failing(scale):
        yield {"n": 3}
        raise RuntimeError("CUDA error: of this sort\nand more")

    results = Results(tmp_path, {"device": "none"})
    for rows, seconds in ((slow, 50), (failing, 5000), (lambda scale: iter([{"n": 4}]), 5000)):
        # as by fewer minutes: the part has a share of its seconds
        results.measure(Part(rows.__name__, "?", seconds, rows), scale, lambda seconds: gpu.within(seconds / 100))
    tables = json.loads((tmp_path / "gpu.json").read_text())["tables"]
    assert [table["rows"] for table in tables] == [[{"n": 1}], [{"n": 3}], [{"n": 4}]]
    assert [table["ended"] for table in tables[1:]] == ["RuntimeError: CUDA error: of this sort", "whole"]
    (seconds,) = re.findall(r"^stopped after (\d+\.\d) s$", tables[0]["ended"])
    assert .4 <= float(seconds) < 50
    assert "Not whole: RuntimeError" in (tmp_path / "gpu.md").read_text()


def test_rows_are_on_the_disk_as_they_come(tmp_path, scale):
    seen = []

    def rows(scale):
        yield {"n": 1}
        seen.append(json.loads((tmp_path / "gpu.json").read_text())["tables"][0])    # as a kill would leave it
        yield {"n": 2}

    Results(tmp_path, {}).measure(Part("rows", "?", 60, rows), scale, gpu.within)
    assert seen[0]["rows"] == [{"n": 1}] and seen[0]["ended"] == ""


def test_parts_keep_their_order():
    parts = [Part(name, "", 1, iter) for name in ("card", "steps", "rates")]
    assert [part.name for part in by_names(parts, "rates, card")] == ["card", "rates"]
    assert by_names(parts, "") == parts


def test_the_share_of_time_that_intervals_cover():
    assert union([(5, 7), (0, 2), (1, 3), (6, 6.5)]) == 5 and union([]) == 0


def test_what_makes_the_host_wait_is_counted_backward_passes_too():
    values, flags = torch.randn(6, requires_grad=True), torch.tensor([True, False] * 3)
    with HostWaits() as waits:
        (values[flags] * 2).sum().backward()
        torch.unique(torch.arange(3))
        float(values.detach().sum())
        values.detach()[torch.tensor([0, 2])].sum()
    assert waits.counts == {"index by flags": 1, "index_put by flags": 1, "_unique2": 1, "_local_scalar_dense": 1}
    count = torch.tensor(3.0)
    with HostWaits([count]) as waits:
        float(count)
    assert not waits.counts


@pytest.mark.parametrize(("name", "known"), [
    ("ngame", {"bincount"}),    # of the processor's path; a GPU has another
    ("depsl", set()), ("dpr", set()),
    ("unidec", {"_unique2"}), ("astra", {"_unique2", "nonzero"})])
def test_a_step_on_a_transformer_waits_for_nothing_else(name, known, scale):
    """One wait is left where texts are padded: transformers asks its mask whether it hides anything."""
    corpus = scale.synthetic("corpus", SMALL.corpus)
    stage = first_stage(name, str(scale.encoder("MiniLM-sized")), 16, {})
    bare = BareSteps(stage, corpus, mined_at_random(stage, corpus), 1)
    bare.step(0)
    with HostWaits(bare.numbers_of_steps()) as waits:
        bare.step(0)
    assert waits.counts.keys() - known <= {"_local_scalar_dense"}
    assert waits.counts["_local_scalar_dense"] <= 1


def test_a_schedule_is_cut_by_a_share_and_nothing_else_is():
    whole = resolve("astra", "minilm", {}).method
    cut = shortened(whole, .1)
    assert (cut.epochs, cut.refresh_from, cut.refresh_every, cut.warmup) == (8, 1, 1, 300)
    assert (cut.batch_size, cut.lr, cut.encoder, cut.hard) == (whole.batch_size, whole.lr, whole.encoder, whole.hard)
    assert shortened(whole, 1.0) == whole


def test_rates_of_a_gpu_are_those_that_are_its_own(tmp_path):
    file, rates = tmp_path / "rates.json", read_rates(RATES)
    own = {"64": {"train": 1e-6, "encode": 1e-7}, "384": {"train": 2e-6, "encode": 2e-7}}
    file.write_text(json.dumps({**rates, "cuda": {"astra": own}}))
    assert read_rates(file)["cuda"]["astra"] == own
    file.write_text(json.dumps({**rates, "cuda": {"astra": {**own, "64": {"train": 1e-6}}}}))
    with pytest.raises(ValueError, match="does not hold the rates"):
        read_rates(file)
