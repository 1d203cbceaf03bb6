"""Files of labels: every form that is read, and every bad row by its line."""

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.label_files import Row, read_labels


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("a.csv", "uid,text\nx,a wolf\n\ny,\"one, two\"\n", [("x", "a wolf", "", 2), ("y", "one, two", "", 4)]),
    ("a.csv", "\ufeffText,UID,content\na wolf,x,long\n", [("x", "a wolf", "long", 2)]),
    ("a.csv", "x,a wolf\r\ny,b\r\n", [("x", "a wolf", "", 1), ("y", "b", "", 2)]),
    ("a.tsv", "x\ta wolf, large\ty\n", [("x", "a wolf, large", "y", 1)]),
    ("a.txt", "uid\ttext\nx\ta, b\n", [("x", "a, b", "", 2)]),
    ("a.jsonl", '{"uid": "x", "text": "cafe\\u0301\\u0000"}\n', [("x", "café", "", 1)])])
def test_files_of_labels_to_add(tmp_path, name, text, wanted):
    (tmp_path / name).write_text(text, newline="")
    assert read_labels(str(tmp_path / name), texts=True) == [
        Row(f"{tmp_path / name}:{line}", *row) for *row, line in wanted]


@pytest.mark.parametrize(("name", "text"), [
    ("a.txt", "x, y\nz\n"), ("a.csv", "uid,text\n\"x, y\",a\nz,b\n"), ("a.jsonl", '{"uid": "x, y"}\n{"uid": "z"}')])
def test_files_of_labels_to_remove(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert [row.uid for row in read_labels(str(tmp_path / name), texts=False)] == ["x, y", "z"]


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.csv", b"uid,text\nx,a\ny, \n", "a.csv:3: label 'y' has no text"),
    ("a.csv", b"uid,text\nx,a\n,b\n", "a.csv:3: the row has no uid"),
    ("a.csv", b"uid,text\nx,a\ny,b\nx,c\n", "a.csv:4: label 'x' is in "),
    ("a.csv", b"uid,text\nx,a,b\n", "a.csv:2: the row has 3 columns, there are 2"),
    ("a.csv", b"uid,name\nx,a\n", "a.csv:1: there is no column 'name'"),
    ("a.csv", b"label,text\nx,a\n", "a.csv:1: there is no column 'label'"),
    ("a.csv", b"uid,text\nx,\"a\n", "a.csv:2: the row cannot be read"),
    ("a.csv", b"uid,text\nx,\xff\n", "a.csv:2: the line is not UTF-8"),
    ("a.jsonl", b'{"uid": "x", "text": "a"}\n{"uid": 3, "text": "a"}\n', "a.jsonl:2: the line is not an object of"),
    ("a.jsonl", b'{"uid": "x"', "a.jsonl:1: not a line of JSON"),
    ("a.csv", b"uid,text\nx," + b"a" * 70_000 + b"\n", "a.csv:2: the text of label 'x' has more than 65,536"),
    ("a.csv", b"uid,text\n", "there is no label in")])
def test_a_bad_file_is_named_with_its_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises((ContractError, UsageError)) as caught:
        read_labels(str(tmp_path / name), texts=True)
    assert said in str(caught.value).replace(f"{tmp_path}/", "")
