"""Import of MARC records: binary and XML, titles and subject headings."""

import gzip
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points
from tests.unit.test_importing_annif import targets

FIELD, RECORD, PART = "\x1e", "\x1d", "\x1f"
ROWS = [
    [("001", "id1"), ("245", "10", "aCats of Paris :", "ba history /", "cby A. Author."),
     ("520", "  ", "aOn cats."), ("650", " 0", "aCats.", "xDiseases", "zFrance.", "0http://example.org/cats"),
     ("650", " 7", "aAnimals, etc.", "0(DE-588)4066562-8", "0(uri)http://example.org/animals"),
     ("651", " 0", "aParis")],
    [("001", "id2"), ("245", "00", "aÜber Hunde."), ("650", " 0", "aDogs"), ("650", " 0", "zno heading")],
    [("001", "id3"), ("245", "00", "aWithout a subject")]]


def binary(fields: list[tuple], encoding: str = "utf-8") -> bytes:
    """Return a record of MARC 21: leader, directory, fields."""
    directory, body = "", b""
    for tag, *parts in fields:
        text = parts[0] if tag < "010" else parts[0] + "".join(PART + part for part in parts[1:])
        data = (text + FIELD).encode(encoding)
        directory += f"{tag}{len(data):04d}{len(body):05d}"
        body += data
    base = 24 + len(directory) + 1
    mark = "a" if encoding == "utf-8" else " "
    leader = f"{base + len(body) + 1:05d}nam {mark}22{base:05d} a 4500"
    return (leader + directory + FIELD).encode() + body + RECORD.encode()


def xml(records: list[list[tuple]], prefix: str = "") -> str:
    """Return a collection of MARCXML."""
    inner = ""
    for fields in records:
        inner += f"<{prefix}record><{prefix}leader>00000nam a2200000 a 4500</{prefix}leader>"
        for tag, *parts in fields:
            if tag < "010":
                inner += f'<{prefix}controlfield tag="{tag}">{parts[0]}</{prefix}controlfield>'
                continue
            sub = "".join(f'<{prefix}subfield code="{part[0]}">{part[1:]}</{prefix}subfield>' for part in parts[1:])
            inner += f'<{prefix}datafield tag="{tag}" ind1=" " ind2=" ">{sub}</{prefix}datafield>\n'
        inner += f"</{prefix}record>\n"
    name = f"xmlns:{prefix[:-1]}" if prefix else "xmlns"
    return (f'<?xml version="1.0"?>\n<{prefix}collection {name}="http://www.loc.gov/MARC21/slim">'
            f"{inner}</{prefix}collection>")


HARVESTED = xml(ROWS, "m:").partition("?>")[2]
FILES = {"a.mrc": b"".join(map(binary, ROWS)), "a.xml": xml(ROWS).encode(),
         "b.xml": f"<OAI-PMH><record><header/><metadata>{HARVESTED}</metadata></record></OAI-PMH>".encode(),
         "a.mrc.gz": gzip.compress(b"".join(map(binary, ROWS))), "a.xml.gz": gzip.compress(xml(ROWS).encode()),
         "lines.mrc": b"\r\n".join(map(binary, ROWS)) + b"\r\n\x1a",    # as an editor or FTP in text mode leaves it
         "A.MRC.GZ": gzip.compress(b"".join(map(binary, ROWS)))}


