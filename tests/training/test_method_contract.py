"""Every method learns, resumes bit for bit, serves what it trained, explains its answers and refuses bad settings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tasks.training.embed import vectors_of
from tests.support import toy
from tests.support.explanations import explains_its_answers, is_as_sure_as_right
from tests.support.toy import FAMILIES, VARIANTS, trained
from xcmodels.data import seeds
from xcmodels.data.corpus import Texts
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.siamesexml.config import MIXED
from xcmodels.nn.row_table import RowTable
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving_config import (
    CLASSIFIER,
    ENCODER,
    FUSED,
    SERVED,
    SIMILAR,
    SPARSE,
    SUM,
    TREES,
    WORDS,
    FusionConfig,
    SparseConfig,
)
from xcmodels.training.checkpoint import MODEL, OPTIMISER, read_model
from xcmodels.training.local_run import embed

pytestmark = pytest.mark.usefixtures("one_thread")
LOW = [name for name in VARIANTS if name.endswith("low bytes")]    # tables in bfloat16, moments of rows
PARTS = {ENCODER: {ENCODER}, CLASSIFIER: {CLASSIFIER}, SUM: {ENCODER, CLASSIFIER}, FUSED: {ENCODER, CLASSIFIER, TREES},
         MIXED: {ENCODER, CLASSIFIER, SIMILAR}}
ALONE = {"depsl", "ramen-ance"}    # there is no classifier
# Each as it is trained to be served, and one of each retriever builder served in every other way.
WAYS = [(name, None) for name in [*FAMILIES, "unidec fused"]] + [
    (name, serve) for name in ("ngame", "astra", "unidec", "depsl", "siamesexml", "ramen", "ramen-ance")
    for own in [getattr(FAMILIES[name], "base", FAMILIES[name]).serve]
    for serve in SERVED if (serve == FUSED or serve != own) and (name not in ALONE or serve not in (CLASSIFIER, SUM))]


def changed(config, **settings):
    """Return settings with others in their place, by name: `{"siamese.c": 1.0}`."""
    for key, value in settings.items():
        part, _, rest = key.partition(".")
        config = replace(config, **{part: changed(getattr(config, part), **{rest: value}) if rest else value})
    return config


def served(name, serve):
    """Return a method served in some way; fused by all that there is."""
    base = "base." if name.startswith("ramen") else ""
    fusion = FusionConfig(shortlist=20, min_leaf=20, centroids=True, words=True, sparse=SparseConfig(steps=5))
    return toy.made_by(name, changed(FAMILIES[name], **{f"{base}serve": serve, f"{base}fusion": fusion}))


def test_every_method_is_here():
    assert {name.split()[0] for name in [*FAMILIES, *VARIANTS]} == set(METHODS)


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_it_learns_the_planted_labels(name):
    assert toy.precision(trained(name)) > (88 if name.startswith("ramen") else 95 if name.startswith("siamese") else 90)
    found = Retriever.load(trained(name).retriever).predict(["l3w1 l3w0", "l9w0 l9w1"], k=2)
    assert [labels[0].id for labels in found] == [3, 9]


@pytest.mark.parametrize(("name", "every"), [
    ("unidec", 1), ("astra after M1", 7), ("tas", 7), *((name, 7) for name in [*FAMILIES, *LOW] if name != "unidec")])
def test_stopped_again_and_again_it_ends_the_same(name, every, tmp_path):
    """RAMEN's bandit among it: it draws and learns as if nothing had happened."""
    toy.ends_the_same_when_stopped(trained(name), tmp_path, every)


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_every_loss_is_affine_in_the_weights_of_positives(name):
    """Of each stage: a positive that weighs three times as much is pulled three times as hard."""
    made = trained(name)
    pairs = len(made.corpus.positives["train"].values)
    for stage in made.method.stages:
        round_ = stage.rounds[-1]
        mined = made.mined[round_.name]
        model = read_model(stage, made.corpus, made.outs[round_.name], mined.vectors).eval()
        rows = stage.order(made.corpus, mined, round_.first)[:40]
        losses = []
        for weight in (1.0, 2.0, 3.0):
            corpus = toy.weighted(made.corpus, np.full(pairs, weight))
            batch = stage.batch(corpus, round_, mined, rows, seeds.generator(0, "weights"))
            losses.append(float(sum(term.detach() for term in stage.loss(model, batch).values())))
        assert losses[2] - losses[1] == pytest.approx(losses[1] - losses[0], rel=1e-3)
        assert losses[1] - losses[0] > 1e-4 * losses[0], stage.name


