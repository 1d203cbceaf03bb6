"""Raw data sets: which one lies in a folder, and the rows of every format."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources import describe, tables
from tests.support.raw_folders import LABELS, TEST, TRAIN, add_anchors, read_table, rows, write_json


def test_json_lines(xc_json: Path):
    data = describe(xc_json)
    assert (data.name, data.format.name, data.anchors, data.propensity) == ("LF-Toy", "xc-json", (), (0.55, 1.5))
    assert rows(data, "queries.train") == [(0, "a", "red  fox", "an animal", "trn.json.gz", 1),
                                           (1, "b", "no labels", "", "trn.json.gz", 2),
                                           (2, "a", "", "", "trn.json.gz", 3)]
    assert rows(data, "positives.train") == [
        (0, 0, 1.0, "trn.json.gz", 1), (0, 2, 0.5, "trn.json.gz", 1),
        (2, 1, 1.0, "trn.json.gz", 3), (2, 1, 1.0, "trn.json.gz", 3)]  # the duplicate is for the contract to find
    assert rows(data, "queries.test") == [(0, "t", "blue whale", "", "tst.json.gz", 1)]
    assert rows(data, "positives.test") == [(0, 2, 1.0, "tst.json.gz", 1)]
    assert [row[:4] for row in rows(data, "labels")] == [(0, "x", "mammal", ""), (1, "y", "bird", "it flies"),
                                                         (2, "z", "hunter", "")]
    assert rows(data, "filters.train") == rows(data, "filters.test") == []


def test_workers_of_another_folder_find_the_files(xc_json: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(xc_json.parent)
    data = describe(Path(xc_json.name))
    monkeypatch.chdir("/")
    assert len(rows(data, "queries.train")) == 3


@pytest.mark.parametrize("end", [".json", ".jsonl", ".jsonl.gz"])
def test_json_lines_need_not_be_packed(xc_json: Path, end: str):
    expected = rows(describe(xc_json), "positives.train")
    for stem, content in (("trn", TRAIN), ("tst", TEST), ("lbl", LABELS)):
        (xc_json / f"{stem}.json.gz").unlink()
        write_json(xc_json, stem + end, content)
    assert [row[:3] for row in rows(describe(xc_json), "positives.train")] == [row[:3] for row in expected]


def test_plain_text_and_sparse_text(xc_sparse: Path):
    data = describe(xc_sparse)
    assert data.format.name == "xc-sparse"
    assert rows(data, "queries.train") == [(0, "0", "red  fox", "", "trn_X.txt", 1),
                                           (1, "1", "no labels", "", "trn_X.txt", 2), (2, "2", "", "", "trn_X.txt", 3)]
    assert rows(data, "queries.test") == [(0, "0", "blue whale", "", "tst_X.txt", 1)]
    assert [row[2] for row in rows(data, "labels")] == ["mammal", "bird", "hunter"]
    assert rows(data, "positives.train") == [
        (0, 0, 1.0, "trn_X_Y.txt", 2), (0, 2, 0.5, "trn_X_Y.txt", 2),
        (2, 1, 1.0, "trn_X_Y.txt", 4), (2, 1, 1.0, "trn_X_Y.txt", 4)]
    assert rows(data, "positives.test") == [(0, 2, 1.0, "tst_X_Y.txt", 2)]


@pytest.mark.parametrize("names", [("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
                                   ("trn_X.raw.txt", "tst_X.raw.txt", "Y.raw.txt")])
def test_other_names_of_plain_text(xc_sparse: Path, names: tuple):
    for old, new in zip(("trn_X.txt", "tst_X.txt", "Y.txt"), names, strict=True):
        (xc_sparse / old).rename(xc_sparse / new)
    data = describe(xc_sparse)
    assert data.anchors == ()
    assert [row[2] for row in rows(data, "labels")] == ["mammal", "bird", "hunter"]
    assert len(rows(data, "positives.train")) == 4


@pytest.mark.parametrize("name", ["Y.{}.npz", "{}_X_Y.npz"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_sparse_npz(xc_sparse: Path, name: str, size: int):
    expected = rows(describe(xc_sparse), "positives.train")
    for stem in ("trn", "tst"):
        (xc_sparse / f"{stem}_X_Y.txt").unlink()
    train = sparse.csr_matrix((np.array([1, .5, 1, 1], np.float64), np.array([0, 2, 1, 1]), np.array([0, 2, 2, 4])),
                              shape=(3, 3))
    sparse.save_npz(xc_sparse / name.format("trn"), train)
    sparse.save_npz(xc_sparse / name.format("tst"), sparse.csr_array((1, 3), dtype=np.float32))
    data = describe(xc_sparse)
    found = rows(data, "positives.train", rows_per_shard=size)
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert {(row[0], row[4]) for row in found} == {(0, 1), (2, 3)}  # a row of the matrix, from 1, where lines are none
    (empty,) = read_table(data, "positives.test")
    assert empty.num_rows == 0


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_anchor_sets_lie_beside_either_format(form: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    (folder / "notes.raw.txt").write_text("a raw file without edges is no anchor set\n")
    data = describe(folder)
    assert data.anchors == ("category",)
    assert rows(data, "anchors.category") == [(0, "canids", "category.raw.txt", 1),
                                              (1, "cetaceans", "category.raw.txt", 2)]
    assert [row[:3] for row in rows(data, "edges.category.train")] == [(0, 0, 1.0), (2, 0, 2.0), (2, 1, 3.0)]
    assert [row[:3] for row in rows(data, "edges.category.label")] == [(2, 0, 1.0)]
    assert tables(data)[-4:] == ["anchors.category", "edges.category.train", "edges.category.test",
                                 "edges.category.label"]
    (folder / "category_tst_X_Y.txt").unlink()
    assert rows(describe(folder), "edges.category.test") == []
    (folder / "category_lbl_X_Y.txt").unlink()
    with pytest.raises(UsageError, match=r"(?s)for category_lbl_X_Y.txt, category_lbl_X_Y.npz.*a blank line for"):
        describe(folder)
    (folder / "category_lbl_X_Y.txt").write_text("3 2\n\n\n\n")    # as the hint says
    assert rows(describe(folder), "edges.category.label") == []


def test_anchor_edges_without_titles_are_told(xc_json: Path):
    add_anchors(xc_json)
    (xc_json / "category.raw.txt").unlink()
    with pytest.raises(UsageError, match=r"no file for anchors.category; looked for category.raw.txt"):
        describe(xc_json)


def test_filter_pairs(xc_json: Path):
    (xc_json / "filter_labels_train.txt").write_text("")
    (xc_json / "filter_labels_test.txt").write_text("0 2\n\n0\t1\n")
    data = describe(xc_json)
    assert rows(data, "filters.test") == [(0, 2, "filter_labels_test.txt", 1), (0, 1, "filter_labels_test.txt", 3)]
    assert rows(data, "filters.train") == []


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_labels_without_texts_are_numbered(form: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(form)
    positives = rows(describe(folder), "positives.train")
    (file,) = [name for name in ("lbl.json.gz", "Y.txt") if (folder / name).exists()]
    (folder / file).unlink()
    with pytest.raises(UsageError, match=r"(?s)no file for labels; looked for .* how many there are to dataset.json"):
        describe(folder)
    (folder / "dataset.json").write_text('{"name": "mine", "labels": 3}')
    data = describe(folder)
    assert rows(data, "labels", rows_per_shard=2) == [(i, str(i), str(i), "", "dataset.json", 1) for i in range(3)]
    assert rows(data, "positives.train") == positives
    (folder / "dataset.json").write_text('{"labels": 2}')
    with pytest.raises(ContractError, match=r"2 is not in dataset.json, which has 2 labels|dataset.json has 2"):
        rows(describe(folder), "positives.train")
    for wrong in ("0", "-1", "true", "2.0", '"3"', "null"):
        (folder / "dataset.json").write_text(f'{{"labels": {wrong}}}')
        with pytest.raises(UsageError, match="labels must be how many there are, got"):
            describe(folder)


@pytest.mark.parametrize(("name", "constants"), [
    ("LF-AmazonTitles-131K", (0.6, 2.6)), ("LF-Wikipedia-500K", (0.5, 0.4)), ("LF-WikiSeeAlso-320K", (0.55, 1.5))])
def test_propensity_follows_the_name(xc_json: Path, name: str, constants: tuple):
    assert describe(xc_json.rename(xc_json.with_name(name))).propensity == constants
    (xc_json.with_name(name) / "dataset.json").write_text('{"name": "mine", "propensity": {"a": 0.1, "b": 2}}')
    about = describe(xc_json.with_name(name))
    assert (about.name, about.propensity) == ("mine", (0.1, 2.0))


@pytest.mark.parametrize(("text", "message"), [
    ("{", "dataset.json: it is not JSON"), ("[]", "must be an object, got []"), ('{"name": 3}', "got 3"),
    ('{"name": "a\\u001b[2Jb"}', "name must be a text without control characters, got 'a\\x1b[2Jb'"),
    ('{"propensity": {"a": 0.5}}', "got {'a': 0.5}"),
    ('{"propensity": {"a": NaN, "b": 1}}', "positive numbers a and b"),
    ('{"propensity": {"a": true, "b": 1}}', "got {'a': True")])
def test_a_wrong_description_is_refused(xc_json: Path, text: str, message: str):
    (xc_json / "dataset.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        describe(xc_json)
    assert message in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match=r"nowhere is not a folder"):
        describe(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no training queries; looked for trn.json.gz.*trn_X.txt.*trn.raw.txt"):
        describe(tmp_path)


@pytest.mark.parametrize(("form", "gone", "looked"), [
    ("xc_json", "tst.json.gz", "tst.json.gz, tst.jsonl.gz, tst.json, tst.jsonl"),
    ("xc_json", "lbl.json.gz", "lbl.json"),
    ("xc_sparse", "Y.txt", "Y.txt, Y.raw.txt, lbl.raw.txt"),
    ("xc_sparse", "trn_X_Y.txt", "trn_X_Y.txt, trn_X_Y.npz, Y.trn.npz"), ("xc_sparse", "tst_X.txt", "tst_X.txt")])
def test_a_missing_file_is_named(form: str, gone: str, looked: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(form)
    (folder / gone).unlink()
    with pytest.raises(UsageError) as caught:
        describe(folder)
    assert f"looked for {looked}" in str(caught.value)


def test_a_file_that_goes_away_is_named(xc_json: Path):
    data = describe(xc_json)
    (xc_json / "lbl.json.gz").unlink()
    for table in ("labels", "positives.train"):
        with pytest.raises(UsageError, match=r"lbl.json.gz"):
            list(read_table(data, table))
