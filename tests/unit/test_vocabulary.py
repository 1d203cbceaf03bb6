"""Vocabularies of labels: SKOS and Annif's CSV and TSV; names, languages, relations, what is left out and refused."""

import codecs
import gzip
import json
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.importing import import_file
from tasks.data.sources.vocabulary import Concept, read_vocabulary
from tests.unit.test_importing import points
from tests.unit.test_importing_annif import targets

EX = "http://example.org/"
TURTLE = """\
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix ex: <http://example.org/> .
ex:scheme a skos:ConceptScheme ; skos:prefLabel "the scheme"@en .
ex:cats a skos:Concept ; skos:prefLabel "cats"@en, "Katzen"@de, "kissat"@fi ;
    skos:altLabel "house cats"@en-GB, "felines"@en, "Hauskatzen"@de ;
    skos:hiddenLabel "catz"@en ; skos:broader ex:animals ; skos:related ex:dogs .
ex:dogs a skos:Concept ; skos:prefLabel "dogs"@en, "Hunde"@de ; skos:altLabel "dogs"@en ; skos:broader ex:old, ex:dogs .
ex:animals a skos:Concept ; skos:prefLabel "  animals "@en, "Tiere"@de ; skos:narrower ex:dogs .
ex:old a skos:Concept ; skos:prefLabel "beasts"@en ; owl:deprecated true .
ex:fish a skos:Concept ; skos:prefLabel "Fisch"@de, "Fish"@en-US ; skos:related ex:cats .
ex:nameless a skos:Concept ; skos:altLabel "nothing"@en .
"""


def skos(folder: Path, name: str = "v.ttl", mark: bytes = b"") -> Path:
    """Write the vocabulary in the form that a file's name tells, behind a byte order mark."""
    from rdflib import Graph

    form = {"ttl": "turtle", "rdf": "xml", "xml": "xml", "nt": "nt", "jsonld": "json-ld"}[name.lower().split(".")[1]]
    data = mark + Graph().parse(data=TURTLE, format="turtle").serialize(format=form, encoding="utf-8")
    (folder / name).write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
    return folder / name


