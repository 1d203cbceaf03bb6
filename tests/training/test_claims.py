"""The experiments that claims are judged in: what it trains, what it remembers, and what it measures."""

import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import bench_classifier_step
from benchmarks.claims import __main__ as claims_command
from benchmarks.claims import experiments as experiments_module
from benchmarks.claims import figures
from benchmarks.claims.claims import CLAIMS, FreshNegatives, epochs_to
from benchmarks.claims.direct_claims import DIRECT_CLAIMS, cost_of_a_step
from benchmarks.claims.experiments import Experiments, Results, Variant
from benchmarks.claims.figures import theorem_1, theorem_constants
from benchmarks.synthetic import CorpusShape, synthetic_corpus
from data_contracts.errors import UsageError
from tests.conftest import ROOT
from tests.support.toy import toy_corpus, trained
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.method import Mined
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.nn.encoders import LABEL, QUERY, encode_all
from xcmodels.retrieval.proposers import candidates
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.serving_config import FusionConfig
from xcmodels.training.checkpoint import read_model
from xcmodels.training.local_run import train_all

QUICK = {"encoder.source": "random", "encoder.dim": "16", "fusion.min_leaf": "5", "m1.epochs": "2", "m2.epochs": "1",
         "m1.least_steps": "0", "m2.least_steps": "0"}


def test_every_claim_is_there_once_and_its_variants_can_be_built():
    numbers = [each.number for each in (*CLAIMS, *DIRECT_CLAIMS)]
    assert sorted(numbers) == list(range(1, 27))
    for claim in CLAIMS:
        assert all(variant.build(0)[1].rounds for variant in claim.variants.values())


def test_no_claim_compares_a_variant_with_itself():
    """A variant is called by what it differs in: where a preset comes to be the same, its name tells nothing more."""
    for claim in CLAIMS:
        built = [(variant.method, variant.corpus, variant.build_method, variant.build(0)[0])
                 for variant in claim.variants.values()]
        assert all(one not in built[at + 1:] for at, one in enumerate(built)), claim.number


def test_ngame_is_ranked_by_the_fusion_of_its_paper():
    """It was by the preset's, whose scores over words beat classifiers whatever a tree over NGAME's two scores does."""
    (claim,) = (each for each in CLAIMS if each.number == 11)
    (variant,) = claim.variants.values()
    config = variant.build(0)[0]
    assert (config.serve, config.fusion) == ("fused", FusionConfig())
    assert config.fusion == resolve("ngame", "lf-amazontitles-131k", {}).method.fusion
    assert config.training == resolve("ngame", "cpu", {}).method.training


def test_more_is_seed_by_seed():
    """By Student's table, with 4 degrees of freedom a mean gain exceeds 0 at 5% from 2.132 standard errors on."""
    found = Results({"a": [{"P/1": 10.0}, {"P/1": 12.0}], "c": [{"P/1": 4.0}] * 2})
    assert found.mean("a", "P/1") == 11 and found.deviation("a", "P/1") == pytest.approx(2**0.5)
    for gains, more in (([1, 2, 3, 4, 5], True), ([-2, -1, 0, 1, 12], False), ([2.10, 2.10, 2.10, 2.10, 0.01], True)):
        error = np.std(gains, ddof=1) / 5**0.5
        assert more == (np.mean(gains) / error > 2.132)
        seeds_of = {"a": [{"x": 50.0 + 9 * i + gain} for i, gain in enumerate(gains)],
                    "b": [{"x": 50.0 + 9 * i} for i in range(5)]}    # seeds differ by more than the gain
        assert Results(seeds_of).beats("a", "b", "x") == more and not Results(seeds_of).beats("b", "a", "x")
    one = Results({"a": [{"x": 2.0}], "b": [{"x": 1.0}]})
    assert one.deviation("a", "x") == 0 and one.beats("a", "b", "x") and not one.beats("a", "a", "x")


def test_the_epochs_a_curve_takes():
    found = Results({"a": [{"P/1 epoch 2": 10.0, "P/1 epoch 4": 30.0, "P/1 epoch 10": 40.0, "P/1": 99.0}] * 2})
    assert [epochs_to(found, "a", reached) for reached in (5, 10, 11, 40, 41)] == [2, 2, 4, 10, float("inf")]


