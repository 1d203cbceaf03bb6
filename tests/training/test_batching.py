"""Orders of rows and blocks of pairs against loops over the label matrix."""

from copy import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.support.toy import toy_corpus, weighted
from xcmodels.data import seeds
from xcmodels.data.batching import (
    Batch,
    BatchSide,
    Block,
    epoch_order,
    label_block,
    membership,
    pooled_block,
    sample_negatives,
    sample_positive,
    sample_positives,
    shortlist_block,
)
from xcmodels.data.corpus import Ragged
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.centroids import queries_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("corpus"), queries=120, labels=20, tests=20, validation=15, augment=True)


def ragged(rows):
    return Ragged(np.cumsum([0] + [len(row) for row in rows]), np.array([x for row in rows for x in row], np.int32))


@pytest.mark.parametrize("seed", range(6))
def test_membership_equals_a_loop(seed):
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.permutation(30)[: rng.integers(0, 7)]).tolist() for _ in range(25)]
    asked, pool = rng.integers(0, 25, 12), np.sort(rng.permutation(30)[: rng.integers(1, 20)])
    wanted = [[int(label) in rows[row] for label in pool] for row in asked]
    assert membership(ragged(rows), asked, pool).tolist() == wanted


def test_membership_of_nothing():
    some = ragged([[3], [], [29]])
    assert membership(some, np.array([0, 1]), np.array([], np.int64)).shape == (2, 0)
    assert not membership(some, np.array([1]), np.array([3, 29])).any()
    assert membership(some, np.array([], np.int64), np.array([3])).shape == (0, 1)
    assert not membership(some, np.array([2]), np.array([1, 2])).any()     # past the pool's last label


def expected_block(corpus, rows, chosen, pool):
    positives = [[label in corpus.positives["train"][row].tolist() for label in pool] for row in rows]
    weights = []
    for row, picked in zip(rows, chosen, strict=True):
        true, banned = corpus.positives["train"][row].tolist(), corpus.filters["train"][row].tolist()
        weights.append([1.0 if label in picked else 0.0 if label in true or label in banned else 1.0
                        for label in pool])
    return positives, weights


@pytest.mark.parametrize("seed", range(4))
def test_a_pooled_block_equals_a_loop_over_pairs(corpus, seed):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(corpus.positives["train"]))[:50]
    assert (rows >= corpus.n_queries).any()            # label texts added as queries: no filter speaks of them
    for chosen in (sample_positive(corpus.positives["train"], rows, rng)[:, None], two_of_each(corpus, rows)):
        pool = np.unique(chosen[chosen >= 0])
        block = pooled_block(corpus, rows, pool, chosen)
        positives, weights = expected_block(corpus, rows, chosen.tolist(), pool.tolist())
        assert block.positives.tolist() == positives
        assert block.weights.tolist() == weights
        assert [sorted(pool[place] for place in row if place >= 0) for row in block.chosen_positives.tolist()] == [
            sorted(label for label, true, weight in zip(pool, *pair, strict=True) if true and weight)
            for pair in zip(positives, weights, strict=True)]
        assert (block.rows, block.cols, block.columns) == ("queries", "labels", None)


def two_of_each(corpus, rows):
    chosen = np.full((len(rows), 2), -1)
    for i, row in enumerate(rows):
        first = corpus.positives["train"][row][:2]
        chosen[i, :len(first)] = first
    return chosen


def test_what_is_neither_pulled_nor_pushed(corpus):
    """Filter pairs and positives that were not drawn have weight 0; every drawn positive and true negative has 1."""
    rows = np.arange(len(corpus.positives["train"]))
    chosen = sample_positive(corpus.positives["train"], rows, np.random.default_rng(0))[:, None]
    pool = np.arange(corpus.n_labels)
    block = pooled_block(corpus, rows, pool, chosen)
    filtered = [(row, label) for row in range(corpus.n_queries) for label in corpus.filters["train"][row].tolist()]
    assert len(filtered) > 10
    assert all(block.weights[pair] == 0 for pair in filtered)
    unsampled = [(row, label) for row in rows for label in corpus.positives["train"][row] if label != chosen[row, 0]]
    assert len(unsampled) > 50
    assert all(block.weights[pair] == 0 and block.positives[pair] for pair in unsampled)
    zero = int((block.weights == 0).sum())
    assert zero == len(filtered) + len(unsampled)
    assert ((block.weights > 0) & block.positives).sum(1).tolist() == [1] * len(rows)


def test_only_augmented_rows(corpus):
    rows = corpus.n_queries + np.array([0, 7, 19])
    block = pooled_block(corpus, rows, np.array([0, 7, 19]))
    assert torch.equal(block.positives, torch.eye(3) > 0)
    assert (block.weights == 1).all()


