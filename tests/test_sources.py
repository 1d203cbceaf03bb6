"""Reading raw data sets: each format, each trap, and the shards that come out."""

import gzip
import json
import logging
import pickle
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from data_contracts.errors import ContractError, UsageError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks import sources_shards
from tasks.sources import RawDataSet, describe, groups, read_table, read_tables, tables
from xcmodels.text import clean

TRAIN: list[dict] = [
    {"uid": "a", "title": "red  fox", "content": "an animal", "target_ind": [0, 2], "target_rel": [1.0, 0.5]},
    {"uid": "b", "title": "no labels", "content": "", "target_ind": [], "target_rel": []},
    {"uid": "a", "title": "", "content": "", "target_ind": [1, 1], "target_rel": [1, 1]}]
TEST: list[dict] = [{"uid": "t", "title": "blue\nwhale", "content": "", "target_ind": [2], "target_rel": [1.0]}]
LABELS: list[dict] = [
    {"uid": "x", "title": "mammal", "content": ""}, {"uid": "y", "title": "bird", "content": "it flies"},
    {"uid": "z", "title": "hunter", "content": ""}]


def write_json(folder: Path, name: str, rows: list) -> None:
    data = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


@pytest.fixture
def xc_json(tmp_path: Path) -> Path:
    folder = tmp_path / "LF-Toy"
    folder.mkdir()
    write_json(folder, "trn.json.gz", TRAIN)
    write_json(folder, "tst.json.gz", TEST)
    write_json(folder, "lbl.json.gz", LABELS)
    return folder


@pytest.fixture
def xc_sparse(tmp_path: Path) -> Path:
    folder = tmp_path / "LF-Toy"
    folder.mkdir()
    (folder / "trn_X.txt").write_text("red  fox\nno labels\n\n")
    (folder / "tst_X.txt").write_text("blue whale\r\n")
    (folder / "Y.txt").write_text("mammal\nbird\nhunter")  # no line end: the line counts all the same
    (folder / "trn_X_Y.txt").write_text("3 3\n0:1 2:0.5\n\n1:1.0 1:1\n")
    (folder / "tst_X_Y.txt").write_text("1 3\n2:1\n")
    return folder


def add_anchors(folder: Path) -> None:
    (folder / "category.raw.txt").write_text("canids\ncetaceans\n")
    (folder / "category_trn_X_Y.txt").write_text("3 2\n0:1\n\n0:2 1:3\n")
    (folder / "category_tst_X_Y.txt").write_text("1 2\n1:1\n")
    (folder / "category_lbl_X_Y.txt").write_text("3 2\n\n\n0:1\n")


def rows(data: RawDataSet, table: str, **options: int) -> list[tuple]:
    """Return all rows of a table, each shard checked for its schema."""
    found: list[tuple] = []
    for part in read_table(data, table, **options):
        assert part.schema.equals(SCHEMAS[kind_of(table)])
        part.validate(full=True)
        found += zip(*(part[name].to_pylist() for name in part.schema.names), strict=True)
    return found


def fails(folder: Path, table: str) -> str:
    with pytest.raises(ContractError) as caught:
        list(read_table(describe(folder), table))
    return str(caught.value)


# ---- formats

def test_json_lines(xc_json: Path):
    data = describe(xc_json)
    assert (data.name, data.format, data.anchors, data.propensity) == ("LF-Toy", "xc-json", (), (0.55, 1.5))
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


@pytest.mark.parametrize("end", [".json", ".jsonl", ".jsonl.gz"])
def test_json_lines_need_not_be_packed(xc_json: Path, end: str):
    expected = rows(describe(xc_json), "positives.train")
    for stem, content in (("trn", TRAIN), ("tst", TEST), ("lbl", LABELS)):
        (xc_json / f"{stem}.json.gz").unlink()
        write_json(xc_json, stem + end, content)
    assert [row[:3] for row in rows(describe(xc_json), "positives.train")] == [row[:3] for row in expected]


