"""Two retrievers on shared labels, against a loop over texts and uids; and how long one takes."""

import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest

from data_contracts.errors import UsageError
from tasks.core.store import Artifact, digest_of
from tasks.evaluation.feedback_effect import _trained_on
from tasks.evaluation.gates import Incomparable, Score
from tasks.registry.comparison import compare, comparison_on_newest, evaluate_champion, latencies, newest_corpus
from tasks.registry.promotion import promote_by_gates
from tasks.registry.register import register
from tasks.registry.resolve import resolve
from tests.support import tiny
from tests.support.toy import toy_corpus
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.seen_texts import digests, trained_on
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import QUERY, build_encoder, encode_all
from xcmodels.retrieval import ann
from xcmodels.retrieval.builder import save_retriever
from xcmodels.retrieval.calibration import UNKNOWN
from xcmodels.retrieval.label_editing import REMOVE, Edit, edit_retriever
from xcmodels.retrieval.proposers import Proposer
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import InnerProduct


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return toy_corpus(tmp_path_factory.mktemp("corpus"))


def retriever(corpus, folder, labels, seed=0) -> Retriever:
    """Return one that knows some of the corpus' labels, in an order of its own."""
    folder.mkdir()
    encoder = build_encoder(EncoderConfig(source="random", dim=16), corpus.idf, seed).eval()
    index = ann.build(encode_all(encoder, corpus.sides["label"], QUERY, np.asarray(labels)), "exact")
    save_retriever(folder, corpus, method="dpr", encoder=encoder, proposers={"labels": Proposer(index)}, shortlist=0,
                   scorer=InnerProduct(index.vectors), calibration=UNKNOWN)
    for part in ("uid", "title"):
        texts = Texts.load(corpus.folder, f"label.{part}")
        Texts.save(folder, f"label.{part}", [texts[label] for label in labels])
    return Retriever.load(folder)


def trained_on_tests(corpus, n) -> Corpus:
    """The corpus with its first n test queries as the training queries that have a label, as of an older import."""
    other = Corpus(corpus.folder)
    truth = corpus.positives["test"]
    other.sides["train"], other.facts["train"] = corpus.sides["test"], len(corpus.sides["test"])
    other.positives["train"] = Ragged(np.minimum(truth.offsets, truth.offsets[n]), truth.values[:truth.offsets[n]])
    return other


def expected(corpus, one, shared, ks=(1, 5), first=0):
    """P@k over the queries from `first` on that have a shared label, by a loop."""
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    uids = list(Texts.load(corpus.folder, "label.uid"))
    hits = {k: [] for k in ks}
    for row in range(first, len(titles)):
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
    found = compare([new, old], corpus)
    scores = found.scores
    assert (found.queries, found.left_out, found.note("v2", "v1")) == (150, 0, "")
    assert set(found.errors) == {"P/1", "PSP/5", "mean", *(f"decile/{number}" for number in range(1, 11))}
    for one, score in zip((new, old), scores, strict=True):
        for key, value in expected(corpus, one, set(uids[10:n - 5])).items():
            assert score.metrics[key] == pytest.approx(value)
        assert len(score.deciles) == 10
    assert scores[0].metrics["points"] == scores[1].metrics["points"] < len(corpus.sides["test"])


def test_alone_it_is_the_evaluation(corpus, tmp_path):
    one = retriever(corpus, tmp_path / "r", list(range(corpus.n_labels)))
    [score] = compare([one], corpus).scores
    wanted = expected(corpus, one, set(Texts.load(corpus.folder, "label.uid")))
    assert {key: score.metrics[key] for key in wanted} == pytest.approx(wanted)


def test_nothing_shared_cannot_be_compared(corpus, tmp_path):
    half = corpus.n_labels // 2
    one = retriever(corpus, tmp_path / "one", list(range(half)))
    two = retriever(corpus, tmp_path / "two", list(range(half, corpus.n_labels)))
    with pytest.raises(Incomparable, match=r"no test query has a label that they share$"):
        compare([one, two], corpus)


def test_queries_that_one_was_trained_on_are_left_out_and_counted(corpus, tmp_path):
    """The split moved: what an older version learned is in the test set now."""
    labels = list(range(corpus.n_labels))
    old = retriever(trained_on_tests(corpus, 50), tmp_path / "old", labels, seed=1)
    new = retriever(corpus, tmp_path / "new", labels)
    assert (len(old.training_digests), len(new.training_digests)) == (50, 600)
    found = compare([new, old], corpus)
    assert found.note("v2", "v1") == "50 of 150 test queries are left out: v2 or v1 was trained on them"
    for one, score in zip((new, old), found.scores, strict=True):
        wanted = expected(corpus, one, set(Texts.load(corpus.folder, "label.uid")), first=50)
        assert {key: score.metrics[key] for key in wanted} == pytest.approx(wanted)
    every = retriever(trained_on_tests(corpus, 150), tmp_path / "every", labels)
    with pytest.raises(Incomparable, match="share, 150 of 150 being left out as trained on"):
        compare([new, every], corpus)


