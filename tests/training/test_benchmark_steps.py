"""The steps that benchmarks time are steps of training, and what a GPU's presets reach counts what training counts."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks import bench_loop
from benchmarks.bench_rates import training_rates
from benchmarks.bench_scale import epoch_and_refresh
from benchmarks.gpu.presets import accuracy
from benchmarks.gpu.steps import BareSteps
from benchmarks.measuring import cpu_config
from benchmarks.synthetic import CorpusShape, synthetic_corpus
from tests.support.toy import toy_config, toy_corpus, trained
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.judged_answers import JudgedAnswers
from xcmodels.method import Mined
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.training.checkpoint import read_model
from xcmodels.training.loop import validation_precision

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("toy") / "corpus")


def recorded(monkeypatch, kind):
    """Return a list that gets the round, the mining result, the rows and the generator of each batch of a stage."""
    calls, batch = [], kind.batch

    def record(self, corpus, *arguments):
        calls.append(arguments)
        return batch(self, corpus, *arguments)

    monkeypatch.setattr(kind, "batch", record)
    return calls


def test_bare_steps_are_those_of_the_loop(corpus, tmp_path, monkeypatch):
    """With as many rows in each, and in memory that is kept; bare steps did one hundredth more than the loop's."""
    stage, steps, kept, made = ngame(toy_config()).stages[0], 7, Mock(), recorded(monkeypatch, EncoderModule)
    monkeypatch.setattr(bench_loop, "STEPS", steps)
    monkeypatch.setattr(bench_loop, "keep_freed_memory", kept)
    bench_loop.bare_seconds(stage, corpus)
    assert kept.called
    bare = [rows.tolist() for _, _, rows, _ in made[:steps]]
    made.clear()
    bench_loop.loop_seconds(stage, corpus, str(tmp_path), steps)
    assert [rows.tolist() for _, _, rows, _ in made[:steps]] == bare
    assert len(corpus.training_rows()) % stage.plan.batch_size and len(bare[0]) < stage.plan.batch_size
    made.clear()
    BareSteps(stage, corpus, Mined(), steps)
    assert [rows.tolist() for _, _, rows, _ in made] == bare


def test_an_epoch_of_a_method_that_mines_nothing_is_measured_alone(tmp_path):
    """It was an error without a message, after the corpus of 1.3 million labels was made."""
    synthetic_corpus(tmp_path / "corpus", CorpusShape(400, 300, 3.0, 6.0, 300))
    found = epoch_and_refresh("dpr", tmp_path)
    assert found["epoch s"] > 0 and np.isnan(found["refresh s"]) and np.isnan(found["predicted refresh"])


@pytest.mark.parametrize("name", ["siamesexml", "ramen", "ngame", "astra"])
def test_rows_of_a_step_are_set_for_each_method(name):
    """Of some the row of the table was called by them, and had those of the preset."""
    assert bench_loop.named_stage(f"{name}.cpu.64")[1].plan.batch_size == 64


@pytest.mark.parametrize("name", ["unidec", "astra", "ngame"])
def test_an_epoch_is_told_and_measured_after_the_refreshes(name, tmp_path, monkeypatch):
    """With as many negatives as are mined; epochs before the first refresh have none, and take half as long."""
    stage = METHODS[name].make(cpu_config(name)).stages[0]
    made, last = recorded(monkeypatch, type(stage)), stage.rounds[-1]
    corpus = synthetic_corpus(tmp_path / "corpus", CorpusShape(400, 300, 3.0, 6.0, 300))
    training_rates(name, 16, corpus, tmp_path, 6)
    told = len(made)
    found = epoch_and_refresh(name, tmp_path)
    assert told and len(made) > told and found["predicted epoch"] > 0 and found["refresh s"] > 0
    for round_, mined, _, _ in made:
        assert round_.n_negatives == last.n_negatives and round_.index == last.index
        assert mined.negatives.shape == (400, last.n_negatives) if last.n_negatives else mined.negatives is None


def test_the_accuracy_of_a_preset_is_by_the_answers_that_training_judges():
    """Pairs that training shows the other way round counted, on WordNet a third of all."""
    made = trained("ngame")
    corpus = Corpus(made.corpus.folder)
    every_row = np.arange(len(corpus.filters["train"]))    # row i is label i modulo their number
    corpus.filters["train"] = Ragged.of_pairs(every_row, every_row % corpus.n_labels, len(every_row))
    stage, judged = made.method.stages[-1], JudgedAnswers.of(corpus)
    assert len(judged.truth) < corpus.positives["train"].lengths[corpus.validation].sum()
    model = read_model(stage, corpus, made.models[stage.name], made.vectors).eval()
    expected = validation_precision(stage, model, corpus, made.mined[stage.rounds[-1].name], judged)
    assert accuracy(replace(made, corpus=corpus))["P@1"] == pytest.approx(expected) != pytest.approx(0)