def test_without_a_choice_every_positive_of_the_pool_is_pulled(corpus):
    rows, pool = np.arange(40), np.arange(0, corpus.n_labels, 2)
    block = pooled_block(corpus, rows, pool)
    for i, row in enumerate(rows):
        true, banned = corpus.positives["train"][row].tolist(), corpus.filters["train"][row].tolist()
        assert block.positives[i].tolist() == [label in true for label in pool]
        assert (block.weights[i] > 0).tolist() == [label not in banned for label in pool]


@pytest.mark.parametrize("most", [1, 2, 9])
def test_some_positives_of_each_row(corpus, most):
    positives, rows = corpus.positives["train"], np.array([5, 3, 3, 60, 0])
    drawn = []
    for seed in range(200):
        labels, lengths = sample_positives(positives, rows, most, np.random.default_rng(seed))
        drawn.append(labels)
        assert lengths.tolist() == np.minimum(positives.lengths[rows], most).tolist()
        ends = np.cumsum(np.minimum(positives.lengths[rows], most))
        for part, row in zip(np.split(labels, ends[:-1]), rows, strict=True):
            assert len(set(part.tolist())) == len(part) and set(part.tolist()) <= set(positives[row].tolist())
        assert len(labels) == np.minimum(positives.lengths[rows], most).sum()
    longest = int(np.argmax(positives.lengths[rows]))
    start = int(np.minimum(positives.lengths[rows], most)[:longest].sum())
    first = np.bincount([positives[rows[longest]].tolist().index(labels[start]) for labels in drawn])
    assert first.min() > 200 / positives.lengths[rows].max() / 2, "every positive is drawn about as often"


def test_some_columns_of_each_row():
    matrix = np.array([[4, 7, 9, 1], [3, -1, 2, -1], [-1, -1, -1, -1]])
    seen = {0: set(), 1: set()}
    for seed in range(60):
        drawn = sample_negatives(matrix, 2, np.random.default_rng(seed)).tolist()
        assert len(drawn) == 4 and len(set(drawn[:2])) == 2
        seen[0] |= set(drawn[:2])
        seen[1] |= set(drawn[2:])
    assert seen == {0: {4, 7, 9, 1}, 1: {3, 2}}


@pytest.mark.parametrize(("n", "clusters"), [(100, 10), (37, 9), (1, 1), (50, 50), (40, 1)])
def test_clustered_order_keeps_clusters_together(n, clusters):
    rng = np.random.default_rng(n)
    rows = rng.permutation(1000)[:n]
    of = rng.permutation(np.arange(n) % clusters).astype(np.int32)
    order = epoch_order(rows, of, np.random.default_rng(1))
    assert sorted(order) == sorted(rows)
    cluster = dict(zip(rows.tolist(), of.tolist(), strict=True))
    seen = [cluster[row] for row in order.tolist()]
    assert sum(a != b for a, b in pairwise(seen)) == clusters - 1