@pytest.mark.parametrize(("name", "serve"), WAYS)
def test_the_parts_of_an_answer_sum_to_its_score(name, serve, tmp_path):
    """However it is served, with nothing trained again."""
    made = trained(name)
    parts = PARTS[serve or made.method.build_retriever.settings["serve"]]
    if serve:
        method = served(name, serve)
        assert [stage.settings for stage in method.stages] == [stage.settings for stage in made.method.stages]
        assert method.build_retriever.settings["serve"] == serve
        method.build_retriever(made.corpus, made.models, made.vectors, tmp_path)
        made = replace(made, retriever=tmp_path)
        parts = parts | ({SIMILAR, WORDS, SPARSE} if serve == FUSED else set())
    ids, scores = predict(Retriever.load(made.retriever), made.corpus, 5)
    assert (ids[:, 0] >= 0).all() and np.isfinite(scores[:, 0]).all()
    is_as_sure_as_right(made)
    explains_its_answers(made, parts - ({CLASSIFIER} if name in ALONE else set()))


@pytest.mark.parametrize("name", ["ngame", "astra", "unidec", "siamesexml++", "ramen-unidec"])
def test_mining_and_building_move_no_label_table_to_one_device(name, tmp_path, monkeypatch):
    """Several GPUs have shared it in training, and one of them need not have room for all of it."""
    made, moved, move = trained(name), set(), RowTable._apply
    monkeypatch.setattr(RowTable, "_apply", lambda self, *rest: (moved.add(self.name), move(self, *rest))[1])
    stage = made.method.stages[0 if name == "ngame" else -1]
    checkpoint = made.models[stage.name]
    for vectors in (vectors_of(stage, made.corpus, checkpoint), embed(made.corpus, stage, checkpoint)):
        assert {"queries", "labels"} <= vectors.keys()
    made.method.build_retriever(made.corpus, made.models, made.vectors, tmp_path)
    assert moved == {"tokens"}    # of the encoder


@pytest.mark.parametrize("name", ["ngame", "astra", "unidec", "siamesexml"])
def test_a_sum_is_the_sum_of_both(name, tmp_path):
    made, scores = trained(name), {}
    for serve in (ENCODER, CLASSIFIER, SUM):
        out = tmp_path / serve
        out.mkdir()
        served(name, serve).build_retriever(made.corpus, made.models, made.vectors, out)
        retriever = Retriever.load(out)
        ids, found = retriever.search(retriever.tokenizer(["l3w1 l3w0"], ["l3w2"]), made.corpus.n_labels)
        assert (np.diff(found[0]) <= 0).all()
        scores[serve] = found[0][np.argsort(ids[0])]
    np.testing.assert_allclose(scores[SUM], scores[ENCODER] + scores[CLASSIFIER], atol=1e-5)
    assert np.argmax(scores[SUM]) == 3


@pytest.mark.parametrize("name", ["ngame", "astra", "unidec", "depsl", "siamesexml"])
def test_the_scores_of_a_fusion_rank_alone_as_they_do_without_one(name, tmp_path):
    made, fused = trained(name), tmp_path / "fused"
    fused.mkdir()
    served(name, FUSED).build_retriever(made.corpus, made.models, made.vectors, fused)
    ranker = Retriever.load(fused)
    ranker.facts["shortlist"] = made.corpus.n_labels    # all labels are candidates
    assert list(ranker.unfused()) == [ENCODER] + [CLASSIFIER, SUM] * (name not in ALONE)
    for serve, unfused in ranker.unfused().items():
        out = tmp_path / serve
        out.mkdir()
        served(name, serve).build_retriever(made.corpus, made.models, made.vectors, out)
        ids, scores = predict(unfused, made.corpus, 5)
        wanted, wanted_scores = predict(Retriever.load(out), made.corpus, 5)
        np.testing.assert_allclose(scores, wanted_scores, atol=1e-5)
        assert (ids == wanted).mean() > 0.99    # but for ties in the last digit


@pytest.mark.parametrize("name", [*FAMILIES, "ngame unit", *LOW])
def test_what_is_trained_is_what_is_indexed_and_served(name):
    """The parts of an answer are the products that the losses of the stages are over."""
    made, corpus = trained(name), trained(name).corpus
    retriever, rows = Retriever.load(made.retriever), corpus.training_rows()[:20]
    titles, contents = ([Texts.load(corpus.folder, f"train.{part}")[row] for row in rows]
                        for part in ("title", "content"))
    products, alpha = {}, made.measured.get("alpha")
    for stage in made.method.stages:
        last = stage.rounds[-1].name
        model = read_model(stage, corpus, made.outs[last], made.mined[last].vectors).eval()
        queries, labels = stage.ranking_vectors(model, corpus, made.mined[last], rows)
        of_labels = name.split()[0] in ("astra", "renee")
        part = CLASSIFIER if stage.name in ("classifier", "extreme") or of_labels else ENCODER
        if stage.name != "siamese":    # the mix scores its labels under queries of the next stage
            products[part] = queries @ labels.T
    if name.startswith("siamesexml++"):
        vectors = stage.vectors(model, corpus)
        products[ENCODER] = vectors["queries"]()[rows] @ vectors["labels"]().T
    for part, scores in products.items():
        share = 1.0 if alpha is None else alpha if part == CLASSIFIER else 1 - alpha
        for text, content, wanted in zip(titles, contents, share * scores, strict=True):
            (found,) = retriever.predict([text], 6, [content])
            for label, why in zip(found, retriever.explain(text, found, 0, content), strict=True):
                assert why.parts[part] == pytest.approx(wanted[label.id], abs=1e-5)
    if "labels" in retriever.indexes:
        indexed, sums = retriever.indexes["labels"].vectors, made.method.build_retriever.settings["serve"] == SUM
        assert indexed.shape == (corpus.n_labels, 32 * (1 + sums))
        assert np.array_equal(indexed[:, :32], labels)


