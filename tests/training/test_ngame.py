"""NGAME's second module: the length of its classifiers."""

import numpy as np
import pytest
import torch

from tests.support import toy
from xcmodels.methods.ngame.stages import CLASSIFIER
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.checkpoint import read_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("name", "unit"), [("ngame", False), ("ngame unit", True)])
def test_classifiers_are_trained_and_served_at_unit_length_or_at_their_own(name, unit):
    made = toy.trained(name)
    stage = made.method.stages[-1]
    last = stage.rounds[-1].name
    vectors = made.mined[last].vectors
    model = read_model(stage, made.corpus, made.models[CLASSIFIER], vectors).eval()
    served = Retriever.load(made.retriever).indexes["labels"].vectors
    lengths = np.linalg.norm(served, axis=1)
    assert (np.abs(lengths - 1) < 1e-5).all() == unit
    rows = made.corpus.training_rows()[:5]
    queries = torch.from_numpy(vectors["queries"][rows])
    scores = model(queries, torch.arange(made.corpus.n_labels))
    np.testing.assert_allclose(scores.values.numpy(), queries.numpy() @ served.T, atol=1e-5)
