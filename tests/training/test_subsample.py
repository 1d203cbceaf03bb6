"""A sampled corpus against the one it comes from, pair by pair."""

import numpy as np
import pytest

from benchmarks.claims.subsample import sample
from tests.support.toy import toy_config, toy_corpus
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.label_branches import Branches
from xcmodels.methods.ngame.method import ngame
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import train_all


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("whole"), queries=300, labels=40, tests=80, validation=30)


def titles(corpus, name):
    return list(Texts.load(corpus.folder, f"{name}.title"))


def named(corpus, name, pairs, split):
    """Every pair of a split as (the query's tokens, the label's title), with repetitions."""
    labels, tokens = titles(corpus, "label"), corpus.sides[split].ragged
    return sorted((tuple(tokens[row].tolist()), labels[label]) for row in range(len(getattr(corpus, pairs)[split]))
                  for label in getattr(corpus, pairs)[split][row].tolist())


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_pair_of_the_drawn_labels_and_no_other(whole, tmp_path, split):
    small = sample(whole, tmp_path / "s", labels=15)
    drawn = set(titles(small, "label"))
    assert len(drawn) == small.n_labels == 15
    assert named(small, "s", "positives", split) == [pair for pair in named(whole, "w", "positives", split)
                                                     if pair[1] in drawn]
    assert (small.positives[split].lengths > 0).all()
    kept = {query for query, _ in named(small, "s", "positives", split)}
    assert named(small, "s", "filters", split) == [pair for pair in named(whole, "w", "filters", split)
                                                   if pair[1] in drawn and pair[0] in kept]


def test_labels_drawn_together_keep_the_labels_of_their_queries(tmp_path):
    """Three islands of ten labels each; a query has two labels of one island."""
    corpus = toy_corpus(tmp_path / "w", queries=300, labels=30, tests=20, validation=20)
    rng = np.random.default_rng(0)
    islands = [np.sort(10 * (row % 3) + rng.permutation(10)[:2]) for row in range(300)]
    corpus.positives["train"] = Ragged(np.arange(0, 601, 2), np.concatenate(islands).astype(np.int32))
    small = sample(corpus, tmp_path / "s", labels=10, together=True)
    drawn = {int(uid) // 10 for uid in (title.split("w")[0][1:] for title in titles(small, "label"))}
    assert len(drawn) == 1 and small.n_labels == 10 and small.n_queries == 100
    assert small.positives["train"].lengths.tolist() == [2] * 100
    more = sample(corpus, tmp_path / "m", labels=20, together=True)
    assert more.n_labels == 20 and more.n_queries == 200        # where an island ends another begins
    assert sample(corpus, tmp_path / "a", labels=99, together=True).n_labels == 30


def test_the_validation_split_stays_what_it_was(whole, tmp_path):
    small = sample(whole, tmp_path / "s", labels=15)
    held_out = {tuple(whole.sides["train"].ragged[row].tolist()) for row in whole.validation}
    rows = range(small.n_queries)
    assert [row for row in rows if tuple(small.sides["train"].ragged[row].tolist()) in held_out] \
        == small.validation.tolist() != []


def test_fewer_queries_and_label_texts_as_queries(whole, tmp_path):
    small = sample(whole, tmp_path / "s", labels=15, queries=50, augment=True)
    assert small.n_queries == 50 and len(small.sides["train"]) == 65 == len(small.positives["train"])
    assert [small.positives["train"][50 + label].tolist() for label in range(15)] == [[label] for label in range(15)]
    for label in range(15):
        assert np.array_equal(small.sides["train"].ragged[50 + label], small.sides["label"].ragged[label])
        assert np.array_equal(small.graphs["group"].edges["train"][50 + label],
                              small.graphs["group"].edges["label"][label])
    assert small.frequencies().sum() == small.positives["train"].offsets[50]
    texts = list(Texts.load(small.folder, "train.text"))
    side, tokenizer = small.sides["train"], small.tokenizer()
    assert [side.ragged[row][:side.titles[row]].tolist() for row in range(50)] == [
        tokenizer([text]).ids.tolist() for text in texts]


@pytest.mark.parametrize("augment", [False, True])
def test_rejected_labels_and_branches_come_along(tmp_path, augment):
    whole = toy_corpus(tmp_path / "w", queries=120, labels=20, tests=20, validation=10)
    rng = np.random.default_rng(0)
    whole.rejected = Ragged.of_pairs(np.arange(120), rng.integers(0, 20, 120, np.int32), 120)
    Branches.save(whole.folder, [("label:1", "label:0"), ("label:2", "label:1")])
    small = sample(whole, tmp_path / "s", labels=15, queries=50, augment=augment)
    drawn, kept = set(titles(small, "label")), {query for query, _ in named(small, "s", "positives", "train")}
    was, now = ([(tuple(corpus.sides["train"].ragged[row].tolist()), titles(corpus, "label")[label])
                 for row in range(corpus.n_queries) for label in corpus.rejected[row].tolist()]
                for corpus in (whole, small))
    assert sorted(now) == sorted(pair for pair in was if pair[0] in kept and pair[1] in drawn) != []
    assert len(small.rejected) == len(small.filters["train"]) == len(small.sides["train"])
    assert (Branches.load(small.folder).broader.values == Branches.load(whole.folder).broader.values).all()


def test_the_seed_decides(whole, tmp_path):
    one, again, other = (sample(whole, tmp_path / str(i), labels=15, seed=seed) for i, seed in enumerate((0, 0, 1)))
    assert titles(one, "label") == titles(again, "label") != titles(other, "label")


def test_more_labels_than_there_are(whole, tmp_path):
    assert sample(whole, tmp_path / "s", labels=1000).n_labels == (whole.frequencies() > 0).sum()


def test_a_method_trains_on_it_and_serves(whole, tmp_path):
    small = sample(Corpus(whole.folder), tmp_path / "s", labels=20)
    trial = train_all(small, ngame(toy_config()), tmp_path / "t")
    assert Retriever.load(trial.retriever).predict([titles(small, "label")[3]], 1)[0][0].id == 3


@pytest.mark.parametrize("augment", [False, True])
def test_pairs_keep_their_weights(tmp_path, augment):
    whole = toy_corpus(tmp_path / "w", queries=120, labels=20, tests=20, validation=10)
    truth = whole.positives["train"]
    whole.weights = (1 + np.arange(len(truth.values)) % 7).astype(np.float32)
    small = sample(whole, tmp_path / "s", labels=8, queries=40, augment=augment)
    labels = titles(whole, "label")
    weight_of = {(tuple(whole.sides["train"].ragged[row].tolist()), labels[label]): float(weight)
                 for row in range(whole.n_queries)
                 for label, weight in zip(truth[row].tolist(), Ragged(truth.offsets, whole.weights)[row], strict=True)}
    own, drawn = small.positives["train"], titles(small, "label")
    kept = Ragged(own.offsets, small.weights)
    wanted = np.array([weight_of[tuple(small.sides["train"].ragged[row].tolist()), drawn[label]]
                       for row in range(small.n_queries) for label in own[row].tolist()])
    np.testing.assert_allclose(small.weights[:len(wanted)], wanted / wanted.mean(), rtol=1e-6)
    assert [kept[row].tolist() for row in range(small.n_queries, len(own))] == [[1.0]] * (8 if augment else 0)
