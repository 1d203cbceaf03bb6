"""Import of Annif's document corpora: TSV, CSV, JSON lines and folders of full texts."""

import gzip
import json
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points

C1, C2 = "http://example.org/c1", "urn:c2"
TSV = f"""\ufeffA "quoted" title; with marks\t<{C1}> <{C2}>

Another title\t{C2}
No subject\t
"""


def targets(out: Path, stem: str = "trn") -> dict[str, list[str]]:
    """Return the uids of the labels of each point, by its title or content."""
    labels = [row["uid"] for row in points(out, "lbl")]
    return {row["title"] or row["content"]: [labels[each] for each in row["target_ind"]] for row in points(out, stem)}


@pytest.mark.parametrize("name", ["docs.tsv", "docs.tsv.gz", "DOCS.TSV.GZ", "docs.txt"])
def test_a_tsv_file(tmp_path: Path, name: str):
    data = TSV.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
    summary = import_file(tmp_path / name, tmp_path / "out", test_fraction=0)
    assert targets(tmp_path / "out") == {'A "quoted" title; with marks': [C1, C2], "Another title": [C2]}
    assert [row["uid"] for row in points(tmp_path / "out", "trn")] == ["1", "3"]
    assert summary["rows_without_labels"] == 1 and not {"separator", "separator_reason"} & summary.keys()
    assert summary["vocabulary_reason"].startswith("2 labels have a URI for a text")


def test_a_csv_file(tmp_path: Path):
    rows = ["document_id,text,subject_uris,title", f'd7,"One, two",<{C1}> {C2},T', "d8,Three,,"]
    (tmp_path / "docs.csv").write_text("\n".join(rows))
    summary = import_file(tmp_path / "docs.csv", tmp_path / "out", content="title", test_fraction=0)
    assert targets(tmp_path / "out") == {"One, two": [C1, C2]}
    (row,) = points(tmp_path / "out", "trn")
    assert (row["uid"], row["content"], summary["rows_without_labels"]) == ("d7", "T", 1)
    import_file(tmp_path / "docs.csv", tmp_path / "out", uid="title", test_fraction=0)
    assert [row["uid"] for row in points(tmp_path / "out", "trn")] == ["T"]
    (tmp_path / "docs.csv").write_text(f"text,subject_uris\nOne,{C1}\n")
    import_file(tmp_path / "docs.csv", tmp_path / "out", test_fraction=0)
    assert [row["uid"] for row in points(tmp_path / "out", "trn")] == ["2"]


