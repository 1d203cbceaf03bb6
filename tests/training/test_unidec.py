"""UniDEC and its relatives: the losses as the paper writes them, what a pool holds, resuming, the planted labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.support import oracles
from tests.support.toy import ends_the_same_when_stopped, explains_its_answers, precision
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.presets import PRESETS, resolve
from xcmodels.methods.unidec.config import UnidecConfig
from xcmodels.methods.unidec.method import unidec
from xcmodels.methods.unidec.stages import JointStage
from xcmodels.nn.backbones import EncoderConfig
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving import CLASSIFIER, FusionConfig
from xcmodels.training.local_run import train_all

pytestmark = pytest.mark.usefixtures("one_thread")
TOY = UnidecConfig(epochs=8, batch_size=64, lr=2e-3, token_lr=1e-2, label_lr=1e-2, warmup=5, refresh_from=4,
                   refresh_every=2, double_every=2, cluster_size=4, cluster_max=8, negatives=3, positives=2,
                   encoder=EncoderConfig(source="random", dim=32, batch=256))
RELATIVES = {"unidec": {}, "depsl": {"balance": 1.0, "serve": "encoder"}, "tanh": {"head": "tanh", "dim": 24},
             "supcon": {"loss": "supcon", "symmetric": 0.0}, "bce": {"bce": 0.1},
             "classifier": {"balance": 0.0, "serve": "classifier"},
             "fused": {"serve": "fused", "unit": False, "fusion": FusionConfig(shortlist=20, min_leaf=20)}}
for name in ("dpr", "dpr-clustered", "ance", "dexml"):
    own = resolve(name, "cpu", {}).method
    RELATIVES[name] = {key: getattr(own, key) for key in
                       ("balance", "serve", "positives", "symmetric", "cluster_size", "negatives", "every_label")}
    RELATIVES[name]["refresh_every"] = 2 if name != "dpr-clustered" else own.refresh_every


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    torch.set_num_threads(1)
    return train_all(corpus, unidec(TOY), tmp_path_factory.mktemp("unidec"))


@pytest.mark.parametrize("relative", RELATIVES)
def test_learns_the_planted_labels(corpus, tmp_path, relative):
    made = train_all(corpus, unidec(replace(TOY, **RELATIVES[relative])), tmp_path)
    assert precision(made) > 90


@pytest.mark.parametrize("relative", ["unidec", "depsl", "supcon", "bce", "classifier", "tanh"])
def test_the_loss_is_the_papers(corpus, trained, relative):
    """L = lambda L_D + (1 - lambda) L_C, each half q2l and half l2q (sections 3.2, 3.3), by loops over pairs."""
    config = replace(TOY, dropout=0.0, **RELATIVES[relative])
    stage = JointStage(config)
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
        scores = model.encoder.heads[CLASSIFIER](x) @ model.labels.weight[pool].T / config.temperature
        wanted["classifier"] = (1 - config.balance) * both(scores)
        if config.bce:
            terms = [-torch.log(torch.sigmoid(scores[i][j] if truth[i, j] else -scores[i][j]))
                     for i in range(len(rows)) for j in range(len(pool)) if not filtered[i, j]]
            wanted["bce"] = (1 - config.balance) * config.bce * sum(terms) / len(rows)
    mine = stage.loss(model.train(), batch)
    assert mine.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)


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


def test_every_label_is_in_every_pool(corpus):
    stage = JointStage(replace(TOY, every_label=True))
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


def test_the_rounds_of_the_relatives():
    def shape(**changed):
        return [(r.first, r.last, r.cluster_size, r.negatives) for r in unidec(replace(TOY, **changed)).rounds]

    assert shape() == [(0, 4, 0, 0), (4, 6, 4, 6), (6, 8, 8, 6)]
    assert shape(**RELATIVES["dpr"]) == [(0, 8, 0, 0)]
    assert shape(**RELATIVES["dpr-clustered"]) == [(0, 4, 0, 0), (4, 8, 8, 0)]
    assert shape(**RELATIVES["ance"]) == [(0, 4, 0, 0), (4, 6, 0, 12), (6, 8, 0, 12)]


@pytest.mark.parametrize("every", [1, 7])
def test_stopped_again_and_again_ends_the_same(trained, tmp_path, every):
    ends_the_same_when_stopped(trained, tmp_path, every)


def test_what_is_served(corpus, trained, tmp_path):
    """Both halves end to end score as the sum of the two cosines; each half alone as one of them."""
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    served = {}
    for serve in ("sum", "encoder", "classifier"):
        (tmp_path / serve).mkdir()
        unidec(replace(TOY, serve=serve)).build_retriever(corpus, newest, trained.vectors, tmp_path / serve)
        retriever = Retriever.load(tmp_path / serve)
        ids, scores = retriever.search(retriever.tokenizer(["l3w1 l3w0"], ["l3w2"]), corpus.n_labels)
        served[serve] = dict(zip(ids[0].tolist(), scores[0].tolist(), strict=True))
        assert list(served[serve].values()) == sorted(served[serve].values(), reverse=True)
    for label, score in served["sum"].items():
        assert score == pytest.approx(served["encoder"][label] + served["classifier"][label], abs=1e-5)
    assert max(served["sum"], key=served["sum"].__getitem__) == 3


def test_fused_scores_are_the_sum_of_the_tree_and_both_halves(corpus, trained, tmp_path):
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    config = replace(TOY, **RELATIVES["fused"])
    measured = unidec(config).build_retriever(corpus, newest, {}, tmp_path)
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


@pytest.mark.parametrize(("changed", "parts"), [
    ({}, {"encoder", "classifier"}), ({"serve": "encoder"}, {"encoder"}), ({"serve": "classifier"}, {"classifier"}),
    (RELATIVES["fused"], {"encoder", "classifier", "trees"})])
def test_an_answer_is_explained(corpus, trained, tmp_path, changed, parts):
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    unidec(replace(TOY, **changed)).build_retriever(corpus, newest, {}, tmp_path)
    explains_its_answers(replace(trained, retriever=tmp_path), parts)


def test_classifiers_at_the_length_they_learned(corpus, trained, tmp_path):
    newest = {"joint": trained.outs[list(trained.rounds)[-1]]}
    unidec(replace(TOY, serve="classifier", unit=False)).build_retriever(corpus, newest, {}, tmp_path)
    weight = load_file(newest["joint"] / "model.safetensors")["labels.weight"]
    held = Retriever.load(tmp_path).indexes["labels"].vectors
    assert np.array_equal(held, weight.numpy())
    assert np.ptp(np.linalg.norm(held, axis=1)) > 0.05


@pytest.mark.parametrize("changed", [{"serve": "encoder"}, {"unit": False}, {"serve": "fused"},
                                     {"fusion": FusionConfig(depth=3)}])
def test_what_is_served_does_not_train_again(changed):
    one, other = unidec(TOY), unidec(replace(TOY, **changed))
    assert one.stages[0].settings == other.stages[0].settings
    assert one.build_retriever.settings != other.build_retriever.settings


@pytest.mark.parametrize(("changed", "said"), [
    ({"positives": 0}, "positives must be at least 1, got 0"),
    ({"negatives": -1}, "negatives must be 0 or more, got -1"),
    ({"temperature": 0.0}, "temperature must be above 0, got 0"),
    ({"loss": "dsm"}, "loss must be one of decoupled, supcon, got 'dsm'"),
    ({"balance": 1.5}, "balance must be between 0 and 1, got 1.5"),
    ({"balance": 1.0}, "serve must be encoder or fused where balance is 1, got 'sum'"),
    ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ({"dim": 64}, "dim must be 0 unless head is tanh, got 64"),
    ({"refresh_from": 0}, "refresh_from must be at least 1, got 0"),
    ({"epochs": float("nan")}, "epochs must be at least 1, got nan")])
def test_invalid_settings(changed, said):
    with pytest.raises(ValueError) as caught:
        replace(TOY, **changed)
    assert said in str(caught.value)


@pytest.mark.parametrize("method", ["unidec", "depsl", "dpr", "dpr-clustered", "ance", "dexml"])
def test_every_preset_resolves(method):
    for preset in PRESETS[method]:
        made = resolve(method, preset, {"seed": "3"})
        assert isinstance(made.method, UnidecConfig) and made.seed == 3
    assert resolve(method, list(PRESETS[method])[-1], {}).method.encoder.kind == "transformer"
