"""Labels that reviewers rejected for a text are its negatives whenever the text is trained on."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.toy import FAMILIES
from xcmodels.data.batching import with_rejected
from xcmodels.data.corpus import Ragged
from xcmodels.data.every_label import EveryLabelBatch
from xcmodels.method import Mined
from xcmodels.retrieval.sparse_training import training_pairs

NO_QUERIES = ("siamese",)    # SiameseXML's module I trains labels, each against one query that has it


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The toy corpus, of which every third training query has two rejected labels, and one more without a positive."""
    corpus = copy(toy.toy_corpus(tmp_path_factory.mktemp("rejected")))
    rng, rows = np.random.default_rng(0), corpus.training_rows()[::3]
    pairs = [(row, label) for row in rows.tolist()
             for label in rng.permutation(np.setdiff1d(np.arange(corpus.n_labels), np.concatenate(
                 [corpus.positives["train"][row], corpus.filters["train"][row]])))[:2]]
    corpus.rejected = Ragged.of_pairs(*np.array(pairs).T, len(corpus.sides["train"]))
    return corpus


def negatives_of(batch, at):
    """Return the labels that some loss of a batch pushes away from row `at` of its queries."""
    out = set()
    blocks = dict(batch.blocks)
    if isinstance(batch, EveryLabelBatch):
        blocks["every label"] = replace(
            batch.block(slice(0, batch.n_labels)),
            columns=torch.arange(batch.n_labels).expand(len(batch.sides["queries"].ids), -1))
    for block in blocks.values():
        if (block.rows, block.cols) != ("queries", "labels"):
            continue
        counted = ~block.positives[at] if block.weights is None else ~block.positives[at] & (block.weights[at] != 0)
        labels = batch.sides["labels"].ids if block.columns is None else block.columns[at]
        out |= set(labels[counted].tolist())
    return out


@pytest.mark.parametrize(("name", "stage"), [
    (name, stage) for name, config in FAMILIES.items() for stage in toy.made_by(name, config).stages
    if stage.name not in NO_QUERIES],
    ids=lambda value: value if isinstance(value, str) else value.name)
def test_every_stage_pushes_them_away(judged, name, stage):
    rng, n, width = np.random.default_rng(1), len(judged.sides["train"]), 8
    mined = Mined(negatives=rng.integers(-1, judged.n_labels, (n, 4)).astype(np.int32),
                  vectors={"queries": rng.random((n, width), dtype=np.float32)})
    rows = judged.training_rows()[:24]
    batch = stage.batch(judged, stage.rounds[-1], mined, rows, rng)
    for at, row in enumerate(rows.tolist()):
        assert set(judged.rejected[row].tolist()) <= negatives_of(batch, at)
    assert judged.rejected.take(rows)[1].sum() == 16


def test_no_label_is_a_negative_twice(judged):
    rows = judged.training_rows()[:9]
    mined = np.stack([np.append(judged.rejected[row], [-1, 7, 9])[:3] if len(judged.rejected[row]) else [7, -1, 9]
                      for row in rows.tolist()])
    for row, labels in zip(rows.tolist(), with_rejected(judged, rows, mined), strict=True):
        given = labels[labels >= 0].tolist()
        assert len(given) == len(set(given)) and set(judged.rejected[row].tolist()) <= set(given)


def test_the_sparse_view_learns_them_even_of_a_text_without_a_positive(judged):
    corpus = copy(judged)
    alone = int(corpus.training_rows()[1])
    positives = corpus.positives["train"]
    kept = np.repeat(np.arange(len(positives)), positives.lengths) != alone
    corpus.positives = {**corpus.positives, "train": positives.where(kept)}
    vars(corpus).pop("train_positives", None)
    corpus.rejected = Ragged.of_pairs(np.array([alone, int(corpus.validation[0])]), np.array([5, 5]), len(positives))
    assert alone not in corpus.training_rows()
    pairs = training_pairs(corpus, np.full((len(corpus.training_rows()), 1), -1), 0, seed=0)
    assert pairs.rows[~pairs.relevant].tolist() == [alone] and pairs.labels[~pairs.relevant].tolist() == [5]