def test_theorem_4s_constants():
    equal = theorem_constants(np.full(60, 2), np.full(40, 3))
    assert equal == (pytest.approx(57 / 60), pytest.approx(1.0))      # Corollary 5: at most 1
    p, q, n, n_labels = np.array([1, 2, 3, 2]), np.array([4, 3, 1]), 4, 3
    odds = [0, 1 / 3, 3]
    c_1 = q.mean() * (np.mean(odds) + np.std(odds) * n_labels**0.5) / n
    assert theorem_constants(p, np.append(q, 0)) == (
        pytest.approx(c_1), pytest.approx((2 + np.std(p) * n**0.5) * n / n_labels))


def test_theorem_1_is_counted_pair_by_pair():
    trial = trained("ngame")
    corpus, found = trial.corpus, theorem_1(trial, max_queries=10_000)
    rows = corpus.training_rows()
    x, z = trial.vectors["queries"][rows], trial.vectors["labels"]
    truth = [set(corpus.positives["train"][row].tolist()) for row in rows]
    apart = sorted(float(np.linalg.norm(x[i] - z[j])) for i, own in enumerate(truth) for j in own)
    radius = np.quantile(apart, 0.5)
    near = np.linalg.norm(x[:, None] - z, axis=2) <= radius
    hard = np.mean([[near[i, j] and j not in truth[i] for j in range(60)] for i in range(len(rows))])
    assert found["hard %"] == pytest.approx(100 * hard, abs=0.01)
    assert found["e1 %"] == pytest.approx(100 * np.mean(np.array(apart) > radius))
    assert found["missed %"] <= found["hard %"] and found["missed %"] < found["bound %"]


def test_filter_pairs_are_not_among_those_that_indexes_are_to_propose():
    """They were, and a tenth and more of a dictionary's test pairs are; P leaves them out."""
    made = trained("siamesexml")
    retriever, corpus, rows = Retriever.load(made.retriever), Corpus(made.corpus.folder), np.arange(0, 150, 2)
    truth = [set(row.tolist()) for row in (corpus.positives["test"][row] for row in rows)]
    hidden = [min(own) if row % 4 else -1 for row, own in zip(rows, truth, strict=True)]
    corpus.filters["test"] = Ragged.of_pairs(rows[np.array(hidden) >= 0], np.array([x for x in hidden if x >= 0]), 150)
    found = figures._of_siamesexml(SimpleNamespace(corpus=corpus), retriever, rows, depth=5)
    queries = encode_all(retriever.encoder, corpus.sides["test"], QUERY, rows)
    for name, indexes in (("texts", ["texts"]), ("all three", list(retriever.proposers))):
        ids = candidates([retriever.proposers[index] for index in indexes], queries, 5)
        pairs = [label in proposed for own, left_out, proposed in zip(truth, hidden, ids, strict=True)
                 for label in own - {left_out}]
        assert found[f"recall of {name}"] == pytest.approx(100 * np.mean(pairs))


def test_a_first_stage_alone_ranks_by_its_embeddings(tmp_path):
    corpus = toy_corpus(tmp_path / "corpus", queries=200, labels=30, tests=40, validation=20)
    for name in ("ngame", "siamesexml"):
        config, method = Variant(name, {"encoder.source": "random", "encoder.dim": "16"}, alone=True).build(0)
        whole = METHODS[name].make(config)
        assert [stage.name for stage in method.stages] == [whole.stages[0].name] != [s.name for s in whole.stages]
    config, method = Variant("ngame", QUICK, alone=True).build(0)
    done = train_all(corpus, method, tmp_path / "trained")
    model = read_model(method.stages[0], corpus, done.models["encoder"])
    rows = np.arange(40)
    scores = encode_all(model, corpus.sides["test"], QUERY, rows) @ encode_all(model, corpus.sides["label"], LABEL).T
    for row in rows:
        scores[row, corpus.filters["test"][row]] = -np.inf
    ids, _ = predict(Retriever.load(done.retriever), corpus, 3, rows)
    assert [set(row) for row in ids] == [set(np.argsort(-row)[:3]) for row in scores]


