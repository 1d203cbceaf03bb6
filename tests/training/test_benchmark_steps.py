"""The steps that benchmarks time are steps of training."""

from unittest.mock import Mock

import pytest

from benchmarks import bench_loop
from benchmarks.gpu.steps import Bare
from tests.support.toy import toy_config, toy_corpus
from xcmodels.method import Mined
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame_m1 import EncoderModule

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("toy") / "corpus")


@pytest.fixture
def made(monkeypatch):
    """The round, the mining result and the rows of each batch that is made."""
    calls, batch = [], EncoderModule.batch

    def recorded(self, corpus, *arguments):
        calls.append(arguments)
        return batch(self, corpus, *arguments)

    monkeypatch.setattr(EncoderModule, "batch", recorded)
    return calls


def test_bare_steps_are_those_of_the_loop(corpus, made, tmp_path, monkeypatch):
    """With as many rows in each, and in memory that is kept; bare steps did one hundredth more than the loop's."""
    stage, steps, kept = ngame(toy_config()).stages[0], 7, Mock()
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
    Bare(stage, corpus, Mined(), steps)
    assert [rows.tolist() for _, _, rows, _ in made] == bare