def test_plain_text_and_sparse_text(xc_sparse: Path):
    data = describe(xc_sparse)
    assert data.format == "xc-sparse"
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
    with pytest.raises(UsageError, match=r"looked for category_lbl_X_Y.txt, category_lbl_X_Y.npz"):
        describe(folder)


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


# ---- names and constants

@pytest.mark.parametrize(("name", "constants"), [
    ("LF-AmazonTitles-131K", (0.6, 2.6)), ("LF-Wikipedia-500K", (0.5, 0.4)), ("LF-WikiSeeAlso-320K", (0.55, 1.5))])
def test_propensity_follows_the_name(xc_json: Path, name: str, constants: tuple):
    assert describe(xc_json.rename(xc_json.with_name(name))).propensity == constants
    (xc_json.with_name(name) / "dataset.json").write_text('{"name": "mine", "propensity": {"a": 0.1, "b": 2}}')
    about = describe(xc_json.with_name(name))
    assert (about.name, about.propensity) == ("mine", (0.1, 2.0))


@pytest.mark.parametrize(("text", "message"), [
    ("{", "dataset.json: it is not JSON"), ("[]", "must be an object, got []"), ('{"name": 3}', "got 3"),
    ('{"propensity": {"a": 0.5}}', "got {'a': 0.5}"),
    ('{"propensity": {"a": NaN, "b": 1}}', "positive numbers a and b"),
    ('{"propensity": {"a": true, "b": 1}}', "got {'a': True")])