def test_fresh_negatives_are_the_hardest_of_every_label(tmp_path):
    corpus = toy_corpus(tmp_path, queries=40, labels=30, tests=5, validation=4)
    stage = FreshNegatives(resolve("astra", "cpu", {"encoder.source": "random", "encoder.dim": "8",
                                                    "every_label": "true", "hard": "3", "dropout": "0"}).method)
    model = stage.build(corpus, {}).eval()
    rows = corpus.training_rows()[:12]
    batch = stage.batch(corpus, stage.rounds[0], Mined(), rows, seeds.generator(0, "fresh"))
    scores, total = model.logits(model.queries(batch), torch.arange(30)).detach(), 0.0
    for i, row in enumerate(rows):
        own, excluded = set(corpus.positives["train"][row].tolist()), set(corpus.filters["train"][row].tolist())
        others = sorted((float(scores[i, j]) for j in range(30) if j not in own | excluded), reverse=True)[:3]
        total += sum(float(torch.nn.functional.softplus(-scores[i, j])) for j in own - excluded)
        total += sum(float(torch.nn.functional.softplus(torch.tensor(score))) for score in others)
    assert float(stage.loss(model, batch)["hardest"].detach()) == pytest.approx(total / len(rows), rel=1e-5)


@pytest.mark.parametrize(("room", "fitting"), [(1e5, 0), (1e8, 1), (1e10, 2)])
def test_a_step_is_judged_where_the_one_over_all_labels_does_not_fit(monkeypatch, room, fitting):
    """It ended all claims with an error, after every variant was trained."""
    bench = bench_classifier_step.main
    monkeypatch.setattr(bench_classifier_step, "STEPS", 1)
    monkeypatch.setattr(bench_classifier_step, "psutil", SimpleNamespace(
        virtual_memory=lambda: SimpleNamespace(available=room)))
    monkeypatch.setattr(bench_classifier_step, "main", lambda *_: bench(8, 2000, 20_000))
    lines, reached = cost_of_a_step(None)
    assert ["-" not in line.split() for line in lines[-2:]] == [place < fitting for place in range(2)]
    assert fitting or not reached    # nothing was compared
    assert lines[-3].count("MB >=") == 2    # memory is computed


HEADER = "labels  ASTRA ms  all ms  ratio  ASTRA MB  all MB  ratio"


@pytest.mark.parametrize(("large", "holds"), [
    ("1,300,000  60  8000  133  27  3,000  111", True), ("1,300,000  60  8000  133  270  3,000  11", False),
    ("1,300,000  60  8000  133  27  302  11", False), ("1,300,000  130  8000  62  27  3,000  111", False),
    ("1,300,000  60  -  -  27  3,000  111", True)])
def test_claim_4_is_about_time_and_memory(monkeypatch, large, holds):
    """Its verdict was by the time alone."""
    small = "131,000  60  600  10  27  302  11"
    monkeypatch.setattr(bench_classifier_step, "main", lambda *_: print("\n".join([HEADER, small, large])))
    assert cost_of_a_step(None) == ([HEADER, small, large], holds)


@pytest.mark.parametrize(("reached", "holds"), [(9, True), (11, False)])
def test_claim_10_is_about_a_quarter_of_the_epochs(reached, holds):
    """One epoch fewer of twelve was enough."""
    (claim,) = (each for each in CLAIMS if each.number == 10)
    curves = {name: {f"P/1 epoch {epoch}": 40.0 + (epoch >= first) for epoch in range(1, 13)}
              for name, first in (("doubled", reached), ("fixed", 12))}
    assert claim.holds(Results({name: [curve] * 2 for name, curve in curves.items()})) == holds


