"""Preparation on Dask: the same corpus however it is cut, and in spite of a worker that dies."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tasks.core.dask_workers import Workers
from tasks.core.step import run
from tasks.core.store import Store
from tasks.data.pack import _mapped_array, _validation
from tasks.plan import pipeline
from tests.support.planted import QUICK, words, write_planted
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.prepare_config import PrepareConfig


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Return a HOME shared by the tests of this module: what one prepared, the next ones reuse."""
    return tmp_path_factory.mktemp("home")


def prepare(data: Path, home: Path, workers: Workers, **settings: str) -> tuple[Corpus, dict[str, str]]:
    laid_out = pipeline(data, "ngame", "cpu-learned", {**QUICK, **settings})
    done = {}
    for step in laid_out.prepare:
        done[step.name] = run(step, done, Store(home), workers).artifact
    return Corpus(Store(home).open(done["pack"])), {name: artifact.digest for name, artifact in done.items()}


def test_the_corpus_is_what_the_files_say(planted, home, workers):
    corpus, _ = prepare(planted, home, workers)
    assert (corpus.n_queries, corpus.n_labels, len(corpus.sides["test"])) == (1200, 80, 300)
    from tasks.data.sources import describe
    from tests.support.raw_folders import read_table

    pairs = [(row["query"], row["label"]) for part in read_table(describe(planted), "positives.train")
             for row in part.to_pylist()]
    truth = corpus.positives["train"]
    assert sorted(pairs) == [(row, label) for row in range(len(truth)) for label in truth[row].tolist()]
    tokens = corpus.sides["label"].tokens(np.array([3]))
    assert corpus.tokenizer().backend.decode(tokens.ids.tolist()).strip() == " ".join(words(3))
    assert corpus.label_texts()[0][3] == "L3"
    said = [text for part in read_table(describe(planted), "queries.train") for text in part["title"].to_pylist()]
    assert list(Texts.load(corpus.folder, "train.text")) == said
    df = np.zeros(len(corpus.idf), dtype=int)
    for side in ("train", "label"):
        of = corpus.sides[side]
        for row in range(len(of)):
            found = of.tokens(np.array([row]))
            df[np.unique((found.ids + len(df) // 2 * ~found.fields()[0]).numpy())] += 1
    np.testing.assert_allclose(corpus.idf, np.log((1280 + 1) / (df + 1)), rtol=1e-6)


def test_relevances_become_weights_of_the_positives_they_belong_to(planted, tmp_path, home, workers):
    corpus, _ = prepare(planted, home, workers)
    assert corpus.weights is None, "where all are 1, nothing is weighed"
    data = tmp_path / "clicks"
    shutil.copytree(planted, data)
    with gzip.open(data / "trn.json.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream]
    for number, row in enumerate(rows):    # as unsorted as a file may have them
        row["target_ind"] = row["target_ind"][::-1]
        row["target_rel"] = [1.0 + (number + label) % 5 for label in row["target_ind"]]
    with gzip.open(data / "trn.json.gz", "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    relevance = {(number, label): value for number, row in enumerate(rows)
                 for label, value in zip(row["target_ind"], row["target_rel"], strict=True)}
    for power in ("1", "0.5"):
        asked = {"prepare.weight_power": power, "prepare.augment": "true"}
        made, _ = prepare(data, home, workers, **asked)
        truth = made.train_positives
        pairs = list(zip(np.repeat(np.arange(len(truth)), truth.lengths).tolist(), truth.values.tolist(), strict=True))
        mean = np.mean([value ** float(power) for value in relevance.values()])
        wanted = [relevance[pair] ** float(power) / mean if pair[0] < 1200 else 1.0 for pair in pairs]
        np.testing.assert_allclose(made.train_weights.values, wanted, rtol=1e-6)
    ignored, _ = prepare(data, home, workers, **{"prepare.weight_power": "0"})
    assert ignored.weights is None


def test_graphs_are_walked_as_the_settings_say(planted, home, workers):
    """One hop visits one anchor; anchors of more edges than the limit, here all, are visited by none."""
    edges = {}
    for name, value in (("hops", "1"), ("top", "1"), ("degree", "5"), ("restart", "1")):
        corpus, _ = prepare(planted, home, workers, **{f"prepare.walk_{name}": value})
        edges[name] = corpus.graphs["group"].edges["train"].lengths
    groups = np.array([len({label // 10 for label in corpus.positives["train"][row]}) for row in range(1200)])
    assert (edges["hops"] == 1).all() and (edges["top"] == 1).all() and (edges["degree"] == 0).all()
    assert (edges["restart"] == groups).all(), "a walk that always restarts sees its own anchors alone"


def test_validation_is_held_out(planted, home, workers):
    corpus, _ = prepare(planted, home, workers)
    assert len(corpus.validation) == 60
    assert not set(corpus.validation) & set(corpus.training_rows())


@pytest.mark.parametrize(("rows_each", "held"), [(1, 10), (4, 8), (15, 5), (200, 10)])
def test_a_text_is_held_out_with_all_its_rows(tmp_path, rows_each, held):
    """Else it is trained on, too. Where no text stands twice, or none fits, rows are drawn as they are."""
    rows = np.arange(200)
    for name, values in (("positives.train", rows), ("train.tokens", rows // rows_each)):
        Ragged.of_pairs(rows, values, 200).save(tmp_path, name)
    np.save(tmp_path / "train.titles.npy", rows % 2)    # where a title ends makes no other text
    validation = _validation(tmp_path, np.full(200, -1), PrepareConfig(), seed=7)
    drawn = seeds.generator(7, "validation").permutation(rows)[:10]
    texts = np.isin(rows // rows_each, validation // rows_each)
    assert len(validation) == held and validation.tolist() == (
        sorted(drawn) if rows_each in (1, 200) else rows[texts].tolist())


def test_no_group_is_a_fifth_of_what_is_held_out_where_others_suffice(tmp_path):
    """A quarter of a split of 112 pictures were one author's stick men: its P@1 was 48, that of the test 64."""
    rows = np.arange(198)
    for name in ("positives.train", "train.tokens"):
        Ragged.of_pairs(rows, rows, 198).save(tmp_path, name)
    np.save(tmp_path / "train.titles.npy", np.zeros(198, np.int64))
    groups = np.repeat([0, 1, -1], [3, 2, 193])
    drawn = [set(_validation(tmp_path, groups, PrepareConfig(), seed)) for seed in range(100)]
    assert {len(validation) for validation in drawn} == {10}
    assert not any(validation & {0, 1, 2} for validation in drawn), "three of ten"
    assert {frozenset(validation & {3, 4}) for validation in drawn} == {frozenset(), frozenset({3, 4})}
    assert len(_validation(tmp_path, np.arange(198) // 3, PrepareConfig(), 0)) == 9, "there are no smaller ones"


def test_a_group_is_held_out_as_a_whole(planted, tmp_path, home, workers):
    """Translations, say: what is measured and fitted on is then as new to training as a test query is."""
    without, _ = prepare(planted, home, workers)
    folder = shutil.copytree(planted, tmp_path / "grouped")
    names = ["" if row % 3 == 0 else f"group {row // 12}" for row in range(1200)]    # eight of twelve rows, or none
    (folder / "groups_train.txt").write_text("".join(f"{name}\n" for name in names))
    corpus, _ = prepare(folder, home, workers)
    held = Counter(names[row] for row in corpus.validation)
    assert {count for name, count in held.items() if name} == {8} and 53 <= len(corpus.validation) <= 60
    assert 8 not in Counter(names[row] for row in without.validation).values()
    assert not set(corpus.validation) & set(corpus.training_rows())


def test_room_for_a_mapped_array_is_taken_before_it_is_written(tmp_path):
    """On a full disk writing to a page without room would end the process by SIGBUS, without a word."""
    array = _mapped_array(tmp_path / "a.npy", np.int32, 10**6)
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= 4 * 10**6 and not array.any()
    assert np.load(tmp_path / "a.npy").shape == (10**6,) and len(_mapped_array(tmp_path / "b.npy", np.int64, 0)) == 0


def test_the_number_of_workers_changes_nothing(planted, tmp_path, home, workers):
    _, two = prepare(planted, home, workers)
    with Workers(count=1) as one_worker:
        _, one = prepare(planted, tmp_path / "one", one_worker)
    assert one == two


def test_label_texts_become_flagged_queries(planted, home, workers):
    corpus, _ = prepare(planted, home, workers, **{"prepare.augment": "true"})
    plain, _ = prepare(planted, home, workers)
    assert len(corpus.sides["train"]) == len(corpus.filters["train"]) == 1280 and corpus.n_queries == 1200
    assert corpus.positives["train"][1203].tolist() == [3]
    assert (corpus.sides["train"].tokens(np.array([1203])).ids == corpus.sides["label"].tokens(np.array([3])).ids).all()
    np.testing.assert_array_equal(corpus.frequencies(), plain.frequencies())
    assert corpus.validation.max() < 1200


def test_an_existing_scheduler_makes_the_same_corpus(planted, tmp_path, home, workers):
    with Workers(count=1) as others:
        scheduler = others.client.scheduler.address
        with Workers(address=scheduler) as theirs:
            _, there = prepare(planted, tmp_path / "there", theirs)
        assert others.client.scheduler_info()["workers"], "a scheduler that was there before is left running"
    _, here = prepare(planted, home, workers)
    assert there == here


@pytest.mark.parametrize(("change", "value"), [("labels", 1), ("train", 4)])
def test_tiny_data_sets_are_defined(tmp_path, workers, change, value):
    data = write_planted(tmp_path / "data", **{"train": 40, "test": 10, "labels": 12, change: value}) \
        if change == "train" else one_label(tmp_path / "data")
    corpus, _ = prepare(data, tmp_path / "home", workers)
    assert len(corpus.training_rows()) >= 1
    assert len(corpus.validation) >= 1


def one_label(folder: Path) -> Path:
    import gzip

    folder.mkdir()
    for name, rows in (("lbl", 1), ("trn", 6), ("tst", 3)):
        with gzip.open(folder / f"{name}.json.gz", "wt") as stream:
            for row in range(rows):
                stream.write(json.dumps({"uid": f"{name}{row}", "title": f"text {name} {row}", "content": ""} | (
                    {} if name == "lbl" else {"target_ind": [0], "target_rel": [1.0]})) + "\n")
    return folder
