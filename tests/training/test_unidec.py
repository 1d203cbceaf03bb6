"""UniDEC and its relatives: the losses as the paper writes them, what a pool holds, what is mined and served."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.support import oracles, toy
from tests.support.toy import FAMILIES, UNIDEC, VARIANTS
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.presets import PRESETS, resolve
from xcmodels.methods.unidec.config import UnidecConfig
from xcmodels.methods.unidec.method import unidec
from xcmodels.methods.unidec.stages import UnidecStage
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving_config import CLASSIFIER, FusionConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained():
    return toy.trained("unidec")


@pytest.mark.parametrize("name", ["unidec", "depsl", *(f"unidec {name}" for name in (
    "supcon", "bce", "bce alone", "classifier", "tanh"))])
def test_the_loss_is_the_papers(corpus, trained, name):
    """L = lambda L_D + (1 - lambda) L_C, each half q2l and half l2q (sections 3.2, 3.3), by loops over pairs."""
    config = replace((FAMILIES | VARIANTS)[name], dropout=0.0)
    stage = UnidecStage(config)
    model = stage.build(corpus, {})
    stage.begin(model, corpus, None)
    round_ = list(trained.rounds.values())[-1]
    rows = corpus.training_rows()[:24]
    batch = stage.batch(corpus, round_, trained.mined[round_.name], rows, seeds.generator(0, "loss"))
    pool = batch.sides["labels"].ids
    truth, filtered = (np.array([[int(label) in pairs["train"][row] for label in pool] for row in rows])
                       for pairs in (corpus.positives, corpus.filters))
    backbone = model.encoder.backbone
    x, z = backbone(batch.sides["queries"].tokens, "query"), backbone(batch.sides["labels"].tokens, "label")
    wanted, decoupled, share = {}, config.loss == "decoupled", config.symmetric

    def both(scores):
        one = oracles.softmax(scores, truth, ~filtered, decoupled)
        other = oracles.softmax(scores.T, truth.T, ~filtered.T, decoupled) if share else 0.0
        return (1 - share) * one + share * other

    if config.balance > 0:
        heads = model.encoder.heads
        scores = F.normalize(heads["query"](x), dim=1) @ F.normalize(heads["label"](z), dim=1).T / config.temperature
        wanted["encoder"] = config.balance * both(scores)
    if config.balance < 1:
        scores = model.encoder.heads[CLASSIFIER](x) @ model.labels.weight[pool].T
        if config.softmax:
            wanted["classifier"] = (1 - config.balance) * config.softmax * both(scores / config.temperature)
        if config.bce:
            right = (truth & ~filtered).sum() / (~filtered).sum()
            scores = scores + np.log(right / (1 - right))      # the share of positives, where a score is 0
            terms = [-torch.log(torch.sigmoid(scores[i][j] if truth[i, j] else -scores[i][j]))
                     for i in range(len(rows)) for j in range(len(pool)) if not filtered[i, j]]
            wanted["bce"] = (1 - config.balance) * config.bce * sum(terms) / len(rows)
    mine = stage.loss(model.train(), batch)
    assert mine.keys() == wanted.keys()
    for term, value in wanted.items():
        torch.testing.assert_close(mine[term], value, rtol=1e-4, atol=1e-5)


def test_a_pool_holds_some_positives_and_some_mined_negatives(corpus, trained):
    rows = corpus.training_rows()[:40]
    last = list(trained.rounds.values())[-1]
    mined = trained.mined[last.name]
    batch = trained.method.stages[0].batch(corpus, last, mined, rows, seeds.generator(0, "pool"))
    pool = batch.sides["labels"].ids.tolist()
    most = sum(min(len(corpus.positives["train"][row]), 2) + 3 for row in rows)
    assert pool == sorted(set(pool)) and len(pool) <= most
    source = {int(label) for row in rows for label in [*corpus.positives["train"][row], *mined.negatives[row]]}
    assert set(pool) <= source
    block = batch.blocks["pool"]
    for r, row in enumerate(rows):
        assert block.positives[r].tolist() == [label in corpus.positives["train"][row] for label in pool]
        assert (block.weights[r] > 0).tolist() == [label not in corpus.filters["train"][row] for label in pool]
    # pick-some-labels: clusters bring a query more of its positives than the two that were drawn for it
    alone = np.minimum(corpus.positives["train"].lengths[rows], 2)
    assert (block.positives.sum(1).numpy() >= alone).all()
    assert (block.positives.sum(1).numpy() > 2).any()


def test_of_dpr_a_querys_own_positive_counts_and_its_others_are_ignored(corpus):
    stage = UnidecStage(VARIANTS["dpr"])
    rows = corpus.training_rows()[:40]
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "own"))
    block, pool = batch.blocks["pool"], batch.sides["labels"].ids.numpy()
    positives = np.array([np.isin(pool, corpus.positives["train"][row]) for row in rows])
    assert ((positives & (block.weights.numpy() > 0)).sum(1) == 1).all() and (positives.sum(1) > 1).any()


def test_every_label_is_in_every_pool(corpus):
    stage = UnidecStage(replace(UNIDEC, every_label=True))
    batch = stage.batch(corpus, stage.rounds[0], Mined(), np.array([3, 5]), seeds.generator(0, "all"))
    assert batch.sides["labels"].ids.tolist() == list(range(corpus.n_labels))


def test_mined_negatives_are_the_nearest_that_are_none_of_the_querys(corpus, trained):
    last = list(trained.rounds.values())[-1]
    before = trained.method.stages[0].build(corpus, {})
    before.load_state_dict(load_file(trained.starts[last.name] / "model.safetensors"))
    known = {side: make() for side, make in trained.method.stages[0].vectors(before, corpus).items()}
    negatives = trained.mined[last.name].negatives
    assert negatives.shape == (600, 6)
    for row in corpus.training_rows()[:50]:
        order = np.argsort(-(known["labels"] @ known["queries"][row]), kind="stable")
        excluded = {*corpus.positives["train"][row].tolist(), *corpus.filters["train"][row].tolist()}
        assert negatives[row].tolist() == [label for label in order.tolist() if label not in excluded][:6]
    assert (negatives[corpus.validation] == -1).all(), "nothing is mined for queries that are held out"


def test_presets_hold_table_2():
    """A batch is a cluster; DEPSL's row of the largest data set is the one without the loss of labels over queries."""
    rows = [resolve("unidec", name, {}).method for name in ("lf-amazon-131k", "lf-wikiseealso-320k")]
    assert [(row.batch_size, row.cluster_size, row.cluster_max) for row in rows] == [(576,) * 3, (677,) * 3]
    assert [resolve("depsl", name, {}).method.symmetric for name in ("lf-wikipedia-500k", "lf-amazontitles-1.3m")] \
        == [0.5, 0.0]


