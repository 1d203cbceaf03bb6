"""The evaluate step measures what is served, and more on a sample of the test queries."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tasks.evaluation import evaluate
from tests.support import oracles
from tests.support.toy import trained
from xcmodels import metrics
from xcmodels.data.corpus import Ragged
from xcmodels.data.propensity import propensity
from xcmodels.nn.encoders import QUERY, encode_all
from xcmodels.retrieval import ranker as ranking
from xcmodels.retrieval.ranker import Ranker, predict


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


@pytest.fixture
def measured(toy, tmp_path):
    """Evaluate the toy's retriever; return the folder and the metrics."""
    context = SimpleNamespace(inputs={"corpus": toy.corpus.folder, "retriever": toy.retriever}, out=tmp_path,
                              say=lambda line: None)
    evaluate.evaluate(0, context)
    return tmp_path, json.loads((tmp_path / "metrics.json").read_text())


def test_precision_is_of_the_labels_that_a_user_is_served(toy, measured):
    corpus, ranker, (folder, found) = toy.corpus, Ranker(toy.retriever), measured
    kept, hits, counted = np.load(folder / "predictions.npy"), 0, 0
    assert kept.shape == (len(corpus.sides["test"]), 10)
    for row in range(len(kept)):
        filtered, truth = corpus.filters["test"][row].tolist(), set(corpus.positives["test"][row].tolist())
        served, _ = ranker.search(corpus.sides["test"].tokens(np.array([row])), 10 + len(filtered))
        assert kept[row].tolist() == [label for label in served[0].tolist() if label not in filtered][:10]
        truth -= set(filtered)
        hits, counted = hits + len(truth.intersection(kept[row, :5].tolist())), counted + bool(truth)
    assert found["P/5"] == pytest.approx(100 * hits / (5 * counted))
    assert found["points"] == counted


def test_calibration_interval_and_deciles_are_of_the_predicted_labels(toy, measured):
    corpus, (folder, found), frequencies = toy.corpus, measured, toy.corpus.frequencies()
    kept, scores, sure = (np.load(folder / f"{name}.npy") for name in ("predictions", "scores", "confidences"))
    np.testing.assert_allclose(sure, Ranker(toy.retriever).calibration(scores), atol=1e-6)
    truth = [set(corpus.positives["test"][row].tolist()) - set(corpus.filters["test"][row].tolist())
             for row in range(len(kept))]
    judged = [row for row, labels in enumerate(truth) if labels]
    right = np.array([[label in truth[row] for label in kept[row, :5].tolist()] for row in judged])
    error = oracles.calibration_error(sure[judged, :5].ravel(), right.ravel(), 15)
    assert found["calibration/error"] == pytest.approx(error, abs=1e-3)
    assert (found["P/1/low"], found["P/1/high"]) == metrics.mean_interval(right[:, 0])
    deciles = json.loads((folder / "deciles.json").read_text())
    for name in ("P/5", "PSP/5"):
        assert sum(decile[name] for decile in deciles) == pytest.approx(found[name])
    assert (deciles[0]["min_frequency"], deciles[-1]["max_frequency"]) == (min(frequencies), max(frequencies))


def test_deep_recall_and_scores_alone_are_of_a_sample(toy, monkeypatch, tmp_path, measured):
    corpus, ranker, (_, whole) = toy.corpus, Ranker(toy.retriever), measured
    truth, filters = corpus.positives["test"], corpus.filters["test"]
    inverse = 1 / propensity(corpus.frequencies(), corpus.n_queries, *corpus.facts["propensity"])
    every = metrics.evaluate(predict(ranker, corpus, 100)[0], truth, filters, inverse, recall_ks=(100,))
    assert whole["recall/100"] == pytest.approx(every["recall/100"])
    assert whole["points/alone"] == whole["points"]
    monkeypatch.setattr(evaluate, "SAMPLE_RANKED", 20)
    out = tmp_path / "sampled"
    out.mkdir()
    evaluate.evaluate(0, SimpleNamespace(inputs={"corpus": corpus.folder, "retriever": toy.retriever}, out=out,
                                         say=lambda line: None))
    sampled = json.loads((out / "metrics.json").read_text())
    alone = {name for name in whole if "/by " in name} | {"recall/100", "points/alone"}
    assert sampled["points/alone"] == 20 and alone <= sampled.keys()
    assert {name: value for name, value in sampled.items() if name not in alone} == {
        name: value for name, value in whole.items() if name not in alone}
    assert any(sampled[name] != whole[name] for name in alone if "/by " in name)


def test_known_vectors_are_not_made_again(toy, monkeypatch):
    corpus, ranker, rows = toy.corpus, Ranker(toy.retriever), np.array([7, 3, 90])
    queries = encode_all(ranker.encoder, corpus.sides["test"], QUERY, rows)
    wanted = predict(ranker, corpus, 5, rows)
    monkeypatch.setattr(Ranker, "embed", lambda *given: pytest.fail("the texts are encoded"))
    ids, scores = predict(ranker, corpus, 5, rows, queries)
    assert ids.tolist() == wanted[0].tolist()
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5)
    others, _ = predict(ranker, corpus, 5, rows, queries[::-1])
    assert others.tolist() != wanted[0].tolist(), "by the vectors given"


def test_one_query_with_many_filter_pairs_makes_no_room_for_as_many_of_each(monkeypatch):
    """Label i + j is the j-th best of query i; query 7 has 40 filter pairs, all but it have one, the best."""
    lengths = np.where(np.arange(300) == 7, 40, 1)
    filters = Ragged(np.concatenate([[0], lengths.cumsum()]), np.concatenate(
        [np.arange(row, row + length) for row, length in enumerate(lengths)]))
    corpus = SimpleNamespace(sides={"test": range(300)}, filters={"test": filters})
    ranker = SimpleNamespace(search_side=lambda side, k, rows, queries: (
        rows[:, None] + np.arange(k), np.tile(-np.arange(k, dtype=np.float32), (len(rows), 1))))
    sizes, drop = list[int](), ranking.drop_filtered
    monkeypatch.setattr(ranking, "drop_filtered", lambda ids, *given: sizes.append(ids.size) or drop(ids, *given))
    ids, scores = predict(ranker, corpus, 5)
    assert ids.tolist() == (np.arange(300)[:, None] + lengths[:, None] + np.arange(5)).tolist()
    assert scores.tolist() == (-lengths[:, None] - np.arange(5)).tolist()
    assert sum(sizes) == 299 * 6 + 45
