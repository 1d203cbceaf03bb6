"""Import of the tables that people have: kinds of file, separators, splits, what is counted and what is refused."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources import describe
from tasks.data.sources.importing import import_file
from tests.support.raw_folders import read_table

CSV = """\
id,text,body,tags,part
p1,Red fox,"It hunts, at
night",mammal; hunter,train
p2,Blue whale,,mammal;ocean;mammal,TRAIN
p3,Owl,,bird;hunter; bird,test
p4,Kiwi,,flightless,test
p5,,,mammal,train
p6,Stone,, ; ,train
p7,,only a body,ocean,tst
"""


def points(out: Path, stem: str) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress((out / f"{stem}.json.gz").read_bytes()).decode().splitlines()]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "animals.csv"
    path.write_text(CSV)
    return path


def test_a_csv_file(table: Path, tmp_path: Path):
    out = tmp_path / "animals"
    summary = import_file(table, out, text="text", labels="tags", content="body", uid="id", split="part")
    assert points(out, "trn") == [
        {"uid": "p1", "title": "Red fox", "content": "It hunts, at night", "target_ind": [0, 1],
         "target_rel": [1.0, 1.0]},
        {"uid": "p2", "title": "Blue whale", "content": "", "target_ind": [1, 2], "target_rel": [1.0, 1.0]}]
    assert points(out, "tst") == [  # "bird" and "flightless" are in no training row
        {"uid": "p3", "title": "Owl", "content": "", "target_ind": [0], "target_rel": [1.0]},
        {"uid": "p7", "title": "", "content": "only a body", "target_ind": [2], "target_rel": [1.0]}]
    assert points(out, "lbl") == [{"uid": name, "title": name, "content": ""} for name in ("hunter", "mammal", "ocean")]
    reason = summary.pop("separator_reason")
    assert summary == {"train": 2, "test": 2, "labels": 3, "positives_train": 4, "positives_test": 2,
                       "test_rows_without_known_labels": 1, "rows_without_text": 1, "rows_without_labels": 1,
                       "labels_never_in_training": 2, "separator": ";"}
    assert reason == ("guessed: of 7 label cells 4 have ';', 0 have '|', 0 have ','; ';' taken, "
                      "give a separator to decide otherwise")


def test_what_is_imported_can_be_read(table: Path, tmp_path: Path):
    import_file(table, tmp_path / "animals", text="text", labels="tags", split="part")
    data = describe(tmp_path / "animals")
    assert (data.name, data.format.name) == ("animals", "xc-json")
    (labels,) = read_table(data, "labels")
    assert labels["title"].to_pylist() == ["hunter", "mammal", "ocean"]
    (queries,) = read_table(data, "queries.train")
    assert queries["uid"].to_pylist() == ["2", "4"]  # without a uid column, the line where the row begins


def write(folder: Path, name: str, rows: list[dict]) -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "A.Parquet"])
@pytest.mark.parametrize("labels", [["x, y", "z"], "x, y;z"])
def test_other_kinds_of_file(tmp_path: Path, name: str, labels: object):
    rows = [{"uid": 7, "text": "seven", "labels": labels, "unused": 0.5},
            {"uid": 8, "text": None, "labels": labels, "unused": 0.5},
            {"uid": 9, "text": "nine", "labels": None, "unused": 0.5}]
    file = write(tmp_path, name.lower(), rows).rename(tmp_path / name)
    summary = import_file(file, tmp_path / "out", text="text", labels="labels", uid="uid", test_fraction=0)
    assert points(tmp_path / "out", "trn") == [
        {"uid": "7", "title": "seven", "content": "", "target_ind": [0, 1], "target_rel": [1.0, 1.0]}]
    assert [row["title"] for row in points(tmp_path / "out", "lbl")] == ["x, y", "z"]
    assert points(tmp_path / "out", "tst") == []
    assert (summary["rows_without_text"], summary["rows_without_labels"]) == (1, 1)


def test_tabs_and_quotes(tmp_path: Path):
    file = tmp_path / "a.TSV"
    file.write_bytes(b'\xef\xbb\xbftext\tlabels\r\n"a\tb ""c"""\tx|y\r\n\r\nd,e\tx\r\n')
    import_file(file, tmp_path / "out", text="text", labels="labels", test_fraction=0)
    found = points(tmp_path / "out", "trn")
    assert [(row["uid"], row["title"]) for row in found] == [("2", 'a b "c"'), ("4", "d,e")]