def test_json_lines(tmp_path: Path):
    rows = [{"document_id": 0, "text": "short", "subjects": [{"uri": f"<{C1}>", "label": "one"}]},
            {"text": "long text", "metadata": {"title": "Title", "year": 1999}, "subjects": [{"label": "two"}]},
            {"text": "none"}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = import_file(tmp_path / "docs.jsonl", tmp_path / "out", test_fraction=0)
    assert [(row["uid"], row["title"], row["content"]) for row in points(tmp_path / "out", "trn")] == [
        ("0", "short", ""), ("2", "Title", "long text")]
    assert [(row["uid"], row["title"]) for row in points(tmp_path / "out", "lbl")] == [(C1, "one"), ("two", "two")]
    assert summary["rows_without_labels"] == 1 and "vocabulary_reason" not in summary


@pytest.mark.parametrize(("numbers", "message"), [
    ((7, 7), "{file}:2: the uid '7' is already that of {file}:1\nhint: a uid names one row"),
    ((2, None), "{file}:2: it has no uid, and its number, 2, is the uid of {file}:1\nhint: give each row one"),
    ((None, 1), "{file}:1: it has no uid, and its number, 1, is the uid of {file}:2\nhint: give each row one")])
def test_ids_of_json_lines_name_one_text(tmp_path: Path, numbers: tuple[int | None, int | None], message: str):
    """A text without one has the number of its line."""
    rows = [{"text": f"text {place}", "subjects": [{"label": "one"}], "document_id": number}
            for place, number in enumerate(numbers)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ContractError) as caught:
        import_file(tmp_path / "docs.jsonl", tmp_path / "out", test_fraction=0)
    assert str(caught.value).startswith(message.format(file=tmp_path / "docs.jsonl"))


def test_a_folder_of_full_texts(tmp_path: Path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "b.txt").write_text("\ufefffirst line\nsecond line\n")
    (docs / "b.tsv").write_text(f"\ufeff<{C1}>\tone\tmore\n\n<{C2}>\ttwo\n")
    (docs / "b.key").write_text("not read\n")
    (docs / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    (docs / "a.key").write_text("three\none and more\n")
    (docs / "c.txt").write_text("without subjects")
    (docs / "d.json").write_text(json.dumps({"text": "in\nJSON", "subjects": [{"uri": C1, "label": "one"}]}, indent=1))
    (docs / "e.json").write_text(json.dumps({"document_id": 0, "text": "more", "subjects": [{"label": "three"}]}))
    (docs / "g.json").write_text(json.dumps({"text": "of a text", "metadata": {"title": "Title"},
                                             "subjects": [{"label": "three"}]}))
    (docs / "README.md").write_text("not read")
    (docs / "f.key").write_text("of no text\n")
    (docs / "._a.txt").write_bytes(b"\0\5\x16\7Mac OS X")    # as macOS leaves beside each file on a network share
    (docs / "._a.key").write_bytes(b"\0\5\x16\7Mac OS X")
    (docs / "z.TXT").write_text("from DOS")
    (docs / "z.KEY").write_text("three\n")
    summary = import_file(docs, tmp_path / "out", test_fraction=0)
    assert [(row["uid"], row["title"], row["content"]) for row in points(tmp_path / "out", "trn")] == [
        ("a", "", "café"), ("b", "", "first line second line"), ("d", "", "in JSON"),
        ("0", "", "more"), ("g", "Title", "of a text"), ("z", "", "from DOS")]
    assert [(row["uid"], row["title"]) for row in points(tmp_path / "out", "lbl")] == [
        (C1, "one"), ("one and more", "one and more"), ("three", "three"), (C2, "two")]
    assert (summary["rows_without_labels"], summary["rows_without_text"]) == (1, 1)


def test_an_edited_text_of_a_folder_stays_in_its_half(tmp_path: Path):
    """A document is its file: a later import must not test on what was trained on."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(40):
        (docs / f"{number}.txt").write_text(f"text {number}")
        (docs / f"{number}.key").write_text("one\n")
    import_file(docs, tmp_path / "out", test_fraction=0.5)
    halves = {row["uid"] for row in points(tmp_path / "out", "tst")}
    for path in docs.glob("*.txt"):
        path.write_text(f"{path.read_text()}, second edition")
    import_file(docs, tmp_path / "out", test_fraction=0.5)
    assert halves == {row["uid"] for row in points(tmp_path / "out", "tst")} and 10 < len(halves) < 30


def test_a_folder_is_imported_to_a_folder_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the import itself writes there is no change of the documents."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.key").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert import_file(Path(), Path("data"), test_fraction=0)["train"] == 1


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.tsv", f"one\t<{C1}>\ntwo\n", "a.tsv:2: the line has no tab: 'two'"),
    ("a.tsv", f"text\turi\none\t<{C1}>\n", "a.tsv:1: 'uri' is not a URI\nhint: subjects are URIs with blan"),
    ("a.tsv", f"one\t<{C1}>\ntwo\t{C2} computer science\n", "a.tsv:2: 'computer' is not a URI"),
    ("a.csv", "text,subject_uris\na,b,c\n", "a.csv:2: the row has 3 cells and the header 2"),
    ("a.jsonl", '{"text": "a", "subjects": []}\n{"text"\n', "a.jsonl:2: it is not a JSON object"),
    ("a.jsonl", '{"text": "a", "subjects": []}\n[1]\n', "a.jsonl:2: it is not a JSON object"),
    ("a.jsonl", '{"text": "a", "subjects": ["x"]}\n', "a.jsonl:1: subjects must be a list of objects with a uri or a"),
    ("a.jsonl", '{"text": "a", "subjects": [{"uri": 3}]}\n', "a.jsonl:1: subjects must be a list of objects"),
    ("a.jsonl", '{"text": ["a"], "subjects": [{"uri": "x"}]}\n', "a.jsonl:1: column 'text' must be a text, got ['a']"),
    ("a.tsv", f"one\t\ntwo\t<{C1}>", "a.tsv: none of the usable rows of a.tsv was drawn for testing"),
])
def test_bad_documents_are_refused(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(ContractError) as caught:
        import_file(tmp_path / name, tmp_path / "out", test_fraction=1e-9)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_files_of_a_folder_are_named(tmp_path: Path):
    docs = tmp_path / "docs"
    docs.mkdir()
    with pytest.raises(UsageError, match=r"docs is a folder without documents\nhint: known are Annif's full texts"):
        import_file(docs, tmp_path / "out")
    (docs / "trn.json.gz").write_bytes(b"")
    with pytest.raises(UsageError, match=r"docs is a data set already\nhint: xc run --data .*docs"):
        import_file(docs, tmp_path / "out")
    (docs / "trn.json.gz").unlink()
    (docs / "a.json").write_text("{")
    with pytest.raises(ContractError, match=r"docs/a\.json: it is not a JSON object\nhint: a document is"):
        import_file(docs, tmp_path / "out")
    (docs / "a.json").unlink()
    (docs / "a.txt").write_text("text")
    with pytest.raises(ContractError, match=r"docs: no row has a text and a label .*\nhint: check that each text"):
        import_file(docs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_columns_are_those_of_a_table_alone(tmp_path: Path):
    """A TSV with a header is a table where its columns are named; a corpus has no columns."""
    file = tmp_path / "a.tsv"
    file.write_text(f"text\tlabels\nx\t{C1}\n")
    import_file(file, tmp_path / "out", text="text", labels="labels", test_fraction=0)
    assert targets(tmp_path / "out") == {"x": [C1]}
    with pytest.raises(UsageError, match=r"is Annif's TSV, which has no column to name\nhint: leave out --weight"):
        import_file(file, tmp_path / "out", weight="w")
    file.write_text("text\tlabels\nx\ty\n")
    with pytest.raises(UsageError, match=r"a.tsv is a table, and the column of its labels is not named\nhint: xc data"):
        import_file(file, tmp_path / "out", text="text")
