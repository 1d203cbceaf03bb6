"""What is mined is checked against its contract before a round trains on it."""

from types import SimpleNamespace

import numpy as np
import pytest

from data_contracts.errors import ContractError
from tasks.core.step import StepContext, unwatched
from tasks.training import mining
from tasks.training.mining import mine
from tests.support.contracts import put
from xcmodels.method import Mined, Round


@pytest.fixture
def mine_step(corpus, tmp_path):
    """Run the mine step of a stage that mines what is given."""
    def texts(count):
        return [{"id": row, "uid": f"{row}", "title": "a", "content": ""} for row in range(count)]

    positives = corpus.positives["train"]
    tables = put(tmp_path / "tables", {
        "queries.train": texts(len(positives)), "labels": texts(corpus.n_labels), "positives.train": [
            {"query": row, "label": label, "relevance": 1.0} for row in range(len(positives))
            for label in positives[row].tolist()]})
    for folder in ("vectors", "scratch"):
        (tmp_path / folder).mkdir()
    for side, count in (("queries", len(corpus.sides["train"])), ("labels", corpus.n_labels)):
        np.save(tmp_path / "vectors" / f"{side}.npy", np.ones((count, 4), np.float32))

    def run(number, mined):
        (out := tmp_path / f"out{number}").mkdir()
        workers = SimpleNamespace(address=None, is_serial=True)
        mine(SimpleNamespace(seed=0, mine=lambda *_: mined), Round("joint", 1, 2, 4, cluster_size=4, n_negatives=1),
             StepContext(out, {"corpus": corpus.folder, "tables": tables, "vectors": tmp_path / "vectors"},
                         tmp_path / "scratch", tmp_path, workers, lambda line: None, unwatched))
        return out

    return run


@pytest.mark.parametrize("values", [1 << 28, 7], ids=["one shard", "a few rows a shard"])
def test_a_mined_negative_that_is_a_positive_stops_the_run(corpus, mine_step, monkeypatch, values):
    monkeypatch.setattr(mining, "SHARD_VALUES", values)
    rows, positives = corpus.training_rows(), corpus.positives["train"]
    negatives = np.full((len(corpus.sides["train"]), 1), -1, np.int32)
    negatives[rows, 0] = [next(label for label in range(60) if label not in positives[row]) for row in rows.tolist()]
    assert np.array_equal(np.load(mine_step(0, Mined(negatives=negatives)) / "negatives.npy"), negatives)
    negatives[rows[7], 0] = positives[int(rows[7])][0]
    with pytest.raises(ContractError, match="negative_is_positive"):
        mine_step(1, Mined(negatives=negatives))


def test_a_cluster_of_no_number_stops_the_run(corpus, mine_step):
    clusters = (np.arange(len(corpus.training_rows())) // 4).astype(np.int32)
    assert np.array_equal(np.load(mine_step(0, Mined(clusters)) / "clusters.npy"), clusters)
    clusters[7] = -1
    with pytest.raises(ContractError, match="cluster_range"):
        mine_step(1, Mined(clusters))