@pytest.mark.parametrize(("cells", "separator", "names"), [
    (["a;b", "a,c"], ";", ["a", "a,c", "b"]),
    (["a|b", "a,c"], "|", ["a", "a,c", "b"]),
    (["a b", "a,c"], ",", ["a", "a b", "c"]),
    (["a b", "a/c"], "", ["a b", "a/c"]),
    (["[net]|[disk]", "[net]"], "|", ["[disk]", "[net]"]),
    (["x;y"] + ["a,b"] * 199, ",", ["a", "b", "x;y"]),  # one in 200 is taken for part of a name
])
def test_the_separator_is_guessed(tmp_path: Path, cells: list, separator: str, names: list):
    file = write(tmp_path, "a.jsonl", [{"t": f"text {n}", "l": cell} for n, cell in enumerate(cells)])
    summary = import_file(file, tmp_path / "out", text="t", labels="l", test_fraction=0)
    assert summary["separator"] == separator
    assert [row["title"] for row in points(tmp_path / "out", "lbl")] == names


@pytest.mark.parametrize(("separator", "names"), [(",", ["Doe", "John; Roe"]), ("; ", ["Doe, John", "Roe"]),
                                                  ("", ["Doe, John; Roe"])])
def test_the_separator_can_be_given(tmp_path: Path, separator: str, names: list):
    file = write(tmp_path, "a.jsonl", [{"t": "x", "l": "Doe, John; Roe"}])
    summary = import_file(file, tmp_path / "out", text="t", labels="l", separator=separator, test_fraction=0)
    assert sorted(row["title"] for row in points(tmp_path / "out", "lbl")) == names
    assert (summary["separator"], summary["separator_reason"]) == (separator, "given")


def test_a_given_separator_that_no_cell_has_is_told(tmp_path: Path):
    file = write(tmp_path, "a.jsonl", [{"t": "x", "l": "a;b"}, {"t": "y", "l": "a"}])
    summary = import_file(file, tmp_path / "out", text="t", labels="l", separator="|", test_fraction=0)
    assert summary["separator_reason"] == "given, but none of 2 label cells has '|'; without it ';' is taken"


def test_the_order_of_rows_does_not_change_ids_or_split(tmp_path: Path):
    rows = [{"u": f"u{n}", "t": f"text {n}", "l": [f"label {n % 7}"]} for n in range(50)]
    for name, order in (("one", rows), ("two", rows[::-1])):
        import_file(write(tmp_path, f"{name}.jsonl", order), tmp_path / name, text="t", labels="l", uid="u")
    assert points(tmp_path / "one", "lbl") == points(tmp_path / "two", "lbl")
    assert points(tmp_path / "one", "tst") == points(tmp_path / "two", "tst")[::-1]


def test_a_label_is_called_the_same_by_a_later_import(table: Path, tmp_path: Path):
    """A champion is compared, and labels are edited, by uid; a label that comes first must not move the others'."""
    import_file(table, tmp_path / "animals", text="text", labels="tags", split="part")
    before = {row["title"]: row["uid"] for row in points(tmp_path / "animals", "lbl")}
    table.write_text(CSV + "p8,Ant,,arthropod,train\n")
    import_file(table, tmp_path / "animals", text="text", labels="tags", split="part")
    after = {row["title"]: row["uid"] for row in points(tmp_path / "animals", "lbl")}
    assert min(after) == "arthropod" and before.items() <= after.items()


@pytest.mark.parametrize(("columns", "message"), [
    ({"text": "txt"}, "animals.csv has no column 'txt' for text; it has 'id', 'text', 'body', 'tags', 'part'\n"
                      "hint: did you mean 'text'?"),
    ({"labels": "tag"}, "no column 'tag' for labels"), ({"uid": "zzzzzz"}, "name one of these columns: --uid COLUMN"),
    ({"content": "bodi"}, "did you mean 'body'?"), ({"split": "prt"}, "did you mean 'part'?")])
