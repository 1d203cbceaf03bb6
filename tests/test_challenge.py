"""Two retrievers on shared labels, against a loop over texts and uids; and how long one takes."""

import shutil
import time

import numpy as np
import pytest

from data_contracts.errors import UsageError
from tasks.artifacts import Artifact, digest_of
from tasks.challenge import latencies, on_shared_labels
from tasks.champion import evaluate_champion
from tasks.gates import Score
from tasks.promotion import contest
from tasks.register import register
from tests import tiny
from tests.toy import toy_corpus
from xcmodels import ann
from xcmodels.combine import InnerProduct
from xcmodels.corpus import Corpus, Ragged, Texts
from xcmodels.encoders import QUERY, build_encoder, encode_all
from xcmodels.retrieval import Proposer, Retriever, save_retriever
from xcmodels.trunks import EncoderConfig


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


def retriever(corpus, folder, labels, seed=0) -> Retriever:
    """Return one that knows some of the corpus' labels, in an order of its own."""
    folder.mkdir()
    encoder = build_encoder(EncoderConfig(source="random", dim=16), corpus.idf, seed).eval()
    index = ann.build(encode_all(encoder, corpus.sides["label"], QUERY, np.asarray(labels)), "exact")
    save_retriever(folder, corpus, method="dpr", encoder=encoder, indexes={"labels": Proposer(index)}, shortlist=0,
                   scores=InnerProduct(index.vectors))
    for part in ("uid", "title"):
        texts = Texts.load(corpus.folder, f"label.{part}")
        Texts.save(folder, f"label.{part}", [texts[label] for label in labels])
    return Retriever.load(folder)


def expected(corpus, one, shared, ks=(1, 5)):
    """P@k and recall@k over the queries that have a shared label, by a loop."""
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    uids = list(Texts.load(corpus.folder, "label.uid"))
    hits = {k: [] for k in ks}
    for row in range(len(titles)):
        banned = {uids[label] for label in corpus.filters["test"][row]}
        true = {uids[label] for label in corpus.positives["test"][row]} & shared - banned
        if not true:
            continue
        [found] = one.predict([titles[row]], len(one.uids), [contents[row]])
        kept = [label.uid for label in found if label.uid in shared and label.uid not in banned]
        for k in ks:
            hits[k].append(len(true & set(kept[:k])))
    return {f"P/{k}": 100 * np.mean(found) / k for k, found in hits.items()}


def test_as_a_loop_over_texts_has_it(corpus, tmp_path):
    n = corpus.n_labels
    old = retriever(corpus, tmp_path / "old", list(range(n - 1, 9, -1)), seed=1)    # reversed, without the first ten
    new = retriever(corpus, tmp_path / "new", list(range(n - 5)))                   # without the last five
    uids = list(Texts.load(corpus.folder, "label.uid"))
    scores = on_shared_labels([new, old], corpus)
    for one, score in zip((new, old), scores, strict=True):
        for key, value in expected(corpus, one, set(uids[10:n - 5])).items():
            assert score.metrics[key] == pytest.approx(value)
        assert len(score.deciles) == 10
    assert scores[0].metrics["points"] == scores[1].metrics["points"] < len(corpus.sides["test"])


def test_alone_it_is_the_evaluation(corpus, tmp_path):
    one = retriever(corpus, tmp_path / "r", list(range(corpus.n_labels)))
    [score] = on_shared_labels([one], corpus)
    wanted = expected(corpus, one, set(Texts.load(corpus.folder, "label.uid")))
    assert {key: score.metrics[key] for key in wanted} == pytest.approx(wanted)


def test_nothing_shared_cannot_be_compared(corpus, tmp_path):
    half = corpus.n_labels // 2
    one = retriever(corpus, tmp_path / "one", list(range(half)))
    two = retriever(corpus, tmp_path / "two", list(range(half, corpus.n_labels)))
    with pytest.raises(ValueError, match="no row has a true label"):
        on_shared_labels([one, two], corpus)


def test_the_slower_of_two_is_told(corpus, tmp_path, monkeypatch):
    fast, slow = (retriever(corpus, tmp_path / name, [3, 4, 5]) for name in ("fast", "slow"))
    search = slow.search

    def slowly(*asked):
        time.sleep(0.05)
        return search(*asked)

    monkeypatch.setattr(slow, "search", slowly)
    quick, late = latencies([fast, slow])
    assert 0 < quick < 50 <= late


def test_a_corpus_without_filters(corpus, tmp_path):
    n = len(corpus.sides["test"])
    bare = Corpus(corpus.folder)
    bare.filters["test"] = Ragged(np.zeros(n + 1, np.int64), np.empty(0, np.int32))
    [score] = on_shared_labels([retriever(corpus, tmp_path / "r", list(range(corpus.n_labels)))], bare)
    assert score.metrics["points"] == n


def test_the_champion_on_the_newest_data_is_a_run_of_its_own(corpus, tmp_path):
    world, made = tiny.World(tmp_path / "home"), {}

    def write(out):
        made["retriever"] = retriever(corpus, tmp_path / "r", list(range(corpus.n_labels)))
        shutil.copytree(tmp_path / "r", out, dirs_exist_ok=True)

    artifact = world.store.publish(digest_of("r"), "retriever", {}, write)
    register(world.tracker, world.run, "xc", retriever_dir=world.store.open(artifact),
             retriever_digest=artifact.digest, score=Score({"P/1": 1.0}), test_digest="old", card="")
    contest(world.tracker, "xc", "1")
    pack = Artifact.of(digest_of("pack"))
    judged = evaluate_champion(world.tracker, "xc", corpus, pack, "xc evaluate")
    assert judged.version == "1"
    assert judged.score == on_shared_labels([made["retriever"]], corpus)[0]
    with world.tracker.required() as client:
        run = client.get_run(judged.run_id)
    assert run.data.metrics["test/P/1"] == pytest.approx(judged.score.metrics["P/1"])
    assert "xc evaluate" in run.data.tags["mlflow.note.content"]
    assert evaluate_champion(world.tracker, "xc", corpus, pack, "xc evaluate").run_id == judged.run_id != world.run


def test_without_a_champion_there_is_nothing_to_evaluate(corpus, tmp_path):
    with pytest.raises(UsageError, match="no model is registered"):
        evaluate_champion(tiny.World(tmp_path / "home").tracker, "xc", corpus, Artifact.of(digest_of("pack")))
