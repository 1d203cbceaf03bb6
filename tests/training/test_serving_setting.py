"""Every method served in every way by one setting: scores that are what their parts say, with nothing trained again."""

import numpy as np
import pytest

from tests.support.toy import explains_its_answers, toy_corpus
from xcmodels.methods.presets import flat, resolve
from xcmodels.methods.registry import METHODS
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving import SERVED
from xcmodels.training.local_run import train_all

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 3, "batch_size": 64, "refresh_from": 1, "refresh_every": 1, "warmup": 3, "least_steps": 0,
       "cluster_size": 4, "cluster_max": 8, "shortlist": 20, "min_leaf": 20, "hard": 5, "uniform": 8, "mined": 8}
ENCODER = {"encoder.source": "random", "encoder.dim": "16", "encoder.idf_power": "1.0"}
NAMES = ("ngame", "astra", "unidec", "depsl", "siamesexml", "ramen", "ramen-ance")
PARTS = {"encoder": {"encoder"}, "classifier": {"classifier"}, "sum": {"encoder", "classifier"},
         "fused": {"encoder", "classifier", "similar texts", "words", "trees"}}


def config(name, serve):
    """Return a method's settings, small, served in some way; fused by all that there is."""
    keys = flat(resolve(name, "cpu", {}))
    few = {key: str(FEW[key.rpartition(".")[2]]) for key, value in keys.items()
           if key.rpartition(".")[2] in FEW and value}
    base = "base." if name.startswith("ramen") else ""
    encoder = {f"{base}{key}": value for key, value in ENCODER.items()}
    all_terms = {f"{base}fusion.centroids": "true", f"{base}fusion.words": "true"}
    return resolve(name, "cpu", {**few, **encoder, **all_terms, f"{base}serve": serve}).method


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("toy"), queries=400, labels=30, tests=60, validation=60)


@pytest.fixture(scope="module")
def trials(corpus, tmp_path_factory):
    made = {}

    def trial(name):
        if name not in made:
            served = "encoder" if name in ("depsl", "ramen-ance") else "fused"
            made[name] = train_all(corpus, METHODS[name].make(config(name, served)), tmp_path_factory.mktemp(name))
        return made[name]

    return trial


@pytest.mark.parametrize("serve", SERVED)
@pytest.mark.parametrize("name", NAMES)
def test_served(corpus, trials, tmp_path, name, serve):
    alone = name in ("depsl", "ramen-ance")    # there is no classifier
    if alone and serve in ("classifier", "sum"):
        with pytest.raises(ValueError, match="serve must be encoder or fused"):
            config(name, serve)
        return
    trial, method = trials(name), METHODS[name].make(config(name, serve))
    assert [stage.settings for stage in method.stages] == [stage.settings for stage in trial.method.stages]
    method.build_retriever(corpus, trial.models, trial.vectors, tmp_path)
    retriever = Retriever.load(tmp_path)
    ids, scores = predict(retriever, corpus, 5)
    assert (ids[:, 0] >= 0).all() and np.isfinite(scores[:, 0]).all()
    explains_its_answers(type(trial)(**{**vars(trial), "retriever": tmp_path}),
                         PARTS[serve] - ({"classifier"} if alone else set()))


def test_a_sum_is_the_sum_of_both(corpus, trials, tmp_path):
    scores = {}
    for name in ("ngame", "unidec", "astra", "siamesexml"):
        for serve in ("encoder", "classifier", "sum"):
            out = tmp_path / name / serve
            out.mkdir(parents=True)
            trial = trials(name)
            METHODS[name].make(config(name, serve)).build_retriever(corpus, trial.models, trial.vectors, out)
            retriever = Retriever.load(out)
            ids, found = retriever.search(retriever.tokenizer(["l3w1 l3w0"], ["l3w2"]), corpus.n_labels)
            scores[serve] = found[0][np.argsort(ids[0])]
        np.testing.assert_allclose(scores["sum"], scores["encoder"] + scores["classifier"], atol=1e-4)


def test_partitions_have_no_vector_a_label(tmp_path):
    with pytest.raises(ValueError, match="serve must be mixed or encoder where there are 3 partitions, got 'fused'"):
        resolve("siamesexml", "cpu", {"partitions": "3", "serve": "fused"})
