"""Tables in every form that people have them in: the same rows for import, labels and predict."""

import csv
import gzip
import io
import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.columns import Layout
from tasks.data.sources.tabular import read_rows
from tasks.registry.label_files import ADD
from xcmodels.data.text import clean

LAYOUT = Layout({"uid": ("uid",), "text": ("text", "title")}, required=("uid", "text"))
ROWS = [("x:1", "Käse, würzig"), ("x;2", 'ein "Wolf"')]
GERMAN = "Zürich, „Grüße“ – 5 € "


def written(rows: list[tuple[str, ...]], **dialect: object) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue()


def read(path: Path, data: str | bytes, encoding: str = "utf-8", layout: Layout = LAYOUT) -> list[tuple[str, ...]]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode(encoding))
    return [(row.text("uid"), row.text("text")) for row in read_rows(path, layout)]


def cleaned(rows: list[tuple[str, ...]]) -> list[list[str]]:
    """The rows as they are to be read, but for how much white space there is between words."""
    return [[" ".join(clean(cell).split()) for cell in row] for row in rows]


@given(rows=st.lists(st.tuples(st.text(), st.text()), max_size=5), swapped=st.booleans(),
       form=st.tuples(st.sampled_from(["excel", "excel-tab", "unix"]), st.sampled_from([None, ",", ";", "\t"]),
                      st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.sampled_from(["a.csv", "a.txt"])))
@settings(deadline=None, max_examples=200)
def test_what_the_standard_library_writes_is_read_back(tmp_path_factory, rows, swapped, form):
    dialect, delimiter, encoding, name = form
    rows = [tuple(cell.encode("utf-8", "replace").decode() for cell in row) for row in rows]    # no lone surrogates
    table = [("uid", "text"), *rows]
    text = written([row[::-1] for row in table] if swapped else table, dialect=dialect,
                   **{"delimiter": delimiter} if delimiter else {})
    assert cleaned(read(tmp_path_factory.mktemp("table") / name, text, encoding)) == cleaned(rows)


@given(rows=st.lists(st.tuples(st.text(GERMAN), st.text(GERMAN)), max_size=5))
@settings(deadline=None, max_examples=50)
def test_files_of_older_programs_are_read_back(tmp_path_factory, rows):
    rows = [(uid, text + "ü") for uid, text in rows]    # whose byte is in no UTF-8
    path = tmp_path_factory.mktemp("table") / "a.csv"
    assert cleaned(read(path, written([("uid", "text"), *rows], delimiter=";"), "cp1252")) == cleaned(rows)


@pytest.mark.parametrize(("name", "data"), [
    ("a.csv", written([("uid", "text"), *ROWS])), ("a.csv", written([("UID", " Title "), *ROWS], delimiter=";")),
    ("a.csv", written([("uid", "text", "more"), *[(*row, "") for row in ROWS]], quoting=csv.QUOTE_ALL)),
    ("a.csv", written([("uid", "text"), *ROWS], delimiter="|")),
    ("a.csv", "sep=;\r\n" + written([("uid", "text"), *ROWS], delimiter=";")),
    ("a.csv", written([("uid", "text"), *ROWS], lineterminator="\r")),
    ("a.csv", 'uid, text\nx:1, "Käse, würzig"\nx;2, "ein ""Wolf"""\n'),
    ("a.tsv", written([("text", "uid"), *[row[::-1] for row in ROWS]], delimiter="\t")),
    ("a.csv.gz", gzip.compress(written([("uid", "text"), *ROWS]).encode())),
    ("a.csv", gzip.compress(written([("uid", "text"), *ROWS]).encode())),
    ("a.jsonl", "".join(json.dumps({"uid": uid, "title": text, "target_ind": []}) + "\n\n" for uid, text in ROWS)),
    ("a.txt", "".join(json.dumps({"text": text, "uid": uid}, ensure_ascii=False) + "\n" for uid, text in ROWS))],
    ids=["csv", "semicolons", "quoted", "bars", "sep", "old Mac", "by hand", "tsv", "gz", "gz unsaid",
         "jsonl", "json in txt"])
def test_forms(tmp_path, name, data):
    assert read(tmp_path / name, data) == ROWS


@pytest.mark.parametrize(("data", "rows"), [
    ("uid,text\n1,a\n   \n2,b\n \t \n", [("1", "a"), ("2", "b")]),
    ("text\na\n\"\"\n \nb\n", [("", "a"), ("", ""), ("", ""), ("", "b")])])