@pytest.mark.parametrize("name", ["v.ttl", "v.rdf", "v.xml", "v.nt", "v.jsonld", "v.ttl.gz", "v.rdf.gz", "V.TTL.GZ"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_skos_in_every_form(tmp_path: Path, name: str, mark: bytes):
    vocabulary = read_vocabulary(skos(tmp_path, name, mark), ["en"])
    assert vocabulary.concepts == {
        f"{EX}animals": Concept("animals", ""), f"{EX}cats": Concept("cats", "catz; felines; house cats"),
        f"{EX}dogs": Concept("dogs", ""), f"{EX}fish": Concept("Fish", "")}
    assert vocabulary.relations == {
        "broader": {f"{EX}cats": {f"{EX}animals"}, f"{EX}dogs": {f"{EX}animals"}},
        "related": {f"{EX}cats": {f"{EX}dogs", f"{EX}fish"}, f"{EX}dogs": {f"{EX}cats"}, f"{EX}fish": {f"{EX}cats"}}}
    assert vocabulary.left_out == {"concepts_deprecated": 1, "concepts_without_name": 0}


def test_a_wrong_value_of_a_note_is_no_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """rdflib tells a traceback for each, of which real vocabularies have thousands."""
    (tmp_path / "v.ttl").write_text(TURTLE + 'ex:cats <http://purl.org/dc/terms/modified> "2010-02-30"^^'
                                    "<http://www.w3.org/2001/XMLSchema#date> ; skos:exactMatch <http://x.org/a b> .\n")
    assert read_vocabulary(tmp_path / "v.ttl", ["en"]).concepts == read_vocabulary(skos(tmp_path), ["en"]).concepts
    assert not caplog.records


def test_languages(tmp_path: Path):
    """The first language that has a name gives the title, the others give further names."""
    file = skos(tmp_path)
    several = read_vocabulary(file, ["fi", "de"])
    assert several.concepts[f"{EX}cats"] == Concept("kissat", "Katzen; Hauskatzen")
    assert several.concepts[f"{EX}dogs"] == Concept("Hunde", "")
    assert read_vocabulary(file, ["FI"]).left_out["concepts_without_name"] == 3
    assert [several.find(name) for name in ("Hunde", f"<{EX}dogs>", "dogs")] == [f"{EX}dogs", f"{EX}dogs", None]
    with pytest.raises(UsageError, match=r"has de \(4\), en \(3\), .*\nhint: .*--language de, .*--language de,en"):
        read_vocabulary(file)
    with pytest.raises(UsageError, match=r"no preferred name in 'sv'; it has de \(4\).*\nhint: --language de$"):
        read_vocabulary(file, ["de", "sv"])


@pytest.mark.parametrize(("languages", "concept"), [
    (["en"], ("eggplant", "aubergine; gombo; okra")), (["en", "fr"], ("eggplant", "aubergine; mélongène; gombo; okra")),
    (["en-gb", "en"], ("aubergine", "eggplant; gombo; okra")),
    (["fr", "en"], ("mélongène", "eggplant; aubergine; gombo; okra"))])
def test_a_language_comes_before_its_variants(tmp_path: Path, languages: list[str], concept: tuple[str, str]):
    """Else the alphabet chooses a label's title."""
    (tmp_path / "v.ttl").write_text("""@prefix skos: <http://www.w3.org/2004/02/skos/core#> . <urn:a> a skos:Concept ;
        skos:prefLabel "aubergine"@en-GB, "eggplant"@en, "mélongène"@fr ; skos:altLabel "okra"@en, "gombo"@en .""")
    assert read_vocabulary(tmp_path / "v.ttl", languages).concepts["urn:a"] == Concept(*concept)


def test_names_of_two_concepts_find_neither(tmp_path: Path):
    (tmp_path / "v.tsv").write_text("<urn:a>\tbank\n<urn:b>\tbank\n<urn:c>\tshore\t42.1\n\n")
    vocabulary = read_vocabulary(tmp_path / "v.tsv")
    assert [vocabulary.find(name) for name in ("bank", "shore", "urn:b")] == [None, "urn:c", "urn:b"]
    assert vocabulary.find("bank", "urn:a") == "urn:a"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_csv_vocabulary(tmp_path: Path, mark: str):
    rows = ["uri,label_en,label_fr,notation", "urn:a,computer network,réseau informatique,", "<urn:b>,,informatique,1"]
    (tmp_path / "v.csv").write_text("\n".join(rows).replace(",", mark))
    assert read_vocabulary(tmp_path / "v.csv", ["fr"]).concepts == {
        "urn:a": Concept("réseau informatique", ""), "urn:b": Concept("informatique", "")}
    english = read_vocabulary(tmp_path / "v.csv", ["en"])
    assert (*english.concepts, english.left_out["concepts_without_name"]) == ("urn:a", 1)


def documents(folder: Path) -> Path:
    lines = [("On cats", f"<{EX}cats> <{EX}unknown>"), ("Dogs", f"{EX}dogs {EX}old"),
             ("Cats and dogs", f"{EX}cats {EX}dogs"), ("Beasts", f"{EX}old"), ("Fish", f"{EX}fish")]
    (folder / "d.tsv").write_text("".join(f"{text}\t{uris}\n" for text, uris in lines))
    return folder / "d.tsv"


def test_labels_are_the_concepts_of_the_vocabulary(tmp_path: Path):
    file = documents(tmp_path)
    summary = import_file(file, tmp_path / "out", vocabulary=skos(tmp_path), languages=["en"], test_fraction=0)
    assert targets(tmp_path / "out") == {"On cats": [f"{EX}cats"], "Dogs": [f"{EX}dogs"], "Fish": [f"{EX}fish"],
                                         "Cats and dogs": [f"{EX}cats", f"{EX}dogs"]}
    assert points(tmp_path / "out", "lbl") == [
        {"uid": f"{EX}cats", "title": "cats", "content": "catz; felines; house cats"},
        {"uid": f"{EX}dogs", "title": "dogs", "content": ""}, {"uid": f"{EX}fish", "title": "Fish", "content": ""}]
    assert {name: summary[name] for name in ("rows_without_vocabulary_labels", "labels_not_in_vocabulary",
                                             "concepts_deprecated", "broader_edges", "related_edges")} == {
        "rows_without_vocabulary_labels": 1, "labels_not_in_vocabulary": 2, "concepts_deprecated": 1,
        "broader_edges": 2, "related_edges": 4}
    assert summary["vocabulary_reason"] == (
        f"labels that v.ttl does not have are left out; the first is '{EX}unknown' ({file}:1)")
    assert {path.name: path.read_text() for path in (tmp_path / "out").glob("*.txt")} == {
        "broader.raw.txt": "animals\n", "broader_lbl_X_Y.txt": "3 1\n0:1\n0:1\n\n",
        "broader_trn_X_Y.txt": "4 1\n\n\n\n\n",
        "related.raw.txt": "cats\ndogs\nFish\n", "related_lbl_X_Y.txt": "3 3\n1:1 2:1\n0:1\n0:1\n",
        "related_trn_X_Y.txt": "4 3\n\n\n\n\n"}


def test_names_of_a_table_and_of_key_files_are_found(tmp_path: Path):
    """A concept that stands twice in a row, by its name and its URI, has the weight of the first."""
    (tmp_path / "t.csv").write_text(f"text;tags;n\nOne;cats|{EX}dogs|{EX}cats;2|3|9\nTwo;cats|mice;1\n")
    vocabulary = skos(tmp_path)
    import_file(tmp_path / "t.csv", tmp_path / "out", text="text", labels="tags", weight="n", separator="|",
                vocabulary=vocabulary, languages=["en"], test_fraction=0)
    assert [(row["target_ind"], row["target_rel"]) for row in points(tmp_path / "out", "trn")] == [
        ([0, 1], [2.0, 3.0]), ([0], [1.0])]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("a text")
    (tmp_path / "docs" / "a.key").write_text("cats\nanimals\n")
    import_file(tmp_path / "docs", tmp_path / "full", vocabulary=vocabulary, languages=["en"], test_fraction=0)
    assert targets(tmp_path / "full") == {"a text": [f"{EX}animals", f"{EX}cats"]}


def test_labels_of_another_vocabulary_are_refused(tmp_path: Path):
    (tmp_path / "v.tsv").write_text("urn:a\tone\n")
    with pytest.raises(ContractError, match=r"d.tsv:1: none of the labels is in .*v.tsv: 5 labels, the first is 'h"):
        import_file(documents(tmp_path), tmp_path / "out", vocabulary=tmp_path / "v.tsv")
    (tmp_path / "d.tsv").write_text("One text\t<urn:z>\n")
    with pytest.raises(ContractError, match=r"v.tsv: 1 label, the first is 'urn:z'"):
        import_file(tmp_path / "d.tsv", tmp_path / "out", vocabulary=tmp_path / "v.tsv")
    with pytest.raises(UsageError, match=r"v.ttl is a vocabulary, not documents .*\nhint: .* --vocabulary .*v.ttl"):
        import_file(skos(tmp_path), tmp_path / "out")
    with pytest.raises(UsageError, match=r"a language is that of a vocabulary's names, and there is none"):
        import_file(documents(tmp_path), tmp_path / "out", languages=["en"])
    assert not (tmp_path / "out").exists()


REMOTE = json.dumps([{"@graph": [{"@context": [{"a": "urn:a"}, "https://example.org/context.jsonld"]}]}])


@pytest.mark.parametrize(("name", "content", "message"), [
    ("v.ttl", TURTLE.replace('"beasts"@en ;', '"beasts ;'), "v.ttl:10: the file is not turtle: newline found in"),
    ("v.rdf", "<r>\n<a>\n</r>", "v.rdf:3: the file is not xml: mismatched tag"),
    ("v.rdf", '<!DOCTYPE r [<!ENTITY a "aa">\n<!ENTITY b "&a;&a;">]>\n<r>&b;</r>', "v.rdf:2: an entity of its DOCTYPE"),
    ("v.nt", "<urn:a> <urn:b> <urn:c> .\nfoo bar\n", "v.nt:2: the file is not nt: Invalid line: foo bar"),
    ("v.nq", "<urn:a> <urn:b> <urn:c> .\nfoo bar\n", "v.nq:2: the file is not nquads: Invalid line"),
    ("v.jsonld", '{"a":\nx}', "v.jsonld:2: the file is not json-ld: "),
    ("v.jsonld", REMOTE, "v.jsonld: its context is in another file, 'https://example.org/context.jsonld'"),
    ("v.ttl.gz", "not gzip", "v.ttl.gz: the file cannot be read: Not a gzipped file"),
    ("v.ttl", "", "v.ttl: it holds no concept with a preferred name"),
    ("v.rdf", "<html><body>x</body></html>", "v.rdf: it holds no concept with a preferred name"),
    ("v.tsv", "<urn:a>\tone\nurn:b two\n", "v.tsv:2: the line is not a URI, a tab and a name: 'urn:b two'"),
    ("v.tsv", "one\ttwo\n", "v.tsv:1: the line is not a URI, a tab and a name"),
    ("v.tsv", "<urn:a>\tone\nurn:a\ttwo\n", "v.tsv:2: the concept urn:a is in the file twice"),
    ("v.csv", "uri,label_en\n,one\n", "v.csv:2: the concept has no URI"),
    ("v.csv", "uri,label_en\nurn:a,one,two\n", "v.csv:2: the row has 3 cells and the header 2")])
def test_bad_vocabularies_are_refused(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(ContractError) as caught:
        import_file(documents(tmp_path), tmp_path / "out", vocabulary=tmp_path / name)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "content", "message"), [
    ("v.pdf", "", r"v.pdf is of no kind that can be read as a vocabulary\nhint: known are .ttl, .rdf"),
    ("v.csv", "id,name\n", r"v.csv has no column of names; its first line is 'id,name'"),
    ("v.csv", "id,label_en\n", r"v.csv has no column 'uri'; it has 'id', 'label_en'")])
def test_files_that_are_no_vocabulary_are_told(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        read_vocabulary(tmp_path / name)
    with pytest.raises(UsageError, match=r"nothing.ttl is not a file\nhint: name a vocabulary"):
        read_vocabulary(tmp_path / "nothing.ttl")
