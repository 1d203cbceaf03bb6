"""From a library's own files to a corpus: Annif's corpus and a SKOS vocabulary, prepared for a run with graphs."""

import numpy as np
import pytest
import torch

from flows.cli.app import app
from tasks.core.dask_workers import Workers
from tasks.core.step import run
from tasks.core.store import Store
from tasks.plan import pipeline
from tests.support.toy import FAMILIES
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.label_branches import Branches
from xcmodels.method import Mined
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.ramen.config import GraphConfig, RamenConfig

ANIMALS = ["cat", "dog", "mouse", "seal", "hawk", "owl"]
TURTLE = """\
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix ex: <http://example.org/> .
ex:mammal a skos:Concept ; skos:prefLabel "mammals"@en .
ex:bird a skos:Concept ; skos:prefLabel "birds"@en .
""" + "".join(
    f'ex:{name} a skos:Concept ; skos:prefLabel "{name}s"@en, "{name}"@fi ; skos:altLabel "tame {name}s"@en ; '
    f'skos:broader ex:{"bird" if name in ("hawk", "owl") else "mammal"} .\n' for name in ANIMALS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("library")
    (folder / "animals.ttl").write_text(TURTLE + "ex:cat skos:related ex:mouse .\n")
    (folder / "titles.tsv").write_text("".join(
        f"On the {name} of region {number}\t<http://example.org/{name}> <http://example.org/{ANIMALS[number % 6]}>\n"
        for number in range(20) for name in ANIMALS))
    app(["data", "import", str(folder / "titles.tsv"), str(folder / "animals"), "--vocabulary",
         str(folder / "animals.ttl"), "--language", "en"], result_action="return_value")
    done = {}
    steps = pipeline(folder / "animals", "ramen", "cpu", {"prepare.vocabulary": "200"}).prepare
    for step in steps:
        done[step.name] = run(step, done, Store(folder / "home"), Workers(count=0)).artifact
    return Corpus(Store(folder / "home").open(done["pack"]))


def test_texts_labels_and_graphs_are_those_of_the_vocabulary(corpus):
    uids, titles = map(list, corpus.label_texts())
    assert uids == [f"http://example.org/{name}" for name in sorted(ANIMALS)]
    assert titles == [f"{name}s" for name in sorted(ANIMALS)]
    tokens = corpus.sides["label"].tokens(np.array([0]))
    assert corpus.tokenizer().backend.decode(tokens.ids.tolist()).split() == ["cats", "tame", "cats"]
    assert corpus.n_queries + len(corpus.sides["test"]) == 120 and set(corpus.graphs) == {"broader", "related"}
    broader, related = corpus.graphs["broader"].edges, corpus.graphs["related"].edges
    assert [broader["label"][row].tolist() for row in range(6)] == [[1], [1], [0], [1], [0], [1]]
    assert [related["label"][row].tolist() for row in range(6)] == [[1], [], [], [0], [], []]
    assert not broader["train"].lengths[:corpus.n_queries].any()


def test_the_branches_are_those_of_the_vocabulary_whichever_concepts_are_labels(corpus):
    branches = Branches.load(corpus.folder)
    uids = [*map(branches.uids.__getitem__, range(len(branches.uids)))]
    assert uids == [f"http://example.org/{name}" for name in sorted([*ANIMALS, "mammal", "bird"])]
    under = branches.under(np.array([uids.index("http://example.org/bird")]))
    assert [uids[row].rpartition("/")[2] for row in under.tolist()] == ["bird", "hawk", "owl"]


def test_ramen_trains_on_graphs_of_labels_alone(corpus):
    """A batch's labels draw anchors, its queries none; the loss is finite and reaches the encoder."""
    stage = METHODS["ramen-ance"].make(RamenConfig(FAMILIES["ramen-ance"].base, GraphConfig())).stages[0]
    model = stage.build(corpus, {}).eval()
    batch = stage.batch(corpus, stage.rounds[0], Mined(), corpus.training_rows()[:20], seeds.generator(0, "loss"))
    assert batch.sides["anchors.broader"].ids.tolist() == [0, 1]
    active = {name: (batch.blocks[name].chosen_positives >= 0).any() for name in ("broader.labels", "broader.queries")}
    assert active == {"broader.labels": True, "broader.queries": False}
    sum(stage.loss(model, batch.to(torch.device("cpu"))).values()).backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    assert grads and all(np.isfinite(grad.coalesce().values() if grad.is_sparse else grad).all() for grad in grads)