def test_clustered_order_shuffles_clusters_and_members():
    rows, of = np.arange(60), np.repeat(np.arange(12), 5)
    orders = [epoch_order(rows, of, np.random.default_rng(seed)) for seed in range(40)]
    assert np.array_equal(orders[0], epoch_order(rows, of, np.random.default_rng(0)))
    assert len({tuple(order // 5) for order in orders}) == 40
    assert {int(order[0] // 5) for order in orders} > set(range(8))
    inside = {tuple(order[order // 5 == 3]) for order in orders}
    assert len(inside) > 25


def test_orders_of_nothing():
    none = np.array([], np.int64)
    assert len(epoch_order(none, none, np.random.default_rng(0))) == 0
    assert len(epoch_order(none, None, np.random.default_rng(0))) == 0


def test_an_epoch_without_clusters_is_a_permutation():
    rows = np.array([5, 9, 2, 30])
    assert sorted(epoch_order(rows, None, np.random.default_rng(0))) == [2, 5, 9, 30]


def test_sampled_positives_are_positives_uniformly_drawn(corpus):
    positives = corpus.positives["train"]
    rows = np.arange(40)
    rng = np.random.default_rng(0)
    drawn = np.stack([sample_positive(positives, rows, rng) for _ in range(3000)], axis=1)
    for row, labels in zip(rows, drawn, strict=True):
        values, counts = np.unique(labels, return_counts=True)
        assert values.tolist() == positives[row].tolist()
        assert abs(counts / 3000 - 1 / len(values)).max() < 0.05


def test_a_batch_moves_whole():
    tokens = Tokens(torch.tensor([1]), torch.tensor([0, 1]), torch.tensor([1]))
    batch = Batch({"queries": BatchSide(torch.tensor([3]), tokens=tokens),
                   "labels": BatchSide(torch.tensor([0]), vectors=torch.ones(1, 2))},
                  {"triplet": Block("queries", "labels", torch.ones(1, 1) > 0, torch.ones(1, 1)),
                   "shortlist": Block("queries", "labels", torch.ones(1, 1) > 0, None, torch.tensor([[0]]))})
    moved = batch.to(torch.device("meta"))
    assert moved.sides["queries"].ids.is_meta and moved.sides["queries"].tokens.ids.is_meta
    assert moved.sides["labels"].vectors.is_meta
    assert moved.sides["labels"].tokens is None
    assert moved.blocks["triplet"].weights.is_meta
    assert moved.blocks["shortlist"].columns.is_meta
    assert moved.blocks["shortlist"].weights is None
    tensors = []
    batch.map(lambda tensor: tensors.append(tensor) or tensor)
    assert len(tensors) == 10    # each is pinned, and then copied while the GPU computes


def test_the_data_weighs_positives_in_every_block(corpus):
    """A block of each kind has the weights that it has without, times those of the pairs that are positives."""
    truth = corpus.positives["train"]
    made = weighted(corpus, np.random.default_rng(3).uniform(0.1, 4.0, len(truth.values)))
    pairs = zip(np.repeat(np.arange(len(truth)), truth.lengths).tolist(), truth.values.tolist(), strict=True)
    worth = dict(zip(pairs, made.weights.tolist(), strict=True))
    rng, rows = np.random.default_rng(0), corpus.training_rows()[::2]
    pool, chosen = np.arange(corpus.n_labels), two_of_each(corpus, rows)
    none = np.empty((len(rows), 0), np.int32)
    labels = np.flatnonzero(queries_of(corpus, False).lengths)
    queries = np.array([queries_of(corpus, False)[label][0] for label in labels])
    makers = {
        "pool": lambda of: pooled_block(of, rows, pool),
        "chosen": lambda of: pooled_block(of, rows, pool, chosen),
        "shortlist": lambda of: shortlist_block(of, rows, 2, none, seeds.generator(0, "draw")),
        "labels": lambda of: label_block(of, labels, queries)}
    for name, maker in makers.items():
        alike, block = maker(corpus), maker(made)
        assert torch.equal(alike.positives, block.positives)
        for r, c in rng.permutation(alike.weights.nonzero().numpy())[:400].tolist():
            pair = ((int(queries[c]), int(labels[r])) if name == "labels" else
                    (int(rows[r]), int(block.columns[r, c]) if name == "shortlist" else c))
            wanted = float(alike.weights[r, c]) * (worth[pair] if alike.positives[r, c] else 1.0)
            assert float(block.weights[r, c]) == pytest.approx(wanted), (name, pair)
        assert torch.equal(alike.weights == 0, block.weights == 0)


def test_a_pair_to_be_filtered_is_pulled_by_nothing(corpus):
    """Positives that are filter pairs as well: in no batch of any kind, no centroid and no draw."""
    made = copy(corpus)
    vars(made).pop("train_positives", None)
    rows = [row for row in corpus.training_rows().tolist() if len(corpus.positives["train"][row]) > 1][:40]
    banned = {(row, int(corpus.positives["train"][row][0])) for row in rows}
    pairs = np.array([*banned, *((row, label) for row in range(corpus.n_queries)
                                 for label in corpus.filters["train"][row].tolist())])
    made.filters = {**corpus.filters, "train": Ragged.of_pairs(pairs[:, 0], pairs[:, 1], len(corpus.sides["train"]))}
    assert [(row, label) for row in rows for label in made.train_positives[row].tolist()] == [
        (row, label) for row in rows for label in corpus.positives["train"][row].tolist()[1:]]
    at, rng = np.array(rows), seeds.generator(0, "filters")
    own = shortlist_block(made, at, 99, np.empty((len(at), 0), np.int32), rng)
    held = {(rows[r], int(own.columns[r, c])) for r, c in own.weights.nonzero().tolist()}
    assert held == {(row, label) for row in rows for label in made.train_positives[row].tolist()}
    assert not banned & {(row, label) for label, of in enumerate(queries_of(made, False)) for row in of.tolist()}
    drawn = sample_positive(made.train_positives, at, rng)
    block = pooled_block(made, at, np.unique(drawn))
    for r, label in enumerate(drawn.tolist()):
        assert (rows[r], label) not in banned and block.weights[r, np.unique(drawn).tolist().index(label)]
    gone = copy(made)
    vars(gone).pop("train_positives")
    truth = corpus.positives["train"]
    of_queries = np.arange(len(truth.values)) < truth.offsets[corpus.n_queries]
    gone.filters = {**corpus.filters, "train": truth.where(of_queries)}
    assert (gone.training_rows() >= corpus.n_queries).all(), "a query with nothing to be pulled to is not trained on"
