"""NGAME's modules: what batches are sampled by, and the length of classifiers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.toy import toy_config
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.ngame.stages import STAGE
from xcmodels.mining.clustering import balanced_kmeans
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.checkpoint import read_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["tas", "ngame mined"])
def test_what_is_mined_before_any_training_is_by_the_encoder_as_it_begins(name):
    """TAS: clusters of the first embeddings, for all epochs. ANCE: the first negatives, too, in random batches."""
    made, corpus = toy.trained(name), toy.trained(name).corpus
    stage = made.method.stages[0]
    first = stage.rounds[0]
    encoder = stage.encoder(stage.build(corpus, {})).eval()
    queries, labels = (encode_all(encoder, corpus.sides[side], view) for side, view in (
        ("train", QUERY), ("label", LABEL)))
    rows, mined = corpus.training_rows(), made.mined[first.name]
    if name == "tas":
        assert [(round_.first, round_.stop, round_.cluster_size) for round_ in stage.rounds] == [(0, 8, 64)]
        wanted = balanced_kmeans(queries[rows], 64, seed=seeds.key_of(stage.seed, first.name))
        assert np.array_equal(mined.clusters, wanted) and mined.negatives is None
        return
    assert mined.clusters is None and mined.negatives.shape == (len(queries), 8), "two an epoch, mined for four"
    for row in rows[:30]:
        own = {*corpus.positives["train"][row].tolist(), *corpus.filters["train"][row].tolist()}
        ranked = [label for label in np.argsort(-(labels @ queries[row]), kind="stable").tolist() if label not in own]
        assert mined.negatives[row].tolist() == ranked[:8]


def test_negatives_are_mined_by_the_index_that_was_set(monkeypatch):
    asked, config = list[str](), toy.VARIANTS["ngame mined"]
    monkeypatch.setattr("xcmodels.mining.refresh.mine", lambda *_, index, **__: asked.append(index) or Mined())
    settings = []
    for changed in (config, replace(config, index="grouped"), toy_config(index="grouped")):
        stage = toy.made_by("ngame", changed).stages[0]
        stage.mine({}, toy.trained("ngame mined").corpus, stage.rounds[0])
        settings.append(stage.settings)
    assert asked == ["auto", "grouped", "grouped"]
    assert settings[0] != settings[1], "what was mined by another index is another result"
    assert settings[2] == toy.made_by("ngame", toy_config()).stages[0].settings, "clusters need no index"


def test_mined_negatives_join_the_batch_of_their_query():
    """Two of a query's are in the pool of each of its batches, drawn anew, beside the positives that are drawn."""
    made = toy.trained("ngame mined")
    stage, corpus = made.method.stages[0], made.corpus
    round_ = stage.rounds[0]
    mined, rows = made.mined[round_.name], corpus.training_rows()[:6]
    drawn = set()
    for draw in range(8):
        batch = stage.batch(corpus, round_, mined, rows, seeds.generator(0, "draw", draw))
        pool = batch.sides["labels"].ids.tolist()
        allowed = {label for row in rows for label in [*corpus.train_positives[row], *mined.negatives[row]]}
        assert set(pool) <= allowed and len(pool) == len(set(pool))
        assert all(len(set(mined.negatives[row].tolist()) & set(pool)) >= 2 for row in rows)
        drawn.add(tuple(pool))
    assert len(drawn) > 1


def test_as_many_positives_of_a_query_are_drawn_as_are_asked_for():
    corpus, config = toy.trained("ngame").corpus, toy_config()
    rows = corpus.training_rows()[:40]
    stage = toy.made_by("ngame", replace(config, m1=replace(config.m1, positives=2))).stages[0]
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "draw"))
    pool, chosen = batch.sides["labels"].ids, batch.blocks["triplet"].chosen_positives
    for row, columns in zip(rows, chosen, strict=True):
        drawn = pool[columns[columns >= 0]].tolist()
        assert set(drawn) <= {*corpus.train_positives[row]} and len(set(drawn)) == len(drawn)
        assert len(drawn) == min(2, len(corpus.train_positives[row]))


@pytest.mark.parametrize("name", ["ngame mined", "tas"])
def test_negatives_are_mined_for_the_epochs_that_there_are(name):
    """From a supply for more epochs than come, what is drawn would be near nothing."""
    config = (toy.FAMILIES | toy.VARIANTS)[name]
    never = {"refresh_from": 0, "refresh_every": 10_000}
    config = replace(config, m1=replace(config.m1, mined=2, epochs=5, **never)) if name == "ngame mined" else replace(
        config, negatives=2, epochs=5, **never)
    assert [each.n_negatives for each in toy.made_by(name, config).stages[0].rounds] == [10]


@pytest.mark.parametrize(("name", "unit"), [("ngame", False), ("ngame unit", True)])
def test_classifiers_are_trained_and_served_at_unit_length_or_at_their_own(name, unit):
    made = toy.trained(name)
    stage = made.method.stages[-1]
    last = stage.rounds[-1].name
    vectors = made.mined[last].vectors
    model = read_model(stage, made.corpus, made.models[STAGE], vectors).eval()
    served = Retriever.load(made.retriever).indexes["labels"].vectors
    lengths = np.linalg.norm(served, axis=1)
    assert (np.abs(lengths - 1) < 1e-5).all() == unit
    rows = made.corpus.training_rows()[:5]
    queries = torch.from_numpy(vectors["queries"][rows])
    scores = model(queries, torch.arange(made.corpus.n_labels))
    np.testing.assert_allclose(scores.values.numpy(), queries.numpy() @ served.T, atol=1e-5)
