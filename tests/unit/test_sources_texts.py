"""Texts that trap, and JSON lines that are wrong."""

import gzip
import logging
from pathlib import Path

import pytest

from tasks.data.sources import describe
from tests.support.raw_folders import LABELS, TEST, TRAIN, fails, rows, write_json


def test_latin1_lines_are_read_and_counted(xc_sparse: Path, caplog: pytest.LogCaptureFixture):
    (xc_sparse / "Y.txt").write_bytes("café\n".encode() + "Zürich\n".encode("latin-1") + "naïve\n".encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert [row[2] for row in rows(describe(xc_sparse), "labels")] == ["café", "Zürich", "naïve"]
    assert "Y.txt: 2 lines are not UTF-8 and were read as Latin-1, the first is line 2" in caplog.text


def test_latin1_in_json(xc_json: Path):
    (xc_json / "lbl.json.gz").write_bytes(gzip.compress(
        '{"uid": "x", "title": "Zürich", "content": ""}\n'.encode("latin-1") * 3))
    assert {row[2] for row in rows(describe(xc_json), "labels")} == {"Zürich"}


def test_the_code_page_of_windows_is_told_from_latin1(xc_sparse: Path, caplog: pytest.LogCaptureFixture):
    lines = ["Zürich – „Café“".encode("cp1252"), "Zürich".encode("latin-1"), b"a \x81 \x93"]
    (xc_sparse / "Y.txt").write_bytes(b"\n".join(lines))
    assert [row[2] for row in rows(describe(xc_sparse), "labels")] == ["Zürich – „Café“", "Zürich", "a"]
    (said,) = caplog.messages
    assert "Y.txt: 3 lines are not UTF-8 and were read as Windows-1252, the first is line 1" in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_read_and_its_lines_are_counted(xc_json: Path, encoding: str):
    titles = ["Zürich ਊ " + "🦊" * 20_000, "Zürich ਊ" + "🦊" * 20_000, "Zürich ਊ 🦊"]    # blocks cut characters in two
    text = "\ufeff" * (encoding != "utf-16") + "".join(
        f'{{"uid": "x", "title": "{title}", "content": ""}}\r\n' for title in titles)
    (xc_json / "lbl.json.gz").write_bytes(gzip.compress(text.encode(encoding)))
    assert [row[2] for row in rows(describe(xc_json), "labels")] == titles
    assert len(rows(describe(xc_json), "positives.train")) > 0


def test_utf16_that_is_cut_short_is_named(xc_json: Path):
    (xc_json / "lbl.json.gz").write_bytes(gzip.compress('{"uid"'.encode("utf-16")[:-1]))
    assert fails(xc_json, "labels").startswith(
        f"{xc_json / 'lbl.json.gz'}: lbl.json.gz begins as UTF-16, and is damaged or cut short in its first line (")


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
    (changed(target_ind=None), "the key 'target_ind' is missing"),
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
    (changed(target_ind=[0, 3]), "label id 3 is not in lbl.json.gz, which has 3 lines\nhint: ids are 0-based numbers "
                                 "of the lines of lbl.json.gz: 0 to 2 can be used here"),
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


def test_labels_without_a_relevance_count_the_same(xc_json: Path):
    write_json(xc_json, "trn.json.gz", [changed(target_rel=None), TRAIN[1]])
    assert [row[:3] for row in rows(describe(xc_json), "positives.train")] == [(0, 0, 1.0), (0, 2, 1.0)]


def test_relevance_that_float32_must_round_is_kept(xc_json: Path):
    write_json(xc_json, "tst.json.gz", [{**TEST[0], "target_rel": [2**24 + 1]}])
    assert rows(describe(xc_json), "positives.test")[0][2] == 2.0**24


@pytest.mark.parametrize("spoil", [lambda data: data[:-12], lambda data: data[:20] + bytes(8) + data[28:],
                                   lambda data: data + b"more", lambda data: gzip.decompress(data),
                                   lambda data: data + data[:1], lambda data: data + data[:9], lambda data: data[:9]])
def test_damaged_gzip_is_told(xc_json: Path, spoil):
    path = xc_json / "trn.json.gz"
    path.write_bytes(spoil(path.read_bytes()))
    found = fails(xc_json, "queries.train")
    assert found.startswith(f"{path}:") and "the gzip data of trn.json.gz is damaged or cut short" in found
    assert ("in its first line (" in found) == found.startswith(f"{path}: ") and "line 0" not in found
    path = xc_json / "lbl.json.gz"
    path.write_bytes(spoil(path.read_bytes()))
    assert "the gzip data of lbl.json.gz is damaged" in fails(xc_json, "positives.test")
