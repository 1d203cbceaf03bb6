"""Files of labels: every form that is read, and every bad row by its line."""

import logging

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.registry.label_files import LabelRow, read_labels


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("a.csv", "uid,text\nx,a wolf\n\ny,\"one, two\"\n", [("x", "a wolf", "", 2), ("y", "one, two", "", 4)]),
    ("a.csv", "\ufeffText,UID,content\na wolf,x,long\n", [("x", "a wolf", "long", 2)]),
    ("a.csv", "x,a wolf\r\ny,b\r\n", [("x", "a wolf", "", 1), ("y", "b", "", 2)]),
    ("a.tsv", "x\ta wolf, large\ty\n", [("x", "a wolf, large", "y", 1)]),
    ("a.txt", "uid\ttext\nx\ta, b\n", [("x", "a, b", "", 2)]),
    ("a.csv", '"uid","text"\r\n"x","a wolf"\r\n', [("x", "a wolf", "", 2)]),
    ("a.csv", '"text";"uid"\n"a; wolf";"x"\n;\n', [("x", "a; wolf", "", 2)]),
    ("a.csv", "x;a wolf, large\ny;b\n", [("x", "a wolf, large", "", 1), ("y", "b", "", 2)]),
    ("a.jsonl", '{"uid": "x", "text": "cafe\\u0301\\u0000"}\n', [("x", "café", "", 1)])])
def test_files_of_labels_to_add(tmp_path, name, text, wanted):
    (tmp_path / name).write_text(text, newline="")
    assert read_labels(str(tmp_path / name), texts=True) == [
        LabelRow(f"{tmp_path / name}:{line}", *row) for *row, line in wanted]


@pytest.mark.parametrize(("name", "text"), [
    ("a.txt", "x, y\nz\n"), ("a.csv", "uid,text\n\"x, y\",a\nz,b\n"), ("a.csv", '"x, y"\n"z"\n'),
    ("a.csv", 'text;uid\na;x, y\nb;z\n'), ("a.jsonl", '{"uid": "x, y"}\n{"uid": "z"}')])
def test_files_of_labels_to_remove(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert [row.uid for row in read_labels(str(tmp_path / name), texts=False)] == ["x, y", "z"]


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.csv", b"uid,text\nx,a\ny, \n", "a.csv:3: label 'y' has no text"),
    ("a.csv", b"uid,text\nx,a\n,b\n", "a.csv:3: the row has no uid\nhint: give each row one"),
    ("a.csv", b"uid,text\nx,a\ny,b\nx,c\n", "a.csv:4: label 'x' is in "),
    ("a.csv", b"uid,text\nx,a,b\n", "a.csv:2: the row has 3 cells and the header 2"),
    ("a.csv", b"x,a,b,c\n", "a.csv:1: the row has 4 cells and without a header there are at most 3"),
    ("a.csv", b"uid,name\nx,a\n", "a.csv has no column 'text'; it has 'uid', 'name'\nhint: the columns are uid, text"),
    ("a.csv", b"label;text\nx;a\n", "a.csv has no column 'uid'; it has 'label', 'text'"),
    ("a.csv", b"uid,text,name\nx,a,b\n", "a.csv:1: there is no place for a column 'name'"),
    ("a.csv", b"x|a\n", "a.csv:1: label 'x|a' has no text\nhint: separate uid and text by a comma, a semicol"),
    ("a.csv", b"x;a, b\n", "a.csv:1: the cells may be separated by ',' or by ';'\nhint: begin with a header line"),
    ("a.csv", b"uid,text\nx,\"a\n", "a.csv:2: the row is not CSV: unexpected end of data"),
    ("a.jsonl", b'{"uid": "x", "text": "a"}\n{"uid": 3.5, "text": "a"}\n', "a.jsonl:2: column 'uid' must be a text"),
    ("a.jsonl", b'{"uid": "x"', "a.jsonl:1: the line is not JSON"),
    ("a.csv", b"uid,text\nx," + b"a" * 70_000 + b"\n", "a.csv:2: the text of label 'x' has more than 65,536"),
    ("a.csv", b"id,name\nx,a\n", "a.csv:1: 'id' seems to name a column, and there is no"),
    ("a.csv", b"uid,text\n", "there is no label in")])
def test_a_bad_file_is_named_with_its_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises((ContractError, UsageError)) as caught:
        read_labels(str(tmp_path / name), texts=True)
    assert said in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_table_without_a_header_line_is_said_to_be_one(tmp_path, caplog):
    for name, header in (("with.csv", '"text","uid"\n'), ("without.csv", "")):
        (tmp_path / name).write_text(header + '"x","a wolf"\n')
        with caplog.at_level(logging.WARNING):
            read_labels(str(tmp_path / name), texts=True)
    (said,) = caplog.messages
    assert said.endswith("without.csv has no header line: its first row is taken for uid 'x', text 'a wolf'")


def test_a_uid_with_a_comma_is_not_cut_where_there_is_no_header(tmp_path):
    """Half of it may be another label."""
    (tmp_path / "a.csv").write_text("Doe, John\n")
    with pytest.raises(ContractError, match=r"a.csv:1: the row has 2 cells .*\n.*put a cell that holds ',' in quotes"):
        read_labels(str(tmp_path / "a.csv"), texts=False)
