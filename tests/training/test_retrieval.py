"""A retriever written, opened and asked, against fused scores over all labels."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from flows.cli.export import export_predictions
from flows.cli.predict import Query, predict_texts
from serving.answers import Question, answer
from tasks.registry.pyfunc_model import RetrieverModel
from tests.support.toy import toy_config, trained
from xcmodels.data.corpus import Texts
from xcmodels.methods.ngame.method import ngame
from xcmodels.retrieval import ann
from xcmodels.retrieval.corpus_words import CorpusWords
from xcmodels.retrieval.fusion import InnerProductTerm
from xcmodels.retrieval.proposers import Proposer, best_of, candidates
from xcmodels.retrieval.retriever import Label, Retriever
from xcmodels.retrieval.serving_config import FusionConfig, SparseConfig


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


@pytest.fixture(scope="module")
def retriever(toy):
    return Retriever.load(toy.retriever)


@pytest.fixture(scope="module")
def titles(toy):
    return list(Texts.load(toy.corpus.folder, "test.title"))[:40]


@pytest.fixture(scope="module")
def contents(toy):
    return list(Texts.load(toy.corpus.folder, "test.content"))[:40]


def twice(vectors):
    """Return terms of which both are the same vectors."""
    return {"encoder": InnerProductTerm(vectors), "classifier": InnerProductTerm(vectors)}


def with_fusion(toy, out, **settings):
    """The same models behind another fusion; a shortlist that is longer than there are labels holds them all."""
    method = ngame(toy_config(fusion=FusionConfig(min_leaf=20, **settings)))
    out.mkdir()
    method.build_retriever(toy.corpus, toy.models, toy.vectors, out)
    return Retriever.load(out)


@pytest.mark.parametrize("settings", [
    {"shortlist": 60}, {"shortlist": 500}, {"centroids": True}, {"words": True}, {"sparse": SparseConfig(steps=10)},
    {"centroids": True, "words": True, "sparse": SparseConfig(steps=10, proposed=0)}])
def test_search_equals_fused_scores_over_all_labels(toy, tmp_path, titles, contents, settings):
    retriever = with_fusion(toy, tmp_path / "r", **settings)
    tokens = retriever.tokenizer(titles, contents)
    queries = retriever.embed(tokens)
    z, w = toy.vectors["labels"], retriever.indexes["labels"].vectors
    f, mean = toy.corpus.frequencies(), np.zeros((60, 32))
    for row in range(toy.corpus.n_queries):
        mean[toy.corpus.positives["train"][row]] += toy.vectors["queries"][row]
    ids, scores = retriever.search(tokens, 60)
    shared = CorpusWords(toy.corpus).label_words(with_validation=True).scores(
        tokens, np.repeat(np.arange(40), 60), np.tile(np.arange(60), 40)).reshape(40, 60)
    sparse = retriever.scorer.sparse
    by_words = np.zeros((40, 60)) if sparse is None else sparse.scores(
        tokens, np.repeat(np.arange(40), 60), np.tile(np.arange(60), 40)).reshape(40, 60)
    for q, words, linear, row, got in zip(queries, shared, by_words, ids, scores, strict=True):
        fused = []
        for label in range(60):
            of = [float(z[label] @ q), float(w[label] @ q)]
            if "centroids" in settings:
                of.append(float(mean[label] @ q / max(np.linalg.norm(mean[label]), 1e-9)))
            if "words" in settings:
                of.append(float(words[label]))
            if "sparse" in settings:
                of.append(float(linear[label]))
            leaf = retriever.scorer.trees.predict(np.array([[*of, f[label]]], np.float32))[0]
            fused.append(float(leaf) + sum(of))
        assert sorted(row.tolist()) == list(range(60))
        assert got == pytest.approx([fused[label] for label in row], abs=1e-5)
        assert (np.diff(got) <= 0).all()


def test_only_the_classifiers_shortlist_is_scored(toy, tmp_path, titles):
    retriever = with_fusion(toy, tmp_path / "r", shortlist=5)
    tokens = retriever.tokenizer(titles)
    queries = retriever.embed(tokens)
    ids, scores = retriever.search(tokens, 3)
    best = np.argsort(-(queries @ retriever.indexes["labels"].vectors.T), axis=1)[:, :5]
    assert all(set(row) <= set(top) for row, top in zip(ids.tolist(), best.tolist(), strict=True))
    deeper, _ = retriever.search(tokens, 12)
    assert (deeper >= 0).all()
    assert np.isfinite(scores).all()


def test_labels_that_words_propose_are_scored_too(toy, tmp_path, titles):
    retriever = with_fusion(toy, tmp_path / "r", shortlist=1, sparse=SparseConfig(steps=10, proposed=8))
    tokens = retriever.tokenizer(titles)
    queries = retriever.embed(tokens)
    near = (queries @ retriever.indexes["labels"].vectors.T).argmax(1)[:, None]
    both = np.concatenate([near, retriever.scorer.propose(tokens)[0]], axis=1)
    ids, scores = retriever.search(tokens, 1)
    assert scores[:, 0] == pytest.approx(retriever.scorer(queries, both, tokens).max(1), abs=1e-6)
    assert (ids != near).any()


def test_predictions_line_up(toy, retriever, titles, contents):
    found = retriever.predict(titles, k=4, contents=contents)
    ids, scores = retriever.search(retriever.tokenizer(titles, contents), 4)
    texts = list(Texts.load(toy.corpus.folder, "label.title"))
    assert len(found) == len(titles)
    for row, *ranked in zip(found, ids.tolist(), scores.tolist(), retriever.calibration(scores).round(6), strict=True):
        assert row == [Label(i, f"label:{i}", texts[i], round(s, 6), sure) for i, s, sure in zip(*ranked, strict=True)]
    assert len({row[0].id for row in found}) > 10


def test_texts_are_embedded_as_their_tokens_are(retriever, titles, contents):
    tokens = retriever.tokenizer(titles, contents)
    assert np.array_equal(retriever.embed(titles, contents), retriever.embed(tokens))
    assert np.array_equal(retriever.embed(titles[:1]), retriever.embed(retriever.tokenizer(titles[:1])))
    assert retriever.embed([]).shape == (0, retriever.embed(titles).shape[1])
    with pytest.raises(ValueError, match=r"got one text; write \[text\]"):
        retriever.embed(titles[0])


def test_the_encoder_and_tokenizer_are_those_of_training(toy, retriever):
    rows = np.arange(25)
    titles, contents = ([Texts.load(toy.corpus.folder, f"train.{part}")[i] for i in rows]
                        for part in ("title", "content"))
    embedded = retriever.embed(retriever.tokenizer(titles, contents))
    np.testing.assert_allclose(embedded, toy.vectors["queries"][rows], atol=1e-6)
    assert np.array_equal(retriever.scorer.terms["encoder"].matrix, toy.vectors["labels"])


def test_answers_do_not_change(toy, retriever, titles):
    first = retriever.predict(titles)
    assert retriever.predict(titles) == first
    assert Retriever.load(str(toy.retriever)).predict(titles) == first
    one_by_one = [retriever.predict([title])[0] for title in titles]
    assert [[label.id for label in row[:3]] for row in one_by_one] == [[label.id for label in row[:3]] for row in first]


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (7, 7), (60, 60), (61, 60), (1000, 60)])
def test_k_is_cut_to_the_labels_there_are(retriever, titles, k, expected):
    found = retriever.predict(titles[:3], k=k)
    assert [len(row) for row in found] == [expected] * 3
    assert all(len({label.id for label in row}) == expected for row in found)


@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one(retriever, k):
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        retriever.predict(["l1w0"], k=k)


def test_one_text_for_a_list(retriever):
    with pytest.raises(ValueError, match=r"write \[text\]"):
        retriever.predict("l1w0")


def test_odd_texts(retriever):
    odd = ["", " ", "\x00", "\ud800", "日本語", "never seen", "l1w0 " * 100_000]
    found = retriever.predict(odd, k=5)
    assert [len(row) for row in found] == [0, 0, 0, *[5] * 4]
    assert all(np.isfinite(label.score) for row in found for label in row)
    assert retriever.predict([]) == []


@pytest.mark.parametrize("way", ["python", "mlflow", "http", "xc predict", "xc export"])
def test_a_text_of_white_space_gets_no_label_whichever_way_it_comes(retriever, tmp_path, capsys, way):
    texts, wanted = ["l1w0", " \t\u00a0\n", "", "\x00", "l9w0"], [2, 0, 0, 0, 2]
    if way == "python":
        found = retriever.predict(texts, 2)
    elif way == "mlflow":
        model = RetrieverModel()
        model.retriever = retriever
        found = model.predict(None, texts, {"k": 2})["uids"]
    elif way == "http":
        served = SimpleNamespace(retriever=retriever, watch=SimpleNamespace(written=lambda recent=0.0: ""))
        found, why = (answer([Question(served, text, 2, 0.0, explain) for text in texts]) for explain in (False, True))
        assert [len(labels) for labels in why] == wanted
    elif way == "xc predict":
        predict_texts(retriever, texts, 2)
        found = [json.loads(line)["labels"] for line in capsys.readouterr().out.splitlines()]
    else:
        export_predictions(retriever, map(Query, map(str, range(5)), texts), 2, tmp_path / "p.parquet")
        rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
        found = [[row for row in rows if row["uid"] == str(number) and row["rank"]] for number in range(5)]
    assert [len(labels) for labels in found] == wanted


def test_contents_count(retriever):
    title, content = "filler1", "l3w0 l3w1 l3w2 l3w3"
    with_content, without = (retriever.predict([title], 1, given)[0][0].id for given in ([content], None))
    assert with_content == 3
    assert retriever.predict([title], 1, [""])[0][0].id == without
    assert [len(labels) for labels in retriever.predict([" ", ""], 1, [content, "\n"])] == [1, 0]
    with pytest.raises(ValueError):
        retriever.predict(["a", "b"], contents=["one"])


def test_repr(retriever):
    assert repr(retriever) == "Retriever(ngame on toy, 60 labels)"


def test_candidates_of_two_indexes_are_a_union():
    rng = np.random.default_rng(0)
    a, b, queries = (rng.normal(size=(n, 4)).astype(np.float32) for n in (9, 9, 6))
    ids = candidates([Proposer(ann.build(a, "exact")), Proposer(ann.build(b, "exact"))], queries, 4)
    for row, query in zip(ids, queries, strict=True):
        wanted = set(np.argsort(-(a @ query))[:4]) | set(np.argsort(-(b @ query))[:4])
        kept = row[row >= 0].tolist()
        assert sorted(kept) == sorted(wanted)
    few = candidates([Proposer(ann.build(a[:2], "exact"))], queries, 5)
    assert [sorted(row[row >= 0].tolist()) for row in few] == [[0, 1]] * 6


def test_equal_scores_come_by_label_and_padding_last(retriever):
    fusion = replace(retriever.scorer, terms=twice(np.zeros((60, 32), np.float32)),
                     frequencies=np.ones(60, np.float32))
    ids = np.array([[7, -1, 3, 5, -1, 1]])
    scores = fusion(np.ones((1, 32), np.float32), ids)
    assert np.isneginf(scores[ids < 0]).all()
    assert len(np.unique(scores[ids >= 0])) == 1
    assert best_of(ids, scores, 4)[0].tolist() == [[1, 3, 5, 7]]


def test_predicting_needs_no_gradient(retriever):
    assert not retriever.encoder.training
    with torch.enable_grad():
        assert isinstance(retriever.embed(retriever.tokenizer(["l1w0"])), np.ndarray)
    assert retriever.encoder.tables()["tokens"].take_gradients() is None