@pytest.mark.parametrize("name", FILES)
def test_titles_and_headings(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(FILES[name])
    summary = import_file(tmp_path / name, tmp_path / "out", test_fraction=0)
    assert targets(tmp_path / "out") == {"Cats of Paris : a history": ["Animals, etc.", "Cats"],
                                         "Über Hunde.": ["Dogs"]}
    assert [row["uid"] for row in points(tmp_path / "out", "trn")] == ["id1", "id2"]
    assert summary["rows_without_labels"] == 1


def test_fields_can_be_named(tmp_path: Path):
    (tmp_path / "a.mrc").write_bytes(FILES["a.mrc"])
    import_file(tmp_path / "a.mrc", tmp_path / "out", text="245a", content="520a", labels="65xaxz", test_fraction=0)
    row, _ = points(tmp_path / "out", "trn")
    assert (row["title"], row["content"]) == ("Cats of Paris", "On cats.")
    assert targets(tmp_path / "out")["Cats of Paris"] == ["Animals, etc.", "Cats -- Diseases -- France", "Paris"]
    (tmp_path / "b.xml").write_text("<html/>")
    with pytest.raises(UsageError, match=r"b.xml is XML, but not MARCXML\nhint: save the documents as MARCXML or as a"):
        import_file(tmp_path / "b.xml", tmp_path / "out", text="text", labels="labels")
    with pytest.raises(UsageError, match=r"a column of MARC is a field with its subfields, got 'title' for text"):
        import_file(tmp_path / "a.mrc", tmp_path / "out", text="title", test_fraction=0)


def test_headings_are_found_in_a_vocabulary_by_number_or_name(tmp_path: Path):
    (tmp_path / "a.mrc").write_bytes(FILES["a.mrc"])
    (tmp_path / "v.tsv").write_text("<http://example.org/animals>\tfauna\n<urn:a>\tAnimals, etc.\n<urn:c>\tCats\n")
    summary = import_file(tmp_path / "a.mrc", tmp_path / "out", vocabulary=tmp_path / "v.tsv", test_fraction=0)
    assert targets(tmp_path / "out") == {"Cats of Paris : a history": ["http://example.org/animals", "urn:c"]}
    assert [row["title"] for row in points(tmp_path / "out", "lbl")] == ["fauna", "Cats"]
    assert summary["vocabulary_reason"].endswith(f"the first is 'Dogs' ({tmp_path / 'a.mrc'}, record 2)")


def test_marc_8_is_read(tmp_path: Path):
    """As older catalogues are encoded: a diaeresis stands before its letter."""
    record = binary([("001", "1"), ("245", "00", "a\xe8Uber Hunde"), ("650", " 0", "aDogs")], "latin-1")
    (tmp_path / "a.mrc").write_bytes(record)
    import_file(tmp_path / "a.mrc", tmp_path / "out", test_fraction=0)
    assert targets(tmp_path / "out") == {"Über Hunde": ["Dogs"]}


def test_utf_8_is_read_where_the_leader_does_not_say_so(tmp_path: Path):
    """As in UNIMARC, whose leader has no place for it, and of programs that convert the letters alone."""
    rows = [[("001", "1"), ("200", "1 ", "aL'été à Besançon"), ("606", "  ", "aŒuvres")],
            [("001", "2"), ("200", "1 ", "aCats"), ("606", "  ", "aŒuvres")]]
    (tmp_path / "a.mrc").write_bytes(b"".join(binary(row).replace(b"nam a22", b"nam  22", 1) for row in rows))
    import_file(tmp_path / "a.mrc", tmp_path / "out", text="200a", labels="606a", test_fraction=0)
    assert targets(tmp_path / "out") == {"L'été à Besançon": ["Œuvres"], "Cats": ["Œuvres"]}


def test_a_table_that_speaks_of_marc_is_a_table(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,labels\n<record><leader> of MARC21/slim,xml\n")
    import_file(tmp_path / "a.csv", tmp_path / "out", text="text", labels="labels", test_fraction=0)
    assert targets(tmp_path / "out") == {"<record><leader> of MARC21/slim": ["xml"]}


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.mrc", FILES["a.mrc"][:-30], "a.mrc, record 3: the record cannot be read: "),
    ("a.mrc", FILES["a.mrc"].replace("Ü".encode(), b"\xc3("), "a.mrc, record 2: the record cannot be read: "),
    ("a.mrc", FILES["a.mrc"] + binary([("245", "00", "aÜber Hunde"), ("650", " 0", "aDogs")], "latin-1"),
     "a.mrc, record 4: the record cannot be read: Unable to parse character 0xdc"),
    ("a.mrc.gz", FILES["a.mrc.gz"][:-60], "a.mrc.gz: the file cannot be read: "),
    ("a.tsv.gz", gzip.compress(b"a title\t<urn:c>\n", mtime=0)[:10] + bytes(9), "the gzip data of a.tsv.gz is damaged"),
    ("a.xml", FILES["a.xml"][:-30], "a.xml:1"),
    ("a.xml", FILES["a.xml"].replace(b"</subfield>", b"", 1), "a.xml:2: the file"),
    ("a.xml", xml([[("245", "00", "aNo subject")]]).encode(), "columns that were read: --text 245ab --labels 650a"),
    ("a.mrc", b"", "a.mrc: it has no rows"),
    ("a.mrc", FILES["a.mrc"] + b"-0010" + FILES["a.mrc"][5:], "a.mrc, record 4: the record cannot be read: "),
    ("a.mrc", FILES["a.mrc"] + b"00004" + FILES["a.mrc"][5:], "a.mrc, record 4: the record cannot be read: "),
    *(("a.xml", FILES["a.xml"].replace(b"?>", f' encoding="{encoding}"?>'.encode(), 1),
       "a.xml: its encoding cannot be read: ") for encoding in ("GBK", "Shift_JIS", "MARC-8")),
])
def test_bad_records_are_refused(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ContractError) as caught:
        import_file(tmp_path / name, tmp_path / "out", test_fraction=0)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