@pytest.mark.parametrize(("name", "settings", "said"), [
    ("astra", {"positives": 0}, "positives must be at least 1, got 0"),
    ("astra", {"hard": 0, "uniform": 0}, "hard + uniform must be at least 1, got 0"),
    ("astra", {"negatives": "all"}, "negatives must be one of both, random, hard, curriculum, got 'all'"),
    ("astra", {"source": "labels"}, "source must be one of classifier, encoder, got 'labels'"),
    ("astra", {"label_lr": 3.0, "weight_decay": 0.5}, "label_lr * weight_decay must be below 1, got 1.5"),
    ("astra", {"table_dtype": "float16"}, "table_dtype must be one of float32, bfloat16, got 'float16'"),
    ("unidec", {"table_moments": "none"}, "table_moments must be one of full, rowwise, got 'none'"),
    *((name, {f"{part}.table_dtype": "int8"}, "table_dtype must be one of float32, bfloat16, got 'int8'")
      for name, part in (("ngame", "m2"), ("siamesexml", "extreme"), ("ramen", "base.m1"))),
    ("astra", {"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
    ("astra", {"ahead": -1}, "ahead must be 0 or more, got -1"),
    ("unidec", {"positives": 0}, "positives must be at least 1, got 0"),
    ("unidec", {"negatives": -1}, "negatives must be 0 or more, got -1"),
    ("unidec", {"temperature": 0.0}, "temperature must be above 0, got 0"),
    ("unidec", {"loss": "dsm"}, "loss must be one of decoupled, supcon, got 'dsm'"),
    ("unidec", {"balance": 1.5}, "balance must be between 0 and 1, got 1.5"),
    ("unidec", {"balance": 1.0}, "serve must be encoder or fused where balance is 1, got 'sum'"),
    ("unidec", {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ("unidec", {"dim": 64}, "dim must be 0 unless head is tanh, got 64"),
    ("unidec", {"epochs": float("nan")}, "epochs must be a finite number, at least 1, got nan"),
    *((name, {key: serve}, "serve must be encoder or fused") for serve in (CLASSIFIER, SUM)
      for name, key in (("depsl", "serve"), ("ramen-ance", "base.serve"))),
    ("siamesexml", {"siamese.c": 1.0}, "c must be above 0 and below 1, got 1.0"),
    ("siamesexml", {"siamese.negatives": 0}, "negatives must be at least 1, got 0"),
    ("siamesexml", {"extreme.d": 0.5}, "d must be at least 1, got 0.5"),
    ("siamesexml", {"partitions": 0}, "partitions must be at least 1, got 0"),
    ("siamesexml", {"power": -1.0}, "power must be 0 or more, got -1"),
    ("siamesexml", {"centroid": 2.0}, "centroid must be between 0 and 1, got 2.0"),
    ("siamesexml", {"partitions": 3, "serve": "fused"},
     "serve must be mixed or encoder where there are 3 partitions, got 'fused'"),
    ("ramen", {"graph.sides": "query"}, "sides must be one of both, queries, labels, none, got 'query'"),
    ("ramen", {"graph.strength": -1.0}, "strength must be 0 or more, got -1"),
    ("ramen", {"graph.negatives": 0}, "negatives must be at least 1, got 0")], ids=str)
def test_bad_settings_are_refused(name, settings, said):
    with pytest.raises(ValueError) as caught:
        changed(FAMILIES[name], **settings)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", LOW)
def test_low_bytes_train_tables_of_few_bytes_and_serve_them_as_float32(name):
    """What training holds of a label is 2 d bytes and up to 9; what is saved of it, too; vectors served are float32."""
    made = trained(name)
    for stage in made.method.stages:
        last = stage.rounds[-1].name
        model = read_model(stage, made.corpus, made.outs[last], made.mined[last].vectors)
        saved = [load_file(made.outs[last] / file) for file in (MODEL, OPTIMISER)]
        for key, table in model.tables().items():
            rows = len(table.weight)
            held = [value for file in saved for of, value in file.items()
                    if len(value.shape) and len(value) == rows and (of.endswith(".weight") or f"rows.{key}." in of)
                    and (value.ndim == 1 or value.shape[1] == table.weight.shape[1])]
            assert sum(value.nbytes for value in held) <= rows * (2 * table.weight.shape[1] + 9), (stage.name, key)
            assert table.weight.dtype == torch.bfloat16
    for file in made.retriever.rglob("*.safetensors"):
        assert all(value.dtype != torch.bfloat16 for value in load_file(file).values())
    indexes = Retriever.load(made.retriever).indexes.values()
    assert all(index.vectors.dtype == np.float32 for index in indexes if hasattr(index, "vectors"))