def test_what_feedback_changed_is_counted_on_queries_that_neither_was_trained_on(corpus):
    rows = np.arange(12)
    known = digests(corpus.sides["test"].tokens(rows))
    models = [SimpleNamespace(tokenizer=corpus.tokenizer(), training_digests=np.unique(known[part]))
              for part in (slice(0, 3), slice(8, 10))]
    assert _trained_on(rows, corpus, models).tolist() == [row < 3 or row in (8, 9) for row in range(12)]


def test_a_text_is_known_again_by_what_is_read_of_it(corpus):
    """Whatever its case and where its title ends; and by no other tokens."""
    tokenizer = corpus.tokenizer()
    texts = digests(tokenizer(["l1w0 l2w1", "L1W0", "l2w1 l1w0", "l1w0", ""], ["", "l2w1", "", "", ""]))
    assert texts[0] == texts[1] and len(set(texts.tolist())) == 4
    row = int(np.flatnonzero(corpus.positives["train"].lengths)[0])
    title, content = (Texts.load(corpus.folder, f"train.{part}")[row] for part in ("title", "content"))
    assert np.isin(digests(tokenizer([title.upper()], [content])), trained_on(corpus)).all()


def test_few_shared_labels_are_found_among_many_others(corpus, tmp_path):
    """A pilot's champion knows some labels of a vocabulary: what else a version answers takes none of their places."""
    few = retriever(corpus, tmp_path / "few", list(range(corpus.n_labels)))
    labels = np.tile(np.arange(corpus.n_labels), 41)
    many = retriever(corpus, tmp_path / "many", labels)
    Texts.save(tmp_path / "many", "label.uid", [
        uid if place < corpus.n_labels else f"other:{place}" for place, uid in enumerate(many.uids)])
    alone, beside = compare([few, Retriever.load(tmp_path / "many")], corpus).scores
    assert beside.metrics == pytest.approx(alone.metrics), "its vectors are the same"


def test_labels_that_one_has_removed_are_not_asked_of_either(corpus, tmp_path):
    new = retriever(corpus, tmp_path / "new", list(range(corpus.n_labels)))
    edit_retriever(tmp_path / "new", [Edit(REMOVE, new.uids[label]) for label in range(5)], tmp_path / "edited")
    edited = Retriever.load(tmp_path / "edited")
    assert np.array_equal(edited.training_digests, new.training_digests)
    for score in compare([new, edited], corpus).scores:
        wanted = expected(corpus, new, set(list(Texts.load(corpus.folder, "label.uid"))[5:]))
        assert {key: score.metrics[key] for key in wanted} == pytest.approx(wanted)


def test_the_slower_of_two_is_told(corpus, tmp_path, monkeypatch):
    fast, slow = (retriever(corpus, tmp_path / name, [3, 4, 5]) for name in ("fast", "slow"))
    search = slow.search

    def slowly(*asked):
        time.sleep(0.05)
        return search(*asked)

    monkeypatch.setattr(slow, "search", slowly)
    quick, late = latencies([fast, slow])
    assert 0 < quick < late and late >= 50


def test_a_corpus_without_filters(corpus, tmp_path):
    n = len(corpus.sides["test"])
    bare = Corpus(corpus.folder)
    bare.filters["test"] = Ragged(np.zeros(n + 1, np.int64), np.empty(0, np.int32))
    [score] = compare([retriever(corpus, tmp_path / "r", list(range(corpus.n_labels)))], bare).scores
    assert score.metrics["points"] == n


@pytest.fixture
def models(corpus, tmp_path):
    return tiny.RegisteredModels(tmp_path / "home")


def packed(models, corpus, name="toy", **about):
    """Publish the corpus as the step that packs it would; -> its artifact."""
    about = {"step": "pack", "settings": {"facts": {"name": name}, **about}, "code": {}}
    return models.store.publish(digest_of(about), "corpus", {}, lambda out: shutil.copytree(
        corpus.folder, out, dirs_exist_ok=True), about)


