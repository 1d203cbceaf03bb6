"""A threshold of a retriever leaves exactly the labels that are as sure, and none where there is none."""

from itertools import pairwise

import pytest

from tests.support.toy import trained
from xcmodels.data.corpus import Texts
from xcmodels.retrieval.retriever import Retriever

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def retriever():
    return Retriever.load(trained("ngame").retriever)


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.93, 1.0])
def test_a_threshold_leaves_the_labels_that_are_as_sure(retriever, threshold):
    folder = trained("ngame").corpus.folder
    titles, contents = (list(Texts.load(folder, f"test.{part}")) for part in ("title", "content"))
    every = retriever.predict(titles, 6, contents)
    sure = [[label for label in labels if label.confidence >= threshold] for labels in every]
    assert retriever.predict(titles, 6, contents, threshold) == sure
    assert retriever.predict(titles, 6, contents, every[0][2].confidence)[0] == every[0][:3], "the bound is in"
    assert [] not in sure or threshold > 0.05
    for labels in every:
        assert all(0 <= label.confidence <= 1 for label in labels)
        assert all(a.confidence >= b.confidence for a, b in pairwise(labels))


@pytest.mark.parametrize("threshold", [-0.1, 1.01, float("nan")])
def test_a_threshold_is_a_chance(retriever, threshold):
    with pytest.raises(ValueError, match=f"threshold must be between 0 and 1, got {threshold}"):
        retriever.predict(["l1w0"], threshold=threshold)
