"""Why a label: parts that sum to its score, and the training texts of it that are most like the text."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import tiny
from tests.support.explanations import explains_its_answers
from tests.support.toy import toy_config, trained
from xcmodels.data.corpus import Ragged
from xcmodels.methods.ngame.method import ngame
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.examples import COMPARED, Examples, evenly_drawn
from xcmodels.retrieval.retriever import Explanation, Label, Retriever
from xcmodels.retrieval.scorers import InnerProduct
from xcmodels.retrieval.serving_config import FusionConfig, SparseConfig


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Retriever.load(tiny.tiny_retriever(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("fusion", [{}, {"centroids": True}, {"words": True}, {"sparse": SparseConfig(steps=5)},
                                    {"name": 0.5}, {"frequent": 8},
                                    {"centroids": True, "words": True, "sparse": SparseConfig(steps=5), "frequent": 8,
                                     "name": 0.5}])
def test_fused_scores_are_explained(toy, tmp_path, fusion):
    method = ngame(toy_config(fusion=FusionConfig(min_leaf=20, shortlist=20, trees=4, rate=0.5, **fusion)))
    method.build_retriever(toy.corpus, toy.models, toy.vectors, tmp_path)
    more = {"centroids": "similar texts", "words": "words", "sparse": "sparse", "frequent": "frequent",
            "name": "name"}
    explains_its_answers(replace(toy, retriever=tmp_path),
                         {"encoder", "classifier", "trees", *(more[name] for name in fusion)})


RNG = np.random.default_rng(0)
QUERIES, LABELS = (RNG.normal(size=(n, 12)).astype(np.float32) for n in (5, 9))
W, Z, V = (RNG.normal(size=(9, 4)).astype(np.float32) for _ in range(3))
PAIRS = np.repeat(np.arange(5), 9), np.tile(np.arange(9), 5)


@pytest.mark.parametrize(("scores", "parts"), [
    (InnerProduct(LABELS), {"encoder": lambda x, label: x @ LABELS[label]}),
    (InnerProduct(LABELS, {"encoder": 5, "classifier": 7}),
     {"encoder": lambda x, label: x[:5] @ LABELS[label, :5], "classifier": lambda x, label: x[5:] @ LABELS[label, 5:]}),
    (CentroidMix(W, Z + np.float32(0.4) * V, V, 2, alpha=0.3, share=0.4),
     {"encoder": lambda x, label: 0.7 * x[4 + 4 * (label % 2):][:4] @ Z[label],
      "classifier": lambda x, label: 0.3 * x[4 + 4 * (label % 2):][:4] @ W[label],
      "similar texts": lambda x, label: 0.7 * 0.4 * x[4 + 4 * (label % 2):][:4] @ V[label]}),
    (CentroidMix(W, Z + np.float32(0.4) * V, V, 2, alpha=0.3, share=0.4, intermediate=True),
     {"encoder": lambda x, label: 0.7 * x[:4] @ Z[label],
      "classifier": lambda x, label: 0.3 * x[4 + 4 * (label % 2):][:4] @ W[label],
      "similar texts": lambda x, label: 0.7 * 0.4 * x[:4] @ V[label]})])
def test_parts_are_what_they_are_called_and_sum_to_the_score(scores, parts):
    found = scores.parts(QUERIES, None, *PAIRS)
    assert list(found) == list(parts)
    for name, of in parts.items():
        assert found[name].dtype == np.float32
        assert found[name] == pytest.approx([of(QUERIES[row], label) for row, label in zip(*PAIRS, strict=True)],
                                            abs=1e-5)
    assert sum(found.values()) == pytest.approx(scores(QUERIES, PAIRS[1].reshape(5, 9)).ravel(), abs=1e-5)


def test_texts_are_spread_over_all_a_label_has_and_the_same_every_time():
    rows = Ragged(np.array([0, 0, 3, 19, 36, 1636]), np.arange(1636))
    made = evenly_drawn(rows, 16)
    assert made.lengths.tolist() == [0, 3, 16, 16, 16]
    assert made[1].tolist() == [0, 1, 2] and made[2].tolist() == list(range(3, 19))
    assert len(set(made[3].tolist())) == 16 and set(made[3].tolist()) < set(range(19, 36))
    stretch = (made[4] - 36) // 100
    assert stretch.tolist() == list(range(16))
    again = evenly_drawn(rows, 16)
    assert np.array_equal(again.values, made.values)


def test_a_label_without_training_texts_has_none_near(small):
    (found,) = small.predict([tiny.LABELS[0]], k=50)
    why = dict(zip([label.id for label in found], small.explain(tiny.LABELS[0], found), strict=True))
    assert (why[0].frequency, why[0].nearest) == (0, [])
    assert (why[2].frequency, len(why[2].nearest)) == (2, 2)
    assert (why[9].frequency, len(why[9].nearest)) == (9, 3)
    assert all(near.labels == [tiny.LABELS[9]] and near.text.startswith(tiny.LABELS[9]) for near in why[9].nearest)
    only = [label for label in found if label.id % 10 == 0]
    assert all(each.nearest == [] for each in small.explain("a wolf", only))


def test_the_most_frequent_label_keeps_a_few_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("xcmodels.retrieval.examples.MAX_EXAMPLES", 4)
    few = Retriever.load(tiny.tiny_retriever(tmp_path))
    (why,) = few.explain("a pike", [Label(9, "", "", 0.0, 0.0)], nearest=99)
    assert (why.frequency, len(why.nearest)) == (9, 4)
    assert [near.similarity for near in why.nearest] == sorted([near.similarity for near in why.nearest], reverse=True)


def test_the_texts_that_are_embedded_for_an_explanation_are_bounded(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(1600, 4)).astype(np.float32)
    kept = Ragged(np.arange(101) * 16, np.arange(1600, dtype=np.int32))    # 16 texts a label
    asked = []
    examples = Examples(None, kept, SimpleNamespace(tokens=lambda numbers: numbers), None, None)

    def embed(numbers):
        asked.append(numbers)
        return vectors[numbers]

    query = np.ones(4, np.float32)
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / 2
    for count, each in ((3, 16), (10, 16), (20, 8), (100, 3)):
        labels = np.arange(100)[::-1][:count]
        near = examples.nearest(query, labels, 3, embed)
        assert len(asked[-1]) == count * each <= max(COMPARED, 3 * count)
        for label, found in zip(labels, near, strict=True):
            compared = asked[-1][asked[-1] // 16 == label]
            assert len(compared) == each and compared[-1] - compared[0] >= 16 - 16 // each - 1, "spread over all"
            assert [number for number, _ in found] == compared[np.argsort(-cosines[compared])][:3].tolist()
    asked.clear()
    assert examples.nearest(query, np.arange(3), 0, embed) == [[], [], []] and not asked, "none is shown or embedded"


def test_words_of_one_spelling_are_added_up_and_none_is_without_a_name(small, monkeypatch):
    (wolf,), (unknown,) = small.tokenizer.title_and_content_ids(["wolf", "\u2603"], ["", ""])[0]
    added = {(wolf,): 3.0, (wolf, unknown): -0.25, (unknown,): 0.5}
    monkeypatch.setattr(type(small.scorer), "contributions", lambda *_: added)
    (why,) = small.explain("a wolf", [Label(3, "", "", 0.0, 0.0)])
    assert list(why.words.items()) == [("wolf", 3.0), ("[UNK]", 0.5), ("wolf[UNK]", -0.25)]
    learned = {(wolf,): " wolf", (unknown,): "wolf", (wolf, unknown): " "}    # as one of pieces with spaces reads them
    monkeypatch.setattr(small, "tokenizer", SimpleNamespace(backend=SimpleNamespace(
        decode=lambda ids, skip_special_tokens: learned[tuple(ids)])))
    assert small._contributions(None, 3) == {"wolf": 3.5}


def test_odd_questions(small):
    assert small.explain("a wolf", []) == []
    label = Label(3, "", "", 0.0, 0.0)
    (none,) = small.explain("a wolf", [label], nearest=0)
    assert none.nearest == [] and none.frequency == 3
    for odd in ("", "\x00", "\ud800", "日本語", "never seen", "wolf " * 100_000):
        (why,) = small.explain(odd, [label])
        assert isinstance(why, Explanation) and all(np.isfinite([near.similarity for near in why.nearest]))
    for wrong in (-1, 50):
        with pytest.raises(ValueError, match=f"no label {wrong} among 50"):
            small.explain("a wolf", [label, Label(wrong, "", "", 0.0, 0.0)])