@pytest.mark.parametrize("name", ["animals.csv", "animals.jsonl", "animals.parquet"])
def test_a_column_that_is_not_there(table: Path, tmp_path: Path, columns: dict, message: str, name: str):
    if name != table.name:
        write(tmp_path, name, [{"id": "1", "text": "a", "body": "b", "tags": "c", "part": "train"}])
    with pytest.raises(UsageError) as caught:
        import_file(tmp_path / name, tmp_path / "out", **{"text": "text", "labels": "tags", **columns})
    assert message.replace("animals.csv", name) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.csv", "t,l\nx,y\nx,y,z\n", "a.csv:3: the row has 3 cells and the header 2"),
    ("a.csv", 't,l\n"x\nx",y\nb\n', "a.csv:4: the row has 1 cells"),
    ("a.csv", 't,l\nx,y\n"x,y\nx,y\n', "a.csv:3: the row is not CSV: unexpected end of data"),
    ("a.csv", 't,l\nx,"y"z\n', "a.csv:2: the row is not CSV"),
    ("a.jsonl", '{"t": "x", "l": "y"}\n{"t"\n', "a.jsonl:2: the line is not JSON"),
    ("a.jsonl", '["t"]\n', "a.jsonl:1: the line is JSON but not an object: [\"t\"]\nhint"),
    ("a.jsonl", '{"t": "x", "l": "y"}\n{"t": 1.5, "l": "y"}\n', "a.jsonl:2: column 't' must be a text, got 1.5\nhint"),
    ("a.jsonl", '{"t": "x", "l": ["y", ["z"]]}\n', "a.jsonl:1: a label must be a text, got ['z']"),
    ("a.jsonl", '{"t": "x", "l": {"y": 1}}\n',
     "a.jsonl:1: labels must be a list or a text, got {'y': 1}\nhint: write the names"),
    ("a.jsonl", '{"t": "x", "l": [true]}\n', "a label must be a text, got True\nhint: write the names of the labels"),
    ("a.jsonl", '{"t": "x", "l": ["y"], "s": "Dev"}\n', "a.jsonl:1: the split must be train or test, got 'Dev'"),
    ("a.jsonl", '{"t": "x", "l": ["y"], "s": "test"}\n', "a.jsonl: all rows with a text and a label are for testing"),
    ("a.csv", "t,l\n", "a.csv: it has no rows\nhint: check that it is the right file"),
    ("a.csv", "t,l\nx,\n,y\n", "a.csv: no row has a text and a label (rows_without_text: 1, rows_without_labels: 1)"),
    ("a.parquet", "PAR1", "a.parquet: it is not a Parquet file that can be read"),
    ("a.csv", 't,l\nx,"[\'a\', \'b\']"\n', "the labels are lists that were written as texts, such as ['a', 'b']\nhint"),
    ("a.jsonl", '{"t": "x", "l": "[\\"a\\"]"}\n', 'the labels are lists that were written as texts, such as ["a"]\n'),
    ("a.csv", "t,l,w\nx,a;b,1;2\ny,a,1;2\n", "a.csv:3: the row has 1 label and 2 weights"),
    ("a.csv", 't,l,w\nx,a|b,"1,5"\n', "got '1,5'\nhint: write a decimal with a point, 1.5;"),
    ("a.csv", "t,l,w\nx,a;b,\n", "a.csv:2: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got ''"),
    ("a.csv", "t,l,w\nx,a,0\n", "a.csv:2: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got '0'"),
    ("a.csv", "t,l,w\nx,a,nan\n", "a.csv:2: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got 'nan'"),
    ("a.csv", "t,l,w\nx,a,1e39\n", "a.csv:2: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got '1e39'"),
    ("a.jsonl", '{"t": "x", "l": ["a"], "w": 1' + 400 * "0" + "}\n", "a.jsonl:1: a weight must be a number above 0"),
    ("a.jsonl", '{"t": "x", "l": ["a"], "w": true}\n',
     "a.jsonl:1: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got True"),
    *(("a.jsonl", f'{{"t": "x", "l": "y", "{key}": {start}{"x" * 999}{end}}}\n', f"got {cut.ljust(80, 'x')}\nhint")
      for key, start, end, cut in (("t", '["', '"]', "['"), ("l", '{"', '": 1}', "{'"), ("w", '"', '"', "'"))),
    ("a.jsonl", '{"t": "x", "l": ["a"], "w": {"a": 1}}\n',
     "a.jsonl:1: a weight must be a number above 0, 1.2e-38 to 3.4e+38, got {'a': 1}"),
])
def test_bad_rows_are_refused(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(ContractError) as caught:
        import_file(tmp_path / name, tmp_path / "out", text="t", labels="l", split="s" if '"s"' in content else None,
                    weight="w" if ",w" in content or '"w"' in content else None, test_fraction=0)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_draw_without_test_rows_is_told(tmp_path: Path):
    file = write(tmp_path, "a.jsonl", [{"u": "u0", "t": "text", "l": ["x"]}])
    assert hashlib.sha1(b"text\n").hexdigest() > "4"
    with pytest.raises(ContractError, match=r"none of the usable rows of a.jsonl was drawn .* share of 0.2\nhint"):
        import_file(file, tmp_path / "out", text="t", labels="l", uid="u")
    assert import_file(file, tmp_path / "out", text="t", labels="l", uid="u", test_fraction=0)["test"] == 0
    write(tmp_path, "same.jsonl", [{"t": "text", "l": ["x"]}, {"t": "text", "l": ["y"]}])
    with pytest.raises(ContractError, match="all have the same text: add others"):
        import_file(tmp_path / "same.jsonl", tmp_path / "out", text="t", labels="l")


def test_invalid_settings(table: Path, tmp_path: Path):
    for fraction in (-0.1, 1, float("nan")):
        with pytest.raises(UsageError, match=f"from 0 to below 1, got {fraction}"):
            import_file(table, tmp_path / "out", text="text", labels="tags", test_fraction=fraction)
    with pytest.raises(UsageError, match=r"nothing.csv does not exist"):
        import_file(tmp_path / "nothing.csv", tmp_path / "out", text="text", labels="tags")
    with pytest.raises(UsageError, match=r"animals.xlsx is of no kind .*\nhint: known are .csv, .tsv"):
        import_file(tmp_path / "animals.xlsx", tmp_path / "out", text="text", labels="tags")
    with pytest.raises(UsageError, match=r"is not empty and holds 'animals.csv'"):
        import_file(table, tmp_path, text="text", labels="tags")
    (tmp_path / "twice.csv").write_text("text,tags,tags\nx,y,z\n")
    with pytest.raises(UsageError, match=r"twice.csv has 2 columns 'tags'"):
        import_file(tmp_path / "twice.csv", tmp_path / "out", text="text", labels="tags")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UsageError, match=r"empty.csv is empty\nhint: a table begins with a line that names"):
        import_file(tmp_path / "empty.csv", tmp_path / "out", text="text", labels="tags")