def test_the_rounds_of_the_relatives():
    def shape(name):
        return [(r.first, r.stop, r.cluster_size, r.n_negatives) for r in unidec((FAMILIES | VARIANTS)[name]).rounds]

    assert shape("unidec") == [(0, 4, 0, 0), (4, 6, 4, 6), (6, 8, 8, 6)]
    assert shape("dpr") == [(0, 8, 0, 0)]
    assert shape("tas") == [(0, 8, 64, 0)]
    assert shape("ance") == [(0, 4, 0, 0), (4, 6, 0, 12), (6, 8, 0, 12)]


def test_fused_scores_are_the_sum_of_the_tree_and_both_halves(corpus, trained, tmp_path):
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    measured = unidec(VARIANTS["unidec fused"]).build_retriever(corpus, newest, {}, tmp_path)
    assert measured["relevant"] > 0
    retriever = Retriever.load(tmp_path)
    tokens = retriever.tokenizer(["l3w1 l3w0"], ["l3w2"])
    query = retriever.embed(tokens)
    z, w = retriever.indexes["labels"].vectors[:, :32], retriever.indexes["labels"].vectors[:, 32:]
    assert np.array_equal(retriever.scorer.terms["encoder"].matrix, z)
    assert np.array_equal(retriever.scorer.terms["classifier"].matrix, w)
    ids, scores = retriever.search(tokens, 5)
    similar, classified = query[0, :32] @ z.T, query[0, 32:] @ w.T
    seen = np.stack([similar, classified, corpus.frequencies()], axis=1).astype(np.float32)
    wanted = retriever.scorer.trees.predict(seen) + similar + classified
    assert scores[0] == pytest.approx(wanted[ids[0]], abs=1e-5)
    assert ids[0, 0] == 3


def test_classifiers_at_the_length_they_learned(corpus, trained, tmp_path):
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    unidec(replace(UNIDEC, serve="classifier", unit=False)).build_retriever(corpus, newest, {}, tmp_path)
    weight = load_file(newest["joint"] / "model.safetensors")["labels.weight"]
    held = Retriever.load(tmp_path).indexes["labels"].vectors
    assert np.array_equal(held, weight.numpy())
    assert np.ptp(np.linalg.norm(held, axis=1)) > 0.05


@pytest.mark.parametrize("changed", [{"unit": False}, {"fusion": FusionConfig(depth=3)}])
def test_what_is_served_does_not_train_again(changed):
    one, other = unidec(UNIDEC), unidec(replace(UNIDEC, **changed))
    assert one.stages[0].settings == other.stages[0].settings
    assert one.build_retriever.settings != other.build_retriever.settings


@pytest.mark.parametrize("method", ["unidec", "depsl", "dpr", "tas", "ance", "dexml"])
def test_every_preset_resolves(method):
    for preset in PRESETS[method]:
        made = resolve(method, preset, {"seed": "3"})
        assert isinstance(made.method, UnidecConfig) and made.seed == 3
    assert resolve(method, list(PRESETS[method])[-1], {}).method.encoder.kind == "transformer"