def test_a_wrong_description_is_refused(xc_json: Path, text: str, message: str):
    (xc_json / "dataset.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        describe(xc_json)
    assert message in str(caught.value)


# ---- shards

@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_shard_is_larger_and_none_is_lost(form: str, size: int, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    data = describe(folder)
    for table in tables(data):
        whole = rows(data, table)
        parts = list(read_table(data, table, rows_per_shard=size))
        assert [part.num_rows for part in parts[:-1]] == [size] * (len(parts) - 1)
        assert len(parts) == max(1, -(-len(whole) // size))
        assert rows(data, table, rows_per_shard=size) == whole


def test_long_texts_make_shorter_shards(xc_json: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources_shards, "SHARD_CHARACTERS", 20)
    write_json(xc_json, "lbl.json.gz", [{"uid": "x", "title": "t" * 4, "content": "c" * 6}] * 5)
    parts = list(read_table(describe(xc_json), "labels"))
    assert [part.num_rows for part in parts] == [2, 2, 1]


def test_a_file_is_read_a_shard_at_a_time(xc_json: Path):
    write_json(xc_json, "lbl.json.gz", [*LABELS, "not JSON"])
    parts = read_table(describe(xc_json), "labels", rows_per_shard=2)
    assert next(parts).num_rows == 2  # the line that is broken has not been reached
    with pytest.raises(ContractError, match=r"lbl.json.gz:4"):
        next(parts)


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_groups_write_every_table_once(form: str, request: pytest.FixtureRequest, tmp_path: Path):
    folder = request.getfixturevalue(form)
    add_anchors(folder)
    data = pickle.loads(pickle.dumps(describe(folder)))  # as it travels to a worker
    out = tmp_path / "out"
    stale = out / "labels" / "part-00007.parquet"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of a longer run")
    written: dict[str, list[Path]] = {}
    for group in groups(data):
        done = pickle.loads(pickle.dumps(read_tables))(data, group, out, rows_per_shard=2)
        assert group in done and not written.keys() & done.keys()
        written |= done
    assert list(written) and sorted(written) == sorted(tables(data))
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(
        path for paths in written.values() for path in paths)
    for table, paths in written.items():
        assert [path.relative_to(out) for path in paths] == [
            Path(table, f"part-{number:05d}.parquet") for number in range(len(paths))]
        found = [pq.read_table(path) for path in paths]
        assert all(part.schema.equals(SCHEMAS[kind_of(table)]) for part in found)
        assert [row for part in found for row in part.to_pylist()] == [
            row for part in read_table(data, table) for row in part.to_pylist()]
    assert len(written["filters.test"]) == 1


def test_tables_and_groups_that_are_not_there(xc_json: Path, tmp_path: Path):
    data = describe(xc_json)
    with pytest.raises(ValueError, match=r"no table 'anchors.category'; it has queries.train, positives.train"):
        next(read_table(data, "anchors.category"))
    with pytest.raises(ValueError, match=r"no group 'positives.train'"):
        read_tables(data, "positives.train", tmp_path / "out")
    with pytest.raises(ValueError, match=r"rows_per_shard must be positive, got 0"):
        next(read_table(data, "labels", rows_per_shard=0))


# ---- missing files

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


# ---- texts that trap

def test_latin1_lines_are_read_and_counted(xc_sparse: Path, caplog: pytest.LogCaptureFixture):
    (xc_sparse / "Y.txt").write_bytes("café\n".encode() + "Zürich\n".encode("latin-1") + "naïve\n".encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert [row[2] for row in rows(describe(xc_sparse), "labels")] == ["café", "Zürich", "naïve"]
    assert "Y.txt: 2 lines are not UTF-8 and were read as Latin-1, the first is line 2" in caplog.text


def test_latin1_in_json(xc_json: Path):
    (xc_json / "lbl.json.gz").write_bytes(gzip.compress(
        '{"uid": "x", "title": "Zürich", "content": ""}\n'.encode("latin-1") * 3))
    assert {row[2] for row in rows(describe(xc_json), "labels")} == {"Zürich"}


def test_texts_are_cleaned(xc_json: Path):
    write_json(xc_json, "lbl.json.gz", [{"uid": " x\u0000", "title": "e\u0301\tb\u0085c", "content": "\ud800 d "}] * 3)
    assert rows(describe(xc_json), "labels")[0][1:4] == ("x", "é b c", "\ufffd d")


def test_a_byte_order_mark_is_passed_over(xc_sparse: Path):
    (xc_sparse / "Y.txt").write_bytes(b"\xef\xbb\xbfmammal\nbird\nhunter\n")
    (xc_sparse / "trn_X_Y.txt").write_bytes(b"\xef\xbb\xbf3 3\r\n0:1\r\n\r\n\r\n")
    data = describe(xc_sparse)
    assert rows(data, "labels")[0][2] == "mammal"
    assert rows(data, "positives.train") == [(0, 0, 1.0, "trn_X_Y.txt", 2)]


def test_an_empty_label_file_leaves_no_id(xc_json: Path):
    write_json(xc_json, "lbl.json.gz", [])
    assert rows(describe(xc_json), "labels") == []
    assert "label id 2 is not in lbl.json.gz, which has 0 lines" in fails(xc_json, "positives.test")


# ---- JSON lines that are wrong

def changed(**values: object) -> dict:
    return {key: value for key, value in {**TRAIN[0], **values}.items() if value is not None}


@pytest.mark.parametrize(("row", "message"), [
    ('{"uid": "a", "title"', "the line is not JSON: Expecting"),
    ("", "the line is blank"),
    ("[" * 100_000, "the line is not JSON"),
    ("9" * 10_000, "the line is not JSON"),
    ("[1, 2]", "the line is JSON but not an object: [1, 2]"),
    (changed(title=None), "the key 'title' is missing; the line has 'uid', 'content', 'target_ind', 'target_rel'"),
    (changed(content=None), "the key 'content' is missing"),
    (changed(target_rel=None), "the key 'target_rel' is missing"),
    (changed(uid=7), "uid must be a string, got 7"),
    (changed(title=["x"]), "title must be a string, got ['x']"),
    (changed(target_ind=1), "target_ind must be a list, got 1"),
    (changed(target_rel={}), "target_rel must be a list, got {}"),
    (changed(target_rel=[1.0]), "target_ind has 2 values and target_rel 1"),
    (changed(target_ind=[0, 1.0]), "target_ind must hold whole numbers, got 1.0"),
    (changed(target_ind=[0, True]), "target_ind must hold whole numbers, got True"),
    (changed(target_ind=["0", "1"]), "target_ind must hold whole numbers, got '0'"),
    (changed(target_rel=[1.0, "1"]), "target_rel must hold numbers, got '1'"),
    (changed(target_rel=[1.0, True]), "target_rel must hold numbers, got True"),
    (changed(target_rel=[1.0, float("nan")]), "relevance must be a finite number, got nan"),
    (changed(target_rel=[float("inf"), 1.0]), "relevance must be a finite number, got inf"),
    (changed(target_rel=[1.0, -1e39]), "relevance must be a finite number, got -1e+39"),
    (changed(target_ind=[0, 3]), "label id 3 is not in lbl.json.gz, which has 3 lines\nhint: ids are 0-based line "
                                 "numbers of lbl.json.gz: 0 to 2 can be used here"),
    (changed(target_ind=[-1, 0]), "label id -1 is not in lbl.json.gz, which has 3 lines"),
    (changed(target_ind=[0, 2**31 + 5]), f"label id {2**31 + 5} is not in lbl.json.gz, which has 3 lines"),
    (changed(target_ind=[0, 2**80]), f"label id {2**80} is not in lbl.json.gz"),
])
def test_a_wrong_line_is_refused(xc_json: Path, row: object, message: str):
    write_json(xc_json, "trn.json.gz", [TRAIN[0], row, TRAIN[1]])
    found = fails(xc_json, "queries.train")
    assert found.startswith(f"trn.json.gz:2: {message}"), found
    assert fails(xc_json, "positives.train") == found


def test_the_label_file_says_how_many_labels_there_are(xc_json: Path):
    write_json(xc_json, "lbl.json.gz", [*LABELS, LABELS[0]])  # a label that no point has
    write_json(xc_json, "tst.json.gz", [{**TEST[0], "target_ind": [3]}])
    assert rows(describe(xc_json), "positives.test")[0][1] == 3


def test_relevance_that_float32_must_round_is_kept(xc_json: Path):
    write_json(xc_json, "tst.json.gz", [{**TEST[0], "target_rel": [2**24 + 1]}])
    assert rows(describe(xc_json), "positives.test")[0][2] == 2.0**24


@pytest.mark.parametrize("spoil", [lambda data: data[:-12], lambda data: data[:20] + bytes(8) + data[28:],
                                   lambda data: data + b"more", lambda data: gzip.decompress(data)])
def test_damaged_gzip_is_told(xc_json: Path, spoil):
    path = xc_json / "trn.json.gz"
    path.write_bytes(spoil(path.read_bytes()))
    found = fails(xc_json, "queries.train")
    assert found.startswith("trn.json.gz:") and "the gzip data of trn.json.gz is damaged or cut short" in found
    path = xc_json / "lbl.json.gz"
    path.write_bytes(spoil(path.read_bytes()))
    assert "the gzip data of lbl.json.gz is damaged" in fails(xc_json, "positives.test")


# ---- sparse files that are wrong

@pytest.mark.parametrize(("text", "message"), [
    ("4 3\n\n\n\n\n", "trn_X_Y.txt:1: the header says 4 rows and 3 columns, but trn_X.txt has 3 lines and Y.txt has 3"),
    ("3 9\n\n\n8:1\n", "trn_X_Y.txt:1: the header says 3 rows and 9 columns, but trn_X.txt has 3 lines and Y.txt"),
    ("3 3\n0:1\n1:1\n", "trn_X_Y.txt:1: the header says 3 rows, which trn_X.txt has too, but 2 follow"),
    ("3 3\n0:1\n1:1\n\n\n", "trn_X_Y.txt:1: the header says 3 rows, which trn_X.txt has too, but 4 follow"),
    ("0:1\n1:1\n2:1\n", "trn_X_Y.txt:1: the header must be two numbers, rows and columns, got '0:1'"),
    ("3 3 3\n", "trn_X_Y.txt:1: the header must be two numbers"),
    ("", "trn_X_Y.txt:1: the header must be two numbers, rows and columns, got ''"),
    ("9" * 5000 + " 3\n", "trn_X_Y.txt:1: the header must be two numbers"),
    ("3 3\n0:1\n\n1:1 3:1\n", "trn_X_Y.txt:4: label id 3 is not in Y.txt, which has 3 lines\nhint: ids are 0-based"),
    ("3 3\n0:1\n-1:1\n\n", "trn_X_Y.txt:3: label id -1 is not in Y.txt, which has 3 lines"),
    (f"3 3\n{2**31}:1\n\n\n", f"trn_X_Y.txt:2: label id {2**31} is not in Y.txt, which has 3 lines"),
    (f"3 3\n{2**70}:1\n\n\n", f"trn_X_Y.txt:2: label id {2**70} is not in Y.txt"),
    ("3 3\n\n\n0:nan\n", "trn_X_Y.txt:4: relevance must be a finite number, got nan"),
    ("3 3\n0:inf\n\n\n", "trn_X_Y.txt:2: relevance must be a finite number, got inf"),
    ("3 3\n0:1 1\n\n\n", "trn_X_Y.txt:2: '1' is not a pair id:value"),
    ("3 3\n0:\n\n\n", "trn_X_Y.txt:2: '0:' is not a pair id:value"),
    ("3 3\n1_0:1\n\n\n", "trn_X_Y.txt:2: '1_0:1' is not a pair id:value"),
    ("3 3\nx:1\n\n\n", "trn_X_Y.txt:2: 'x:1' is not a pair id:value\nhint: a row is written as: 12:1.0 40:1.0"),
])
def test_a_wrong_sparse_file_is_refused(xc_sparse: Path, text: str, message: str):
    (xc_sparse / "trn_X_Y.txt").write_text(text)
    found = fails(xc_sparse, "positives.train")
    assert found.startswith(message), found


def test_a_wrong_edge_names_the_anchors(xc_json: Path):
    add_anchors(xc_json)
    (xc_json / "category_lbl_X_Y.txt").write_text("3 2\n\n2:1\n\n")
    assert fails(xc_json, "edges.category.label").startswith(
        "category_lbl_X_Y.txt:3: anchor id 2 is not in category.raw.txt, which has 2 lines")
    (xc_json / "category_trn_X_Y.txt").write_text("1 2\n0:1\n")
    assert "1 rows and 2 columns, but trn.json.gz has 3 lines and category.raw.txt has 2" in fails(
        xc_json, "edges.category.train")


@pytest.mark.parametrize(("text", "message"), [
    ("0 1\n0 3\n", "filter_labels_test.txt:2: label id 3 is not in lbl.json.gz, which has 3 lines"),
    ("0 -1\n", "filter_labels_test.txt:1: label id -1 is not in lbl.json.gz"),
    ("0 1\n\n1 0\n", "filter_labels_test.txt:3: query id 1 is not in tst.json.gz, which has 1 lines"),
    ("0\n", "filter_labels_test.txt:1: '0' is not a pair of numbers, row and label"),
    ("0 1 2\n", "filter_labels_test.txt:1: '0 1 2' is not a pair"), ("a b\n", "filter_labels_test.txt:1: 'a b' is not"),
])
def test_wrong_filter_pairs_are_refused(xc_json: Path, text: str, message: str):
    (xc_json / "filter_labels_test.txt").write_text(text)
    assert fails(xc_json, "filters.test").startswith(message)


def save_matrix(path: Path, parts: tuple) -> None:
    """Write the parts of a matrix as they are, unchecked."""
    indices, indptr, data, shape, *kind = parts
    np.savez(path, format=np.array("".join(kind or ["csr"]).encode()), shape=np.array(shape), data=np.array(data),
             indptr=np.array(indptr), indices=np.array(indices))


@pytest.mark.parametrize(("parts", "message"), [
    (([0, 7], [0, 1, 1, 2], [1.0, 1.0], (3, 3)), "trn_X_Y.npz:3: label id 7 is not in Y.txt, which has 3 lines"),
    (([0, -2], [0, 1, 2, 2], [1.0, 1.0], (3, 3)), "trn_X_Y.npz:2: label id -2 is not in Y.txt"),
    (([0, 1], [0, 1, 1, 2], [1.0, np.nan], (3, 3)), "trn_X_Y.npz:3: relevance must be a finite number, got nan"),
    (([0, 1], [0, 1, 1, 2], [1e39, 1], (3, 3)), "trn_X_Y.npz:1: relevance must be a finite number, got 1e+39"),
    (([0, 1], [0, 1, 2], [1.0, 1.0], (2, 3)), "the matrix has 2 rows and 3 columns, but trn_X.txt has 3 lines and Y"),
    (([0, 1], [0, 2, 1, 2], [1.0, 1.0], (3, 3)), "its row starts do not fit its entries"),
    (([0, 1], [0, 1, 1, 9], [1.0, 1.0], (3, 3)), "is not a sparse matrix of rows (CSR)"),
    (([0, 1], [0, 1, 1, 2], [1j, 1.0], (3, 3)), "values of type complex128"),
    (([0, 1], [0, 1, 1, 2], [{}, {}], (3, 3)), "allow_pickle=False"),
    (([0, 1], [0, 1, 1, 2], [1.0, 1.0], (3, 3), "csc"), "kind csc"),
    (([0, 1], [0, 1, 1, 2], [1.0, 1.0], (3, 3), "odd"), "Unknown format"),
])
def test_a_wrong_matrix_is_refused(xc_sparse: Path, parts: tuple, message: str):
    (xc_sparse / "trn_X_Y.txt").unlink()
    save_matrix(xc_sparse / "trn_X_Y.npz", parts)
    found = fails(xc_sparse, "positives.train")
    assert found.startswith("trn_X_Y.npz") and message in found, found


@pytest.mark.parametrize("spoil", [lambda data: data[:-40], lambda data: b"", lambda data: b"PK\x03\x04" + bytes(60),
                                   lambda data: data[:100] + bytes(60) + data[160:], lambda data: pickle.dumps([1])])
def test_a_damaged_matrix_is_refused(xc_sparse: Path, spoil):
    (xc_sparse / "trn_X_Y.txt").unlink()
    path = xc_sparse / "trn_X_Y.npz"
    sparse.save_npz(path, sparse.csr_array(np.ones((3, 3))))
    path.write_bytes(spoil(path.read_bytes()))
    assert "trn_X_Y.npz is not a sparse matrix of rows (CSR)" in fails(xc_sparse, "positives.train")


# ---- the text rule

@given(st.text(st.characters(), max_size=40) | st.text("a \t\n\x85\u00a0e\u0301\u0338\ud800\udc00\u2126\uac00\u11a8"))
def test_clean_can_be_repeated_and_leaves_no_bad_character(text: str):
    once = clean(text)
    assert clean(once) == once
    once.encode()  # no surrogate is left
    assert not any(unicodedata.category(letter) == "Cc" for letter in once)
    assert unicodedata.is_normalized("NFC", once) and once == once.strip()


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_clean_changes_nothing_but_the_form_and_the_ends(text: str):
    assert clean(text) == unicodedata.normalize("NFC", text).strip()


@pytest.mark.parametrize(("text", "expected"), [
    ("a  b", "a  b"), ("\ta\r\nb\x00", "a  b"), ("a\x7fb\x9fc", "a b c"), ("cafe\u0301", "café"),
    ("\ud83d!", "\ufffd!"), ("\u00a0x\u2003", "x"), ("", ""), ("\n", "")])
def test_clean(text: str, expected: str):
    assert clean(text) == expected