def test_a_folder_that_a_file_manager_showed_is_written_again(table: Path, tmp_path: Path):
    for _ in range(2):
        import_file(table, tmp_path / "out", text="text", labels="tags")
        (tmp_path / "out" / ".DS_Store").write_bytes(b"Bud1")
    (tmp_path / "out" / ".git").mkdir()
    with pytest.raises(UsageError, match=r"is not empty and holds '\.git'"):
        import_file(table, tmp_path / "out", text="text", labels="tags")


def test_uids_that_are_not_unique_are_refused(tmp_path: Path):
    """A draw does not decide; halves that the table has may number their rows alike, as each is a table of its own."""
    file, out = tmp_path / "a.csv", tmp_path / "out"
    file.write_text("u,t,l,s\n1,a,x,train\n1,,x,train\n2,b,x,train\n3,c,x,train\n4,d,x,test\n1,e,x,test\n")
    for share in (0.0, 0.9):
        with pytest.raises(ContractError) as caught:
            import_file(file, out, text="t", labels="l", uid="u", test_fraction=share)
        assert str(caught.value).startswith(f"{file}:7: the uid '1' is already that of {file}:2\nhint: a uid names one")
    assert not out.exists() and import_file(file, out, text="t", labels="l", uid="u", split="s")["test"] == 2


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_row_without_a_uid_is_refused_where_a_column_has_uids(tmp_path: Path, name: str):
    """Its number may be another row's uid, and is no identity: it changes as lines come and go."""
    file, out = tmp_path / name, tmp_path / "out"
    file.write_text("u,t,l\n3,a,x\n,,x\n ,c,x\n" if name == "a.csv" else
                    '{"u": 2, "t": "a", "l": "x"}\n{"l": "x"}\n\n{"t": "b", "l": "x"}\n')
    with pytest.raises(ContractError, match=rf"^{re.escape(str(file))}:4: the row has no uid\nhint: give each"):
        import_file(file, out, text="t", labels="l", uid="u")
    assert not out.exists()


def test_a_column_has_one_role_but_for_the_uid(table: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"column 'Text' is named for text and for labels\nhint: name another: --lab"):
        import_file(table, tmp_path / "out", text="text", labels="Text")
    assert import_file(table, tmp_path / "out", text="text", labels="tags", uid="text", split="part")["train"] == 2


@pytest.mark.parametrize(("parts", "said"), [
    (("train", "train", "test"), "no row for testing has a label that a row for training has"),
    (("train", "train", "train"), "no row is for testing")])
def test_a_table_that_no_run_could_be_measured_on_is_refused(tmp_path, parts, said):
    """The labels of its test rows have no training row, or by its column no row is for testing."""
    file, out = tmp_path / "a.csv", tmp_path / "out"
    file.write_text("t,l,s\n" + "".join(f"text {n},label {n},{part}\n" for n, part in enumerate(parts)))
    with pytest.raises(ContractError, match=rf"a\.csv: {said}\nhint"):
        import_file(file, out, text="t", labels="l", split="s")
    assert not out.exists()
