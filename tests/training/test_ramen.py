"""RAMEN over NGAME, ANCE and UniDEC: the regularisers as the paper writes them, pruning, the bandit, what is served."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support import toy
from tests.support.toy import FAMILIES
from xcmodels.data import seeds
from xcmodels.method import Mined
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import PRESETS, flat, resolve
from xcmodels.methods.ramen.bandit import FLOOR, SIGMA, Bandit
from xcmodels.methods.ramen.config import GraphConfig, RamenConfig
from xcmodels.methods.ramen.stages import GraphStage, augmented
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import embed, train_all

pytestmark = pytest.mark.usefixtures("one_thread")
BASES = {name: FAMILIES[name].base for name in ("ramen", "ramen-ance", "ramen-unidec")}


def made(name, **graph):
    return METHODS[name].make(RamenConfig(BASES[name], GraphConfig(**graph)))


@pytest.fixture(scope="module", params=BASES)
def trained(request):
    return toy.trained(request.param)


def test_without_a_side_it_is_its_base(corpus, tmp_path):
    none = train_all(corpus, made("ramen-ance", sides="none"), tmp_path)
    for one, other in zip(toy.trained("ance").outs.values(), none.outs.values(), strict=True):
        mine, wanted = (load_file(folder / "model.safetensors") for folder in (other, one))
        assert all(torch.equal(mine[f"base.{name}"], value) for name, value in wanted.items())


@pytest.mark.parametrize("name", BASES)
def test_a_batch_none_of_whose_nodes_has_an_anchor_trains_as_its_base(corpus, name):
    """A sparse graph leaves such batches; every edge is pruned here."""
    stage = made(name).stages[0]
    model = stage.build(corpus, {}).eval()
    none = {f"group.{side}": np.zeros(len(edges.values), bool) for side, edges in corpus.graphs["group"].edges.items()}
    rows = corpus.training_rows()[:20]
    batch = stage.batch(corpus, stage.rounds[0], Mined(kept=none), rows, seeds.generator(0, "loss"))
    assert len(batch.sides["anchors.group"].ids) == 0
    terms, base = (of.loss(model_, batch.to(torch.device("cpu")))
                   for of, model_ in ((stage, model), (stage.base, model.base)))
    total = sum(terms.values())
    torch.testing.assert_close(total, sum(base.values()))
    total.backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)


def hinge(vectors, others, positives, counts, *, margin, most):
    """R_x, R_z: mean over nodes of [x.a_n - x.a_p + margin]+, p the drawn anchor, n the hardest without an edge."""
    rows = []
    for i, node in enumerate(vectors):
        pulled = [j for j in range(len(others)) if positives[i][j] and counts[i][j]]
        scores = (others @ node).tolist()
        pushed = sorted((j for j in range(len(others)) if not positives[i][j]), key=lambda j, scores=scores: -scores[j])
        if pulled and pushed:
            (p,) = pulled
            kept = pushed[:most]
            rows.append(sum(torch.relu(node @ others[n] - node @ others[p] + margin) for n in kept) / len(kept))
    return sum(rows) / len(rows)


@pytest.mark.parametrize("name", BASES)
def test_the_regularisers_are_the_papers(corpus, name):
    stage = made(name, strength=0.7, negatives=4).stages[0]
    model = stage.build(corpus, {}).eval()
    rows = corpus.training_rows()[:30]
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "loss"))
    terms, base = stage.loss(model, batch), stage.base.loss(model.base, batch)
    for term, value in base.items():
        torch.testing.assert_close(terms.pop(term), value)
    encoder = stage.base.encoder(model.base)
    vectors = {"queries": encoder(batch.sides["queries"].tokens, "query"),
               "labels": encoder(batch.sides["labels"].tokens, "label"),
               "anchors.group": encoder(batch.sides["anchors.group"].tokens, "label")}
    assert terms.keys() == {"group.queries", "group.labels"}
    edges = corpus.graphs["group"].edges
    for side, graph_side in (("queries", "train"), ("labels", "label")):
        nodes, anchors = batch.sides[side].ids.tolist(), batch.sides["anchors.group"].ids.tolist()
        truth = [[anchor in edges[graph_side][node] for anchor in anchors] for node in nodes]
        drawn = batch.blocks[f"group.{side}"].weights > 0
        assert (torch.tensor(truth) & drawn).sum(1).max() == 1
        wanted = 0.7 * hinge(vectors[side], vectors["anchors.group"], truth, drawn, margin=0.3, most=4)
        torch.testing.assert_close(terms[f"group.{side}"], wanted, rtol=1e-4, atol=1e-6)


def test_edges_that_point_elsewhere_are_pruned_and_pull_no_more(corpus, trained):
    last = [each for each in trained.rounds.values() if each.mines and each.stage == trained.method.stages[0].name][-1]
    source = trained.outs[f"{last.stage} round {last.mined_by}"]
    known = embed(corpus, trained.method.stages[0], source)
    kept = trained.mined[last.name].kept
    assert kept.keys() == {"group.train", "group.label"}
    for side, vectors in (("train", known["queries"]), ("label", known["labels"])):
        edges = corpus.graphs["group"].edges[side]
        nodes = np.repeat(np.arange(len(edges)), edges.lengths)
        cosine = (vectors[nodes] * known["anchors.group"][edges.values]).sum(1)
        assert np.array_equal(kept[f"group.{side}"], cosine > 0)
        strict = GraphStage(trained.method.stages[0].base, replace(trained.method.stages[0].graph, similar=0.3))
        fewer = strict.mine({name: partial(known.__getitem__, name) for name in known}, corpus, last).kept
        assert np.array_equal(fewer[f"group.{side}"], cosine > 0.3) and fewer[f"group.{side}"].sum() > 0
        labels = corpus.positives["train"] if side == "train" else np.arange(60)[:, None]
        true = np.array([end in labels[node] // 3 for node, end in zip(nodes, edges.values, strict=True)])
        assert kept[f"group.{side}"][true].mean() > kept[f"group.{side}"][~true].mean(), "noise goes first"
    rows = corpus.training_rows()[:200]
    batch = trained.method.stages[0].batch(corpus, last, trained.mined[last.name], rows, seeds.generator(0, "pruned"))
    block, pool = batch.blocks["group.queries"], batch.sides["anchors.group"].ids.numpy()
    edges, flags = corpus.graphs["group"].edges["train"], kept["group.train"]
    for r, row in enumerate(rows):
        start = edges.offsets[row]
        left = {int(end) for end, there in zip(edges[row], flags[start:edges.offsets[row + 1]], strict=True) if there}
        pulled = pool[(block.positives[r] & (block.weights[r] > 0)).numpy()].tolist()
        assert set(pulled) <= left and len(pulled) == bool(left)
        gone = [c for c, anchor in enumerate(pool.tolist()) if anchor in edges[row] and anchor not in left]
        assert (block.weights[r][gone] == 0).all(), "a pruned edge neither pulls nor pushes"


def test_labels_that_share_an_anchor_become_positives(corpus):
    stage = made("ramen-ance", augment=True, most=4, sides="none").stages[0]
    rows = corpus.training_rows()[:20]
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "augmented"))
    pool, more = batch.sides["labels"].ids.tolist(), 0
    for r, row in enumerate(rows):
        true = {*corpus.positives["train"][row].tolist()}
        now = {pool[c] for c in torch.nonzero(batch.blocks["pool"].positives[r])[:, 0].tolist()}
        assert true & {*pool} <= now
        anchors = corpus.graphs["group"].edges["train"][row]
        near = {label for label in range(60) if np.isin(corpus.graphs["group"].edges["label"][label], anchors).any()}
        assert now <= (true | near) and not now & {*corpus.filters["train"][row].tolist()}
        more += len(now - true)
    assert more > 0


def test_labels_that_were_added_are_not_mined_as_negatives(corpus):
    stage, rows = made("ramen-ance", augment=True, most=4, prune=False).stages[0], corpus.training_rows()
    truth, vectors = augmented(corpus, 4), {}
    for side, texts in (("queries", corpus.sides["train"]), ("labels", corpus.sides["label"])):
        near = np.random.default_rng(0).random((len(texts), 8), np.float32)
        vectors[side] = partial(lambda array: array, near / np.linalg.norm(near, axis=1, keepdims=True))
    (round_,) = [each for each in stage.rounds if each.mines][:1]
    mined = stage.mine(vectors, corpus, round_).negatives
    assert truth.training_rows().tolist() == rows.tolist(), "clusters are of the same rows"
    assert all(not {*mined[row].tolist()} & {*truth.train_positives[row].tolist()} for row in rows)
    assert any(len(truth.train_positives[row]) > len(corpus.train_positives[row]) for row in rows)


def test_nothing_of_the_graph_is_left(trained):
    retriever = Retriever.load(trained.retriever)
    names = {path.relative_to(trained.retriever).as_posix() for path in trained.retriever.rglob("*")}
    assert not [name for name in names if "anchor" in name or "group" in name or "walk" in name]
    assert not [name for name in load_file(trained.retriever / "encoder" / "model.safetensors") if "bandit" in name]
    assert retriever.facts["method"] == "ramen"


def test_the_bandit_follows_what_helps():
    """Two arms: accuracy rises with the first weight's rise and does not depend on the second."""
    torch.manual_seed(0)
    bandit, accuracy, last = Bandit(2, 0.3, 0.05), 0.5, 0.3
    for _ in range(4000):
        weight = float(bandit.weights()[0])
        accuracy += 2.0 * (weight - last) / 10
        last = weight
        bandit.learn(torch.tensor(accuracy))
    start = torch.full((2,), 0.3)
    assert bandit.mean[0] > start[0] + 0.05
    assert (bandit.mean[1] - start[1]).abs() < bandit.mean[0] - start[0]


def test_the_bandit_stays_above_its_floor_and_draws_once_a_stretch():
    torch.manual_seed(0)
    bandit = Bandit(3, 0.0, 0.01)
    seen = []
    for step in range(60):
        seen.append(bandit.weights())
        bandit.learn(torch.tensor(float(step % 7 == 0)))
    assert all(float(weights.min()) >= FLOOR - 1e-6 for weights in seen)
    assert all(torch.equal(seen[step], seen[step - step % 10]) for step in range(60))
    assert len({tuple(weights.tolist()) for weights in seen}) > 3
    assert float(torch.stack(seen).std()) < 20 * SIGMA


@pytest.mark.parametrize("name", BASES)
def test_presets_name_the_bases_settings(name):
    for preset in PRESETS[name]:
        assert METHODS[name].make(resolve(name, preset, {"seed": "3"}).method).stages[0].base.seed == 3
    with pytest.raises(ValueError, match=r"base\.seed must be 0, got 3"):
        resolve(name, "cpu", {"base.seed": "3"})
    assert flat(resolve("ramen", "cpu", {"graph.sides": "labels", "base.m1.epochs": "2"}))["base.m1.epochs"] == 2