def test_figures_of_older_code_are_not_taken_for_new(tmp_path, monkeypatch):
    """The code of a claim's own method and of its figures counts, and that of the metrics."""
    toy_corpus(tmp_path / "objects" / "packed", queries=200, labels=30, tests=40, validation=20)
    experiments = Experiments(tmp_path, labels=20, queries=0, seeds=1, workers=1)
    (fresh,) = (claim.variants["fresh"] for claim in CLAIMS if claim.number == 2)
    sources, digests = inspect.getsource, experiments_module.code_digests

    def files():
        return [experiments._figures_file(variant, 0).name for variant in (Variant("ngame", QUICK), fresh)]

    plain, own = files()
    assert files() == [plain, own]
    for module, changed in (("claims", (False, True)), ("figures", (True, True))):
        with monkeypatch.context() as patch:
            patch.setattr(inspect, "getsource", lambda part, module=module: sources(part) + "#" * (
                part.__name__ == f"benchmarks.claims.{module}"))
            assert tuple(now != before for now, before in zip(files(), (plain, own), strict=True)) == changed
    roots = set()
    monkeypatch.setattr(experiments_module, "code_digests", lambda *names: roots.update(names) or digests(*names))
    files()
    assert {"xcmodels.metrics", "xcmodels.retrieval.ranker"} <= roots


def test_a_lab_trains_what_is_missing_and_remembers(tmp_path, capsys):
    toy_corpus(tmp_path / "objects" / "packed", queries=200, labels=30, tests=40, validation=20)
    experiments = Experiments(tmp_path, labels=20, queries=0, seeds=2, workers=1)
    variants = {"a": Variant("ngame", QUICK), "same": Variant("ngame", dict(QUICK))}
    experiments.train(variants.values())
    assert capsys.readouterr().err.count("trained") == 2      # a seed each: what is the same is trained once
    found = experiments.results(variants)
    assert found.mean("a", "P/1") > 20 and found.mean("a", "P/1") == found.mean("same", "P/1")
    assert found.mean("a", "P/5 tail") + found.mean("a", "P/5 head") == pytest.approx(found.mean("a", "P/5"))
    again = Experiments(tmp_path, labels=20, queries=0, seeds=2, workers=1)
    again.train(variants.values())
    assert "trained" not in capsys.readouterr().err
    assert not list((tmp_path / "claims").glob("tmp*"))
    with pytest.raises(SystemExit, match="xc prepare"):
        Experiments(tmp_path / "claims", labels=20, queries=0, seeds=2, workers=1)
    toy_corpus(tmp_path / "objects" / "other", queries=200, labels=30, tests=40, validation=20)
    with pytest.raises(SystemExit, match="has 2 corpora"):    # which of them is not for the digests to say
        Experiments(tmp_path, labels=20, queries=0, seeds=2, workers=1)


def test_a_training_that_fails_is_told_before_all_others_are_done(tmp_path, monkeypatch):
    """They were trained in silence first, for hours; so were they after Ctrl-C."""
    toy_corpus(tmp_path / "objects" / "packed", queries=60, labels=20, tests=10, validation=10)
    experiments, done = Experiments(tmp_path, labels=10, queries=0, seeds=40, workers=1), []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *arguments, **options):
            given_up.set()
            super().shutdown(*arguments, **options)

    def train(variant, seed, *_):
        if not seed:
            raise FloatingPointError("the loss is not finite")
        given_up.wait(60)
        done.append(seed)
        return 0.0

    given_up = threading.Event()
    monkeypatch.setattr(experiments_module, "process_pool", Pool)
    monkeypatch.setattr(experiments_module, "_train", train)
    with pytest.raises(FloatingPointError):
        experiments.train([Variant("ngame")])
    assert len(done) < 39


def test_a_chosen_claim_about_graphs_is_refused_where_there_are_none(tmp_path):
    """It was left out without a word: 0 of 0 hold."""
    synthetic_corpus(tmp_path / "objects" / "packed", CorpusShape(400, 300, 3.0, 6.0, 300))
    with pytest.raises(UsageError, match=r"--claims 19,20: the corpus of .* has no metadata graphs"):
        claims_command.main(tmp_path, claims=frozenset({3, 19, 20}))
    assert not (tmp_path / "claims").exists()    # nothing was sampled


def test_make_asks_all_but_the_claims_about_graphs():
    """RAMEN's anchors of WordNet are words of the glosses, which its home has read."""
    (numbers,) = re.findall(r"^CLAIMS := ([\d,]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {int(number) for number in numbers.split(",")} == {
        claim.number for claim in (*CLAIMS, *DIRECT_CLAIMS) if not claim.needs_graphs}