def entered(models, corpus, folder, pack, seed=0, **more) -> str:
    """Register a retriever of every label, and let it pass the gates; -> its version."""
    def write(out):
        retriever(corpus, folder, list(range(corpus.n_labels)), seed)
        shutil.copytree(folder, out, dirs_exist_ok=True)

    artifact = models.store.publish(digest_of(folder.name), "retriever", {"corpus": pack.digest}, write)
    made = register(models.tracker, models.run, "xc", retriever_dir=models.store.open(artifact), card="",
                    retriever_digest=artifact.digest, score=Score({"P/1": 1.0}), **{"test_digest": "old", **more})
    promote_by_gates(models.tracker, "xc", made.version)
    return made.version


def test_the_champion_on_the_newest_data_is_a_run_of_its_own(corpus, models, tmp_path):
    pack = packed(models, corpus)
    entered(models, trained_on_tests(corpus, 50), tmp_path / "r", pack)
    judged = evaluate_champion(models.tracker, "xc", corpus, pack, "xc evaluate")
    one = Retriever.load(tmp_path / "r")
    assert (judged.version, judged.note) == (
        "1", "50 of 150 test queries are left out: version 1 was trained on them")
    assert judged.score == compare([one], corpus).scores[0]
    with models.tracker.required() as client:
        run = client.get_run(judged.run_id)
    assert run.data.metrics["test/P/1"] == pytest.approx(judged.score.metrics["P/1"])
    assert "xc evaluate" in run.data.tags["mlflow.note.content"] and judged.note in run.data.tags["mlflow.note.content"]
    assert evaluate_champion(models.tracker, "xc", corpus, pack, "xc evaluate").run_id == judged.run_id != models.run


def test_what_was_compared_once_is_not_measured_again(corpus, models, tmp_path):
    pack, said = packed(models, corpus), []
    for name in ("one", "two"):
        entered(models, corpus, tmp_path / name, pack, seed=len(name))
    versions = [resolve(models.tracker, f"xc/{number}") for number in (2, 1)]
    on_corpus = comparison_on_newest(models.store, versions[0], said.append)
    first = on_corpus(*versions)
    assert on_corpus(*versions) == first and said == ["    versions 2 and 1 answer the test queries of toy"]
    assert on_corpus(*versions[::-1]).scores == first.scores[::-1] and len(said) == 2


def test_a_promotion_measures_both_again_once_the_data_has_grown(cli, corpus, models, tmp_path):
    home, pack = ("--home", str(models.store.home)), packed(models, corpus)
    entered(models, trained_on_tests(corpus, 50), tmp_path / "one", pack)
    entered(models, corpus, tmp_path / "two", pack, test_digest="grown")
    assert "(on another test set than the champion's)  refused: it cannot be compared with" in cli("models", *home)[1]
    code, _, err = cli("promote", "xc/2", "--reason", "it knows more", *home)
    assert code == 0 and "versions 2 and 1 answer the test queries of toy" in err and "holds  P@1" in err
    assert "50 of 150 test queries are left out: v2 or v1 was trained on them" in err.splitlines()[-1]
    assert models.aliases()["champion"] == "2"
    [last] = [line for line in cli("models", *home)[1].splitlines() if line.startswith("xc/2")]
    assert "it knows more (P@1" in last and "50 of 150 test queries are left out" in last and "another" not in last


def test_the_newest_test_set_is_that_of_the_corpus_used_last(corpus, models, tmp_path):
    old = packed(models, corpus, age=1)
    entered(models, corpus, tmp_path / "r", old)
    packed(models, corpus, age=2)
    packed(models, corpus, name="another", age=3)
    version = resolve(models.tracker, "xc/1")
    keys = {manifest["about"]["settings"].get("age"): key for key, manifest in models.store.steps()
            if manifest["kind"] == "corpus"}
    for later, age in enumerate((2, 1), start=1):
        last = models.store.find(keys[age])
        os.utime(models.store.home / "refs" / "steps" / keys[age], (time.time() + later, time.time() + later))
        assert newest_corpus(models.store, version, print).pack == last
    with pytest.raises(Incomparable, match=r"the test set of toy is not in this home \(xc prepare --data DIR\)"):
        comparison_on_newest(tiny.fresh_store(tmp_path / "other"), version, print)(version, version)


def test_without_a_champion_there_is_nothing_to_evaluate(corpus, tmp_path):
    none = tiny.RegisteredModels(tmp_path / "home")
    with pytest.raises(UsageError, match="no model is registered"):
        evaluate_champion(none.tracker, "xc", corpus, Artifact.of(digest_of("pack")))