def test_a_line_of_blanks_is_no_row_of_several_columns(tmp_path, data, rows):
    """In a table of one column it may be an empty cell, which predictions are given for in order."""
    assert read(tmp_path / "a.csv", data, layout=Layout(LAYOUT.columns, required=("text",))) == rows


def test_stdin_may_be_compressed(monkeypatch):
    data = gzip.compress(written([("uid", "text"), *ROWS]).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [(row.text("uid"), row.text("text")) for row in read_rows("-", LAYOUT)] == ROWS


def test_parquet(tmp_path):
    pq.write_table(pa.table({"text": ["a", None], "uid": [7, 8]}), tmp_path / "a.parquet")
    assert [(row.text("uid"), row.text("text")) for row in read_rows(tmp_path / "a.parquet", LAYOUT)] == [
        ("7", "a"), ("8", "")]


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.csv", b"uid,subject\n1,a\n", "a.csv has no column 'text'; it has 'uid', 'subject'\nhint: name one of these"),
    ("a.csv", b"1;a\n", "a.csv has no column 'uid'; it has '1', 'a'"),
    ("a.csv", b"uid,text,title\n1,a,b\n", "a.csv has columns 'text' and 'title' for text\nhint: rename"),
    ("a.csv", b"uid,text,text\n1,a,b\n", "a.csv has 2 columns 'text'"),
    ("a.csv", b"uid,text\n\n1,a\n2\n", "a.csv:4: the row has 1 cells and the header 2\nhint: write ',' for each em"),
    ("a.csv", b"uid,text\n1,a,b\n", "a.csv:2: the row has 3 cells and the header 2\nhint: put a cell that holds ','"),
    ("a.jsonl", b'[{"uid": "1"}]\n', "a.jsonl:1: the line is JSON but not an object: [{"),
    ("a.csv", "uid,text\n".encode("utf-16-le"), "a.csv:1: it holds bytes of value 0, so it is no text\nhint: save it"),
    ("a.txt", b"PK\x03\x04\x14\0", "a.txt:1: it holds bytes of value 0"),
    ("a.xlsx", b"PK\x03\x04\x14\0", "a.xlsx is of no kind that can be read as a table\nhint: known are .csv"),
    ("a.csv.zst", b"", "known are .csv, .tsv, .txt, .jsonl, .json, .parquet, texts also with .gz; save"),
    ("a.parquet", b"PAR1", "hint: write it again, or end its name by what it is: .csv")])
def test_what_cannot_be_read_is_named(tmp_path, name, data, said):
    with pytest.raises((ContractError, UsageError)) as caught:
        read(tmp_path / name, data)
    assert said in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_column_may_be_absent_from_all_json_lines_but_one(tmp_path, monkeypatch):
    layout = Layout({"text": ("text",), "content": ("content",)}, required=("text", "content"))

    def contents(*rows: dict) -> list[str]:
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [row.text("content") for row in read_rows(tmp_path / "a.jsonl", layout)]

    rows = [{"text": "a"}, {"Text": "b"}, {"text": "c", "content": "C"}, {"text": "d"}]
    assert contents() == [] and contents(*rows) == ["", "", "C", ""]
    with pytest.raises(UsageError, match=r"a.jsonl has no column 'content'; it has 'text', 'n'\nhint: name one of"):
        contents({"text": "a"}, {"text": "b", "n": 1})
    monkeypatch.setattr("tasks.data.sources.tabular.HELD", 2)
    with pytest.raises(UsageError, match=r"a.jsonl \(its first 2 rows\) has no column 'content'; it has 'text', "):
        contents(*rows)


def test_the_notice_of_an_encoding_comes_once_and_alike(tmp_path, caplog):
    (tmp_path / "a.csv").write_bytes("uid,text\nx,Grüße – a\n".encode("cp1252"))
    with caplog.at_level(logging.WARNING):
        for layout in (LAYOUT, ADD, LAYOUT):
            assert [row.text("text") for row in read_rows(tmp_path / "a.csv", layout)] == ["Grüße – a"]
    (said,) = caplog.messages
    assert said.startswith("a.csv: a line is not UTF-8 and was read as Windows-1252, line 2; where")


def test_a_first_line_that_names_columns_makes_a_table_of_lines(tmp_path, caplog):
    layout = Layout(LAYOUT.columns, required=("text",), plain="text")
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path / "a", "a text, an image\nb\n", layout=layout) == [("", "a text, an image"), ("", "b")]
        assert not caplog.messages
        assert read(tmp_path / "a", "labels;text\na;b\n", layout=layout) == [("", "b")]
    assert caplog.messages == [f"{tmp_path}/a is read as a table: its first line names the columns 'labels', 'text'"]
